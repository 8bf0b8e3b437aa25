"""The error raised by an interrupted run."""


class InterruptedRunError(Exception):
    """Training stopped on request and saved a checkpoint.

    Attributes:
        status: exit status, 128 plus the signal number; for example, 130 after Ctrl-C.
    """

    def __init__(self, number: int, folder: object) -> None:
        super().__init__(f"stopped; checkpoint saved in {folder}. Pass --resume to continue")
        self.status = 128 + number
