"""Write a file completely or not at all."""

import os
import uuid
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` with a temporary path next to `path`, then rename the result to `path`.

    Readers see either the old file or the complete new one, even after a failure or a power cut.
    """
    temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        # some writers restrict permissions to the owner; use those of an ordinary new file
        temporary.touch()
    except OSError as error:
        reason = error.strerror or error
        raise OSError(f"{path} cannot be created: {reason}; choose another place") from error
    try:
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
