"""The end of a run that was asked to stop."""


class InterruptedRunError(Exception):
    """Training was asked to stop, and has saved its state.

    Attributes:
        status: exit status, 128 and the signal's number: 130 after Ctrl-C.
    """

    def __init__(self, number: int, folder: object) -> None:
        super().__init__(f"stopped; the state is saved in {folder}: go on with --resume")
        self.status = 128 + number
