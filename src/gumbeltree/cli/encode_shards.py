"""Encode a large file into shards, with progress; part of the command `encode`."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gumbeltree.cli import streams

if TYPE_CHECKING:
    from gumbeltree.sharded import ShardFolder

SAY_SECONDS = 30.0
"""Time between two lines of progress if standard error is not a terminal."""
TEXT_BYTES = 200
"""Estimated size of a text, to choose the size of Ray's object store."""


def encode_shards(
    model: str,
    path: Path | None,
    text_column: str | None,
    out: Path,
    *,
    address: str | None,
    workers: int | None,
    shard_rows: int,
    runtime: str,
    plugins: list[str],
    batch_size: int,
    pretokenized: bool,
    skip_bad: bool,
    quiet: bool,
) -> None:
    """Encode the texts of a file on a Ray cluster; the arguments are the options of `encode`."""
    from gumbeltree import ray_engine
    from gumbeltree.analysis.index import model_digest
    from gumbeltree.runtimes import load_for_use
    from gumbeltree.sharded import Job, ShardFolder, read_through
    from gumbeltree.tasks.table_file import table_ending
    from gumbeltree.text.files import Report, check_file, counted
    from gumbeltree.text.ids import TextCounts

    ray_engine.check_installed()
    if path is None:
        raise ValueError("--engine ray encodes a file; pass it with --input")
    if out.suffix == ".npy":
        raise ValueError(f"--engine ray writes a folder of .npy files, got {out}; pass {out.stem}")
    check_file(path)
    loaded = load_for_use(model, "cpu", runtime)
    columns = streams.columns_of(loaded, text_column)
    ending = table_ending(path)
    size, digest, lines = read_through(path)
    # compressed and binary files have other numbers of lines, and JSON lists have any
    plain = path.suffix.lower() != ".gz" and ending not in (".json", ".parquet")
    job = Job(
        # a path must be valid from any working directory
        model=str(Path(model).resolve()) if Path(model).is_dir() else model,
        model_digest=model_digest(loaded),
        width=loaded.encoder.vector_dim,
        input=str(path.resolve()),
        input_size=size,
        input_digest=digest,
        column=columns.names["text"] if ending else "",
        pretokenized=pretokenized,
        skip_bad=skip_bad,
        shard_rows=shard_rows,
    )
    counts, report = TextCounts(), Report()
    source = streams.TextSource(None, path, columns, skip_bad, lambda count: None, {}, report)
    texts = (line for chunk in source.chunks() for line in chunk)
    with ShardFolder(out, job) as folder:
        if folder.complete:
            streams.say(f"{out}: {_described(folder)}; nothing to do", quiet)
            return
        if folder.done:
            streams.say(f"{counted(len(folder.done), 'shard')} already complete", quiet)
        results = ray_engine.encode_shards(
            folder.missing(texts),
            loaded,
            str(path),
            address=address,
            workers=workers,
            # relative paths may not be valid where the workers run
            plugins=[str(Path(x).resolve()) if x.endswith(".py") else x for x in plugins],
            batch_size=batch_size,
            pretokenized=pretokenized,
            store=ray_engine.IN_FLIGHT * shard_rows * (4 * job.width + TEXT_BYTES),
        )
        try:
            with (
                _progress(folder, lines if plain else None, quiet) as advance,
                contextlib.closing(results),
            ):
                for number, vectors, found in results:
                    folder.write(number, vectors)
                    counts.add(found)
                    advance(len(vectors))
        except BaseException:
            complete = counted(len(folder.done), "complete shard")
            streams.say(f"{out}: {complete} kept; repeat the command to encode the others", quiet)
            raise
        streams.say(f"{out}: {_described(folder)}", quiet)
        streams.say_counts(counts, report, quiet)


def _described(folder: "ShardFolder") -> str:
    from gumbeltree.text.files import counted

    shards = counted(len(folder.done), "shard")
    return f"{folder.rows:,} x {folder.job.width}, float32, in {shards}"


@contextlib.contextmanager
def _progress(
    folder: "ShardFolder", total: int | None, quiet: bool
) -> Iterator[Callable[[int], None]]:
    """Show progress on a terminal, or print it from time to time.

    Yields:
        A function to call with the number of texts of each finished shard.
    """
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns: Any = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    live = console.is_terminal and not quiet
    before = sum(part.rows for part in folder.done.values())
    start = said = time.monotonic()
    encoded = 0
    with Progress(*columns, console=console, transient=True, disable=not live) as bar:
        task = bar.add_task("starting Ray", total=None)

        def advance(rows: int) -> None:
            nonlocal encoded, said
            encoded += rows
            now = time.monotonic()
            line = progress_line(len(folder.done), before, encoded, now - start, total)
            bar.update(task, description=line)
            if not live and now - said >= SAY_SECONDS:
                streams.say(line, quiet)
                said = now

        yield advance


def progress_line(shards: int, before: int, encoded: int, seconds: float, total: int | None) -> str:
    """Describe the progress of a run.

    Args:
        shards: number of complete shards.
        before: number of texts that were complete before the run.
        encoded: number of texts encoded since.
        seconds: duration of the run so far.
        total: approximate number of all texts, if known.
    """
    from gumbeltree.text.files import counted

    rate = encoded / max(seconds, 1e-9)
    line = f"{counted(shards, 'shard')}, {counted(before + encoded, 'text')}, {rate:,.0f}/s"
    if total is None:
        return line
    minutes, second = divmod(round(max(0, total - before - encoded) / rate), 60)
    return f"{line}, about {minutes // 60}:{minutes % 60:02d}:{second:02d} left"
