"""Write a file whole or not at all."""

import os
import uuid
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file beside `path`, then move it there in one step.

    Whoever reads `path` meanwhile, or after a failure, finds the old file or none. The content is
    on disk before the name is, so that this holds when the power goes, too.
    """
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        # a new file's permissions, whoever writes it: some writers keep theirs to the owner
        temporary.touch()
        mode = temporary.stat().st_mode
        try:
            write(temporary)
        except SafetensorError as error:
            raise OSError(f"{path} could not be written: {error}") from error
        temporary.chmod(mode)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
