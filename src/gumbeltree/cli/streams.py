"""Options, input, output and progress shared by the commands that use a model."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gumbeltree.atomic import replace_file

if TYPE_CHECKING:
    from gumbeltree.text.files import Report
    from gumbeltree.text.ids import TextCounts
    from gumbeltree.text.lines import Line

Model = Annotated[
    str,
    typer.Argument(
        help="A model folder, the folder of a run, a name of `gumbeltree models`, or hub:ORG/NAME."
    ),
]
Texts = Annotated[
    list[str] | None,
    typer.Argument(help="Sentences; by default, the lines of --input or of standard input."),
]
Input = Annotated[
    Path | None,
    typer.Option("--input", help="Text file with one sentence per line, UTF-8, plain or .gz."),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Write the results to this file, not standard output.")
]
Pretokenized = Annotated[
    bool,
    typer.Option("--pretokenized", help="Split texts at white space only, and read -LRB- as (."),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda if available.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Maximum number of sentences per batch.")]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Skip malformed lines and report how many there were.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but results and errors.")]


def pick_device(name: str) -> str:
    """Return the device that `--device` selects."""
    import torch

    count = torch.cuda.device_count()
    if name == "auto":
        return "cuda" if count else "cpu"
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdecimal()):
        raise ValueError(f"`--device` must be cpu, cuda or auto, got {name!r}")
    if kind == "cuda" and int(index or 0) >= count:
        raise ValueError(
            f"`--device {name}` needs a CUDA device that is not there (found {count}); pass "
            "--device auto"
        )
    return name


def take_texts(
    texts: list[str] | None, path: Path | None, report: "Report", pair: bool, skip_bad: bool
) -> Iterator[list["Line"]]:
    """Yield the texts of the arguments, of a file or of standard input, chunk by chunk.

    Args:
        texts: the arguments; two per pair.
        path: the file of `--input`.
        report: updated with malformed lines.
        pair: whether each line holds two texts.
        skip_bad: skip malformed lines instead of raising.
    """
    from gumbeltree.text.lines import Line, read_texts

    if not texts:
        if path is None and sys.stdin is not None and sys.stdin.isatty():
            items = "one tab-separated pair" if pair else "one sentence"
            typer.echo(f"Type {items} per line; end with Ctrl-D.", err=True)
        yield from read_texts(path, report, pair=pair, skip_bad=skip_bad)
        return
    if path is not None:
        raise ValueError("pass texts either as arguments or with --input, not both")
    size = 2 if pair else 1
    if len(texts) % size:
        raise ValueError(
            f"this model classifies pairs: pass two texts per pair, got {len(texts)}; put each one "
            "in quotes"
        )
    starts = range(0, len(texts), size)
    yield [Line(start // size + 1, tuple(texts[start : start + size])) for start in starts]


def check_out(path: Path | None) -> None:
    """Raise if no file can be written to `path`, before anything is computed."""
    if path is None:
        return
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; pass the name of a file in it")
    if path.exists() and not path.is_file():
        # an atomic write would replace a pipe or /dev/null by a file
        raise OSError(f"{path} is a device or pipe; write to standard output instead")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: the folder {path.parent} does not exist; create it first")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"{path}: no permission to write to {path.parent}")


def write_blocks(path: Path | None, blocks: Iterable[Iterable[str]]) -> None:
    """Write lines to a file atomically, or to standard output block by block.

    Args:
        path: the file; None is standard output.
        blocks: lines without line ends.
    """
    if path is not None:
        replace_file(path, lambda temporary: _write_file(temporary, blocks))
        return
    if sys.stdout is None:
        raise OSError("standard output is closed; redirect it to a file or another program")
    if hasattr(sys.stdout, "reconfigure"):
        if not sys.stdout.isatty():
            # files and pipes are UTF-8 on every system
            sys.stdout.reconfigure(encoding="utf-8")
        sys.stdout.reconfigure(errors="replace")
    for block in blocks:
        sys.stdout.write("".join(f"{line}\n" for line in block))
        sys.stdout.flush()


def _write_file(path: Path, blocks: Iterable[Iterable[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for block in blocks:
            file.writelines(f"{line}\n" for line in block)


def one_line(text: str) -> str:
    """Replace tabs and line ends by spaces, for a column of a table."""
    return text.translate(dict.fromkeys(map(ord, "\t\n\r"), " "))


@contextmanager
def progress(
    quiet: bool, to_terminal: bool, what: str = "texts", total: int | None = None
) -> Iterator[Callable[[int], None]]:
    """Show progress on a terminal; yield a function to call with the number of finished items.

    Args:
        quiet: show nothing.
        to_terminal: whether results go to the terminal too; then show nothing.
        what: name of the items.
        total: number of items, if known.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    sign: Any = SpinnerColumn() if total is None else BarColumn()
    bound = "" if total is None else f" of {total:,}"
    columns = (sign, TextColumn(f"{{task.completed:,}}{bound} {what}"), TimeElapsedColumn())
    hidden = quiet or to_terminal or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)


def to_terminal(out: Path | None) -> bool:
    """Return whether results are printed on a terminal."""
    return out is None and sys.stdout is not None and sys.stdout.isatty()


def summarize(counts: "TextCounts", report: "Report", quiet: bool) -> None:
    """Print on standard error how many texts were read, truncated and skipped."""
    if quiet:
        return
    typer.echo(str(counts), err=True)
    if report.bad:
        skipped = "1 bad line" if report.bad == 1 else f"{report.bad:,} bad lines"
        messages = "".join(f"\n  {message}" for message in report.first_bad)
        typer.echo(f"{skipped} skipped:{messages}", err=True)
