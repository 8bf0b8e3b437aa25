"""Options, input, output and progress shared by the commands that use a model."""

import csv
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from gumbeltree.atomic import replace_file
from gumbeltree.cli import completion

if TYPE_CHECKING:
    from gumbeltree.text.files import Report
    from gumbeltree.text.ids import TextCounts
    from gumbeltree.text.lines import Check, Line
    from gumbeltree.text_model import TextModel

Model = Annotated[
    str,
    typer.Argument(
        help="A model folder, a run folder, a name from `gumbeltree models`, or hub:ORG/NAME.",
        autocompletion=completion.models,
    ),
]
Texts = Annotated[
    list[str] | None,
    typer.Argument(help="Sentences; by default, they are read from --input or standard input."),
]
Input = Annotated[
    Path | None,
    typer.Option(
        "--input",
        help="Text file with one sentence per line, or table (.csv, .tsv, .jsonl, .json, "
        ".parquet); UTF-8, plain or .gz. Standard input (-) is always read line by line.",
    ),
]
TextColumn = Annotated[
    str | None,
    typer.Option(
        "--text",
        metavar="COLUMN",
        help="Column of the texts if --input is a table; default: as in training, or text.",
    ),
]
Text2Column = Annotated[
    str | None,
    typer.Option(
        "--text2",
        metavar="COLUMN",
        help="Column of the second texts of pairs; default: as in training, or text2.",
    ),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="File for the results; default: standard output.")
]
Pretokenized = Annotated[
    bool,
    typer.Option(
        "--pretokenized",
        help="Split texts at white space only, and decode escapes such as -LRB-.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        help="cpu, cuda, cuda:N, or auto (cuda if available).",
        autocompletion=completion.one_of("auto", "cpu", "cuda"),
    ),
]
Runtime = Annotated[
    str,
    typer.Option(
        help="numpy, torch, or auto (numpy on a CPU, where it starts much faster).",
        autocompletion=completion.one_of("auto", "numpy", "torch"),
    ),
]
BatchSize = Annotated[int, typer.Option(min=1, help="Maximum number of sentences per batch.")]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Skip malformed lines and report how many there were.")
]
SplitName = StrEnum("SplitName", ["train", "dev", "test"])
Split = Annotated[
    SplitName | None,
    typer.Option("--split", help="Split to read, unless --data is a file; default: test."),
]


def _load_plugins(context: typer.Context, names: list[str] | None) -> list[str] | None:
    from gumbeltree.plugins import load_plugin

    # the shell parses the line to complete it
    for name in () if context.resilient_parsing else names or ():
        load_plugin(name)
    return names


Plugin = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        callback=_load_plugins,
        help="Module or .py file that adds parts of your own. Can be repeated.",
    ),
]


def _set_threads(context: typer.Context, count: int | None) -> int | None:
    from gumbeltree import threads

    if count is not None:
        threads.set_threads(count)
        context.call_on_close(lambda: threads.set_threads(None))
    return count


Threads = Annotated[
    int | None,
    typer.Option(
        min=1, callback=_set_threads, help="Number of CPU threads; default: the number of cores."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors.")]


class Columns(NamedTuple):
    """How to read the texts of a command if they are in a table.

    Attributes:
        names: the columns of the options `text` and `text2`.
        given: the first of these options on the command line, or an empty string.
        separator: see `TableFile`.
        quotes: see `TableFile`.
    """

    names: dict[str, str]
    given: str
    separator: str
    quotes: bool


def columns_of(model: "TextModel", text: str | None, text2: str | None = None) -> Columns:
    """Return the columns of the options, or by default those of a model's training data."""
    # a folder may contain anything
    trained = {key: str(value) for key, value in model.data_settings.items()}
    options = {"text": text, "text2": text2}
    names = {role: name or trained.get(role) or role for role, name in options.items()}
    given = next((role for role, name in options.items() if name is not None), "")
    return Columns(names, given, trained.get("separator", ""), trained.get("quotes") != "False")


ARGUMENTS = Path("arguments")
"""Name of the arguments of a command in messages."""


@dataclass
class TextSource:
    """Texts of a command: its arguments, or the lines of a file or of standard input.

    Attributes:
        texts: the arguments; two per pair.
        path: the file of `--input`.
        columns: how to read the file if it is a table.
        skip_bad: skip malformed lines instead of raising.
        advance: called with the number of finished texts.
        options: keyword arguments for the methods of a model.
        report: records malformed lines.
        check: raises a MismatchError for texts that the model cannot answer.
        header: names of all columns of the file; known once a line is read.
    """

    texts: list[str] | None
    path: Path | None
    columns: Columns
    skip_bad: bool
    advance: Callable[[int], None]
    options: dict[str, Any]
    report: "Report"
    check: "Check | None" = None
    header: list[str] = field(default_factory=list)

    def chunks(self, pair: bool = False) -> Iterator[list["Line"]]:
        """Yield the texts chunk by chunk, as they arrive; with `pair`, two texts per line."""
        from gumbeltree.tasks.table_file import ENDINGS, table_ending
        from gumbeltree.text.files import shown

        if self.texts and self.path is not None:
            raise ValueError(
                f"both --input {self.path} and the text {shown(self.texts[0])} were given; pass "
                "texts either as arguments or with --input, not both"
            )
        if self.path == Path("-"):
            self.path = None
        self.header = ["text", "text2"][: 1 + pair]
        is_table = not self.texts and self.path is not None and bool(table_ending(self.path))
        if self.columns.given and not is_table:
            place = "arguments" if self.texts else f"lines of {self.path or 'standard input'}"
            raise ValueError(
                f"--{self.columns.given} names a column of a table, but the texts are {place}; "
                f"pass a file whose name ends in {', '.join(ENDINGS)} with --input"
            )
        if is_table:
            chunks = self._rows(pair)
        else:
            chunks = self._arguments(self.texts, pair) if self.texts else self._lines(pair)
        for chunk in chunks:
            yield chunk
            self.advance(len(chunk))

    def _rows(self, pair: bool) -> Iterator[list["Line"]]:
        from gumbeltree.tasks.table_file import TableFile
        from gumbeltree.text.lines import chunked

        assert self.path is not None
        names = {role: self.columns.names[role] for role in self.header}
        table = TableFile(self.path, names, self.columns.separator, self.columns.quotes)
        for chunk in chunked(table.texts(self.report, self.skip_bad, self.check)):
            self.header = table.header
            yield chunk
        if not table.header and not self.report.bad:
            raise ValueError(f"{self.path} is empty; check that it is the right file")
        self.header = table.header or self.header

    def _arguments(self, texts: list[str], pair: bool) -> Iterator[list["Line"]]:
        from gumbeltree.tasks.table_file import ENDINGS
        from gumbeltree.text.files import BadLines
        from gumbeltree.text.lines import Line, check_all

        for text in texts:
            # a sentence with such an ending is unlikely to be the name of a file
            if text.lower().endswith((*ENDINGS, ".gz", ".txt")) and os.path.isfile(text):
                raise ValueError(f"{text} is a file; to read its texts, pass --input {text}")
        size = 2 if pair else 1
        if len(texts) % size:
            raise ValueError(
                f"this model reads pairs, but got {len(texts)} texts; pass two texts per "
                "pair, each in quotes"
            )
        lines = []
        for start in range(0, len(texts), size):
            given = tuple(texts[start : start + size])
            unit = "pair" if pair else "text"
            with BadLines(ARGUMENTS, start // size + 1, self.report, self.skip_bad, unit):
                lines.append(Line(start // size + 1, check_all(given, self.check)))
        yield lines

    def _lines(self, pair: bool) -> Iterator[list["Line"]]:
        from gumbeltree.tasks.table_file import apparent_header
        from gumbeltree.text.files import shown
        from gumbeltree.text.lines import read_texts

        if self.path is None and sys.stdin is not None and sys.stdin.isatty():
            items = "one tab-separated pair" if pair else "one sentence"
            typer.echo(f"Type {items} per line; end with Ctrl-D.", err=True)
        first = True
        for chunk in read_texts(
            self.path, self.report, pair=pair, skip_bad=self.skip_bad, check=self.check
        ):
            # the lines of pairs are tables themselves
            header = apparent_header(singles(chunk)) if first and not pair else []
            if header:
                place, fix = "standard input", "save it to a file"
                if self.path is not None:
                    place, fix = str(self.path), "give it a name that ends in .csv"
                raise ValueError(
                    f"{place} looks like a table with the columns "
                    f"{', '.join(map(shown, header[:10]))}, but it is read line by line; {fix} and "
                    "pass --input FILE.csv --text COLUMN"
                )
            first = False
            yield chunk


@contextmanager
def open_texts(
    texts: list[str] | None,
    path: Path | None,
    out: Path | None,
    pretokenized: bool,
    batch_size: int,
    skip_bad: bool,
    quiet: bool,
    model: "TextModel",
    text_column: str | None,
    text2_column: str | None = None,
) -> Iterator[TextSource]:
    """Yield the texts of a command, show progress, and print a summary at the end.

    The arguments are the options of the command and the model that reads the texts; without `out`,
    results go to standard output.
    """
    from gumbeltree.text.files import Report
    from gumbeltree.text.ids import TextCounts

    counts, report = TextCounts(), Report()
    columns, check = columns_of(model, text_column, text2_column), model.text_check(pretokenized)
    options = {"batch_size": batch_size, "pretokenized": pretokenized, "counts": counts}
    # results printed on a terminal already show progress
    visible = out is not None or sys.stdout is None or not sys.stdout.isatty()
    with progress(quiet or not visible) as advance:
        yield TextSource(texts, path, columns, skip_bad, advance, options, report, check)
    say_counts(counts, report, quiet)


def say_counts(counts: "TextCounts", report: "Report", quiet: bool) -> None:
    """Print how many texts and words were read, and how many lines were skipped."""
    from gumbeltree.text.files import counted

    say(str(counts), quiet)
    if report.bad:
        skipped = f"{counted(report.bad, 'bad line')} skipped:"
        say("\n  ".join([skipped, *report.first_bad]), quiet)


def singles(chunk: list["Line"]) -> list[str]:
    """Return the texts of lines that hold one text each."""
    return [line.texts[0] for line in chunk]


def check_out(path: Path | None) -> None:
    """Raise if `path` cannot be written, so that commands fail before any computation."""
    if path is None:
        return
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; pass the name of a file in it")
    if path.exists() and not path.is_file():
        # an atomic write would replace a pipe or /dev/null with a file
        raise OSError(f"{path} is a device or pipe; write to standard output instead")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: the folder {path.parent} does not exist; create it first")
    if not os.access(path.parent, os.W_OK):
        raise PermissionError(f"{path}: no permission to write to {path.parent}")


def write_lines(path: Path | None, lines: Iterable[str]) -> None:
    """Write lines atomically to a file, or as they arrive to standard output if `path` is None."""
    if path is not None:
        replace_file(path, lambda temporary: _write_file(temporary, lines))
        return
    if sys.stdout is None:
        raise OSError("standard output is closed; redirect it to a file or another program")
    if hasattr(sys.stdout, "reconfigure"):
        if not sys.stdout.isatty():
            # write UTF-8 to files and pipes on every system
            sys.stdout.reconfigure(encoding="utf-8")
        sys.stdout.reconfigure(errors="replace")
    for line in lines:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def _write_file(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def table_row(cells: Sequence[Any], separator: str) -> str:
    """Return the line of a row of a table, with quotes around fields that need them."""
    file = io.StringIO()
    # fields are quoted if they contain a character of the line ending
    csv.writer(file, delimiter=separator, lineterminator="\r\n").writerow(cells)
    return file.getvalue().removesuffix("\r\n")


def separated(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts with an empty line between them."""
    for number, text in enumerate(texts):
        yield f"\n{text}" if number else text


def one_line(text: str) -> str:
    """Replace tabs and line breaks with spaces, for a column of a table."""
    return text.translate(dict.fromkeys(map(ord, "\t\n\r"), " "))


@contextmanager
def progress(hidden: bool) -> Iterator[Callable[[int], None]]:
    """Show progress on a terminal; yield a function to call with the number of finished texts."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.completed:,} texts"), TimeElapsedColumn())
    hidden = hidden or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=None)
        yield lambda count: bar.advance(task, count)


def say(text: str, quiet: bool) -> None:
    """Print a message on standard error, unless `quiet`."""
    if not quiet:
        typer.echo(text, err=True)
