"""Show training progress: a line per evaluation, and a bar in a terminal."""

import math
import time
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from torch import Tensor

from gumbeltree.nn.heads.head import Metric


def new_console() -> Console:
    """Return a console on standard error, or for plain lines on standard output in a notebook.

    Notebooks show standard error in red and rich output as one block per line, and they claim to
    be terminals, although saved notebooks would contain every state of a bar.
    """
    if Console().is_jupyter:
        return Console(force_jupyter=False, force_terminal=False, color_system=None)
    return Console(stderr=True)


class Display:
    """Show progress on standard error; in a notebook, below the cell.

    Args:
        quiet: show nothing.
        title: prefix of each line, for example the seed.
    """

    def __init__(self, quiet: bool = False, title: str = "") -> None:
        self.quiet, self.title = quiet, title
        self.console = new_console()
        self.bar: Progress | None = None
        self.shown_at = 0.0
        self.since, self.examples = time.monotonic(), 0
        self.epochs, self.best = 0, math.nan
        self.metric = Metric("", False, str)

    def say(self, text: str) -> None:
        """Print a line, unless quiet."""
        if not self.quiet:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def start(self, steps: int, epochs: int, done: int, best: float, metric: Metric) -> None:
        """Start the display of a run of at most `steps` steps, of which `done` are complete.

        `metric` is the one that selects the best model, and `best` its best value so far.
        """
        self.metric = metric
        self.since, self.examples = time.monotonic(), 0
        self.epochs, self.best = epochs, best
        if done:
            self.say(f"{self.title}resuming after step {done:,}")
        if not self.quiet and self.console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[status]}"),
                TimeElapsedColumn(),
                TextColumn("at most"),
                TimeRemainingColumn(),
                TextColumn("left"),
                console=self.console,
                transient=True,
            )
            self.bar.add_task("training", total=steps, completed=done, status="")
            self.bar.start()

    def step(self, epoch: int, examples: int, loss: Tensor, count: int) -> None:
        """Count a step; `loss` is the sum over the `count` examples since the last evaluation."""
        self.examples += examples
        if self.bar is None:
            return
        task = self.bar.task_ids[0]
        self.bar.advance(task)
        now = time.monotonic()
        # update rarely, because reading the loss waits for the device
        if now - self.shown_at < 0.2:
            return
        self.shown_at = now
        status = f"{self._rate():,.0f}/s  loss {float(loss) / max(count, 1):.3f}"
        if not math.isnan(self.best):
            status += f"  best {self.metric.shown(self.best)}"
        epochs = f"{self.title}epoch {epoch}/{self.epochs}"
        self.bar.update(task, description=epochs, status=status)

    def evaluated(self, record: dict[str, Any]) -> None:
        """Print the metrics of an evaluation."""
        value = record[f"dev_{self.metric.name}"]
        mark = " *" if self.metric.improves(value, self.best) else ""
        self.best = record[f"best_{self.metric.name}"]
        shown = f"  dev {self.metric.name} {self.metric.shown(value)}"
        if self.metric.name == "loss":
            # the loss selects the best model, but says little by itself
            accuracy = record.get("dev_accuracy")
            shown = "" if accuracy is None else f"  dev accuracy {accuracy:.2%}"
        self.say(
            f"{self.title}epoch {record['epoch']:6.2f}  step {record['step']:7,}  "
            f"{self._rate():7,.0f} examples/s  loss {record['train_loss']:.4f}  dev loss "
            f"{record['dev_loss']:.4f}{shown}{mark}"
        )
        self.since, self.examples = time.monotonic(), 0

    def _rate(self) -> float:
        """Return examples per second since the last evaluation."""
        return self.examples / max(time.monotonic() - self.since, 1e-9)

    def close(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
