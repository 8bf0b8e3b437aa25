"""The error that ends an interrupted run."""


class InterruptedRunError(Exception):
    """Training was asked to stop and has saved a checkpoint.

    Attributes:
        status: exit status, 128 plus the number of the signal: 130 after Ctrl-C.
    """

    def __init__(self, number: int, folder: object) -> None:
        super().__init__(f"stopped; checkpoint saved in {folder}, continue with --resume")
        self.status = 128 + number
