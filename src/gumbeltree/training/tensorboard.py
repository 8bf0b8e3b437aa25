"""Log metrics to TensorBoard, if it is installed."""

import logging
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


class TensorBoard:
    """Write metrics as scalars; do nothing if TensorBoard is not installed.

    Args:
        folder: run folder.
        step: last completed step; later entries of an interrupted run are discarded.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self.writer: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            log.info("TensorBoard is not available: %s", error)
        else:
            self.writer = SummaryWriter(folder / "tensorboard", purge_step=step + 1)

    def add(self, line: dict[str, Any]) -> None:
        """Log one line of metrics.jsonl."""
        if self.writer is not None:
            for name, value in line.items():
                if name not in ("step", "seconds"):
                    self.writer.add_scalar(name, value, line["step"])
            self.writer.flush()

    def close(self) -> None:
        """Close the event file."""
        if self.writer is not None:
            self.writer.close()
