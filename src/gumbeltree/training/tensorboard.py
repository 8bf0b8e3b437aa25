"""Metrics for TensorBoard, where it is installed."""

import logging
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


class TensorBoard:
    """Write metrics as scalars; do nothing where TensorBoard is not installed.

    Args:
        folder: of the run.
        step: steps done; what an earlier attempt wrote beyond is dropped.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self.writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            log.info("no TensorBoard: %s", error)
        else:
            self.writer = SummaryWriter(folder / "tensorboard", purge_step=step + 1)

    def add(self, line: dict[str, Any]) -> None:
        """Add the numbers of a metrics line."""
        if self.writer is not None:
            for name, value in line.items():
                if name not in ("step", "seconds"):
                    self.writer.add_scalar(name, value, line["step"])
            self.writer.flush()

    def close(self) -> None:
        """Close the file."""
        if self.writer is not None:
            self.writer.close()
