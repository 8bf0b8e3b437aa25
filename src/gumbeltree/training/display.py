"""What training shows: a bar on a terminal, a line for each evaluation elsewhere, or nothing."""

import math
import time
from collections.abc import Callable
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

from gumbeltree.nn.heads.head import Head


class Display:
    """Show progress on standard error.

    Args:
        quiet: show nothing.
        title: put before each line, such as the seed.
    """

    def __init__(self, quiet: bool = False, title: str = "") -> None:
        self.quiet, self.title = quiet, title
        self.console = Console(stderr=True)
        self.bar: Progress | None = None
        self.shown_at = 0.0
        self.since, self.examples = time.monotonic(), 0
        self.best = math.nan
        self.measure = ""
        self.shown: Callable[[float], str] = str

    def say(self, text: str) -> None:
        """Show a line, unless quiet."""
        if not self.quiet:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def start(self, total: int, done: int, best: float, head: Head) -> None:
        """Begin: `done` of at most `total` steps are behind us; `head` knows the measure."""
        self.measure, self.shown = head.measure, head.shown
        self.since, self.examples, self.best = time.monotonic(), 0, best
        if done:
            self.say(f"{self.title}going on after step {done:,}")
        if not self.quiet and self.console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[about]}"),
                TimeElapsedColumn(),
                TextColumn("left at most"),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
            )
            self.bar.add_task("training", total=total, completed=done, about="")
            self.bar.start()

    def step(self, epoch: int, epochs: int, examples: int, loss: Tensor, count: int) -> None:
        """Note a step; the bar moves a few times a second."""
        self.examples += examples
        now = time.monotonic()
        if self.bar is None:
            return
        self.bar.advance(self.bar.task_ids[0])
        if now - self.shown_at < 0.2:
            return
        self.shown_at = now
        rate = self.examples / max(now - self.since, 1e-9)
        about = f"{rate:,.0f}/s  loss {float(loss) / max(count, 1):.3f}"
        if not math.isnan(self.best):
            about += f"  best {self.shown(self.best)}"
        self.bar.update(
            self.bar.task_ids[0], description=f"{self.title}epoch {epoch}/{epochs}", about=about
        )

    def evaluated(self, line: dict[str, Any]) -> None:
        """Show the result of an evaluation."""
        value = line[f"dev_{self.measure}"]
        mark = " *" if math.isnan(self.best) or value > self.best else ""
        self.best = line[f"best_{self.measure}"]
        now = time.monotonic()
        rate = self.examples / max(now - self.since, 1e-9)
        self.since, self.examples = now, 0
        self.say(
            f"{self.title}epoch {line['epoch']:6.2f}  step {line['step']:7,}  "
            f"{rate:7,.0f} examples/s  loss {line['train_loss']:.4f}  dev loss "
            f"{line['dev_loss']:.4f}  dev {self.shown(value)}{mark}"
        )

    def finished(self, result: dict[str, Any]) -> None:
        """End the bar."""
        self.close()

    def close(self) -> None:
        """Take the bar away."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
