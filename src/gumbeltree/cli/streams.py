"""What the commands that use a model share: options, texts in, lines out, progress."""

import sys
import tempfile
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
    typer.Argument(help="Sentences; without, lines of --input or of standard input."),
]
Input = Annotated[
    Path | None,
    typer.Option("--input", help="File of sentences, one a line, UTF-8, plain or .gz."),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="File for the results, instead of standard output.")
]
Pretokenized = Annotated[
    bool,
    typer.Option(
        "--pretokenized",
        help="Texts are words separated by spaces already: split nowhere else; -LRB- is (.",
    ),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is one.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Most sentences encoded at once.")]
SkipBad = Annotated[
    bool,
    typer.Option("--skip-bad", help="Leave out lines that cannot be used, and say how many."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing on standard error but errors.")]

_PLAIN = str.maketrans({**dict.fromkeys("┌┐└┬┴", "+"), "─": "-", "│": "|", "·": "-", "…": "~"})
"""What drawings are made of, and what stands for it where there is nothing but ASCII."""


def pick_device(name: str) -> str:
    """Return the device that `--device` means, or refuse it."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdecimal()):
        raise ValueError(f"`--device` must be cpu, cuda or auto, got {name!r}")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ValueError(
            f"`--device {name}` needs a CUDA device, and there "
            f"{'is' if count == 1 else 'are'} {count or 'none'} here; pass --device auto"
        )
    return name


def take_texts(
    texts: list[str] | None, path: Path | None, report: "Report", pair: bool, skip_bad: bool
) -> Iterator[list["Line"]]:
    """Give the texts of the arguments at once, or else those of a file or standard input.

    Args:
        texts: the arguments; two a pair.
        path: the file of `--input`.
        report: counts bad lines.
        pair: whether two texts belong together.
        skip_bad: whether bad lines are left out.
    """
    from gumbeltree.text.lines import Line, read_texts

    if not texts:
        if path is None and sys.stdin is not None and sys.stdin.isatty():
            wanted = "pairs, with a tab between," if pair else "sentences"
            typer.echo(f"Type {wanted} one a line; end with Ctrl-D.", err=True)
        yield from read_texts(path, report, pair=pair, skip_bad=skip_bad)
        return
    if path is not None:
        raise ValueError("expected texts as arguments or --input, got both; leave one of them out")
    size = 2 if pair else 1
    if len(texts) % size:
        raise ValueError(
            f"this model classifies pairs: expected two texts a pair, got {len(texts)}; put each "
            "text in quotes"
        )
    yield [
        Line(place + 1, tuple(texts[size * place : size * (place + 1)]))
        for place in range(len(texts) // size)
    ]


def check_out(path: Path | None) -> None:
    """Refuse a place where no file can be written, before anything is computed."""
    if path is None:
        return
    if path.is_dir():
        raise IsADirectoryError(
            f"{path}: expected a file to write, got a folder; name a file in it"
        )
    if path.exists() and not path.is_file():
        # moving a file to the name of a pipe or of /dev/null would put an end to it
        raise OSError(f"{path}: expected a file to write, got a device or pipe; leave --out out")
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"{path}: expected a folder {path.parent} to write to, got none; make it first"
        )
    try:
        # permissions alone do not tell: of who is root, or of what is mounted
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise OSError(
            f"{path}: expected a folder to write to, got {path.parent}, which takes no files "
            f"({error.strerror}); name a file elsewhere"
        ) from error


def write_blocks(path: Path | None, blocks: Iterable[Iterable[str]]) -> None:
    """Write lines to standard output, a block as soon as it is there, or to a file at once.

    Args:
        path: the file, written whole or not at all; None is standard output.
        blocks: lines without their ends.
    """
    if path is not None:
        replace_file(path, lambda temporary: _write_file(temporary, blocks))
        return
    if sys.stdout is None:
        raise OSError("standard output is closed; let it go to a file or another program")
    # what goes to a file or another program is UTF-8 everywhere
    if not sys.stdout.isatty() and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8")
    encoding = sys.stdout.encoding or "utf-8"
    for block in blocks:
        sys.stdout.write("".join(f"{_printable(line, encoding)}\n" for line in block))
        sys.stdout.flush()


def _printable(text: str, encoding: str) -> str:
    """Return a text as a terminal can show it that has no more characters than `encoding`."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
    return text


def _write_file(path: Path, blocks: Iterable[Iterable[str]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for block in blocks:
            file.writelines(f"{line}\n" for line in block)


def one_line(text: str) -> str:
    """Return a text for a column: tabs and line ends become spaces."""
    return text.translate({ord(character): " " for character in "\t\n\r"})


@contextmanager
def progress(
    quiet: bool, to_terminal: bool, what: str = "texts", total: int | None = None
) -> Iterator[Callable[[int], None]]:
    """Give a function that is told how many texts more are done.

    Args:
        quiet: show nothing.
        to_terminal: results are printed where progress would be shown, so nothing is.
        what: what is counted.
        total: how many there are, if that is known.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if quiet or to_terminal or not console.is_terminal:
        yield lambda count: None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    sign: Any = SpinnerColumn() if total is None else BarColumn()
    bound = "" if total is None else f" of {total:,}"
    columns = (sign, TextColumn(f"{{task.completed:,}}{bound} {what}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)


def to_terminal(out: Path | None) -> bool:
    """Return whether results are printed to a terminal."""
    return out is None and sys.stdout is not None and sys.stdout.isatty()


def summarize(counts: "TextCounts", report: "Report", quiet: bool) -> None:
    """Say on standard error what became of the texts."""
    if quiet:
        return
    typer.echo(str(counts), err=True)
    if report.bad:
        skipped = "1 bad line" if report.bad == 1 else f"{report.bad:,} bad lines"
        messages = "".join(f"\n  {message}" for message in report.first_bad)
        typer.echo(f"{skipped} skipped:{messages}", err=True)
