"""Call the command line in this process."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple
from unittest import mock

from gumbeltree.cli import main


class Result(NamedTuple):
    """Exit status and output of one command."""

    code: int
    out: str
    err: str

    def refused(self) -> str:
        """Assert that the command ended with one error message and return the message."""
        assert self.code == 1, self
        assert self.err.startswith("gumbeltree: error: "), self
        assert "Traceback" not in self.err, self
        return self.err.removeprefix("gumbeltree: error: ")


class Terminal(io.TextIOWrapper):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def run(*arguments: object, stdin: bytes = b"", terminal: bool = False) -> Result:
    """Run `gumbeltree` with the given arguments and bytes on standard input."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))
    code = 0
    with (
        mock.patch.object(sys, "argv", ["gumbeltree", *map(str, arguments)]),
        mock.patch.object(
            sys, "stdin", (Terminal if terminal else io.TextIOWrapper)(io.BytesIO(stdin))
        ),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        out.flush()
        err.flush()
    return Result(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))
