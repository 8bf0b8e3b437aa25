"""The command `data make`: write the splits of ListOps and propositional logic."""

from pathlib import Path
from typing import Annotated

import typer

from gumbeltree.cli import completion
from gumbeltree.cli.data_get import data as data_app


@data_app.command()
def make(
    name: Annotated[
        str,
        typer.Argument(
            help="listops or logic.", autocompletion=completion.one_of("listops", "logic")
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    seed: Annotated[
        int | None, typer.Option(help="Seed of the ListOps expressions; default: 0.")
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(
            help="Published ListOps test file, test_d20s.tsv. Training and development do not "
            "contain its expressions."
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Folder with the published logic files, train0 to train6, test0 to test12.",
        ),
    ] = None,
) -> None:
    """Write training, development and test files on which tree learners are compared.

    ListOps is generated: expressions of up to 100 tokens for training, and test files with up to
    2,000 tokens, more arguments or more levels. The same seed writes the same bytes. Propositional
    logic is made from the published files.

    For example:

      gumbeltree data make listops --out data/listops --test test_d20s.tsv

      gumbeltree data make logic --from propositionallogic --out data/logic
    """
    from rich import progress as bars
    from rich.console import Console

    from gumbeltree.registry import UnknownNameError, suggest
    from gumbeltree.tasks.make import check_free, make_listops, make_logic, write_files

    if name not in ("listops", "logic"):
        near = suggest(name, ["listops", "logic"])
        raise UnknownNameError(f"unknown data set {name!r}; known: listops, logic.{near}")
    others = {"--from": source} if name == "listops" else {"--test": test, "--seed": seed}
    if unused := [option for option, value in others.items() if value is not None]:
        raise ValueError(f"{unused[0]} has no effect on {name}; omit it")
    check_free(out)
    about: dict[str, object] = {"name": name}
    if name == "logic":
        if source is None:
            raise ValueError("pass the folder with the published logic files with --from")
        files = make_logic(source)
    else:
        console = Console(stderr=True)
        columns = (
            bars.TextColumn("{task.description}", markup=False),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TimeRemainingColumn(),
        )
        with bars.Progress(*columns, console=console, disable=not console.is_interactive) as shown:
            tasks: dict[str, bars.TaskID] = {}

            def progress(split: str, done: int, total: int) -> None:
                if split not in tasks:
                    tasks[split] = shown.add_task(split)
                shown.update(tasks[split], completed=done, total=total)

            files = make_listops(seed or 0, test, progress)
        about |= {"seed": seed or 0, "test": None if test is None else test.name}
    summary = write_files(files, out, about)
    for path, file in summary["files"].items():
        dropped = f", {file['dropped']:,} dropped: in another split" if file["dropped"] else ""
        typer.echo(f"{out / path}: {file['examples']:,} examples{dropped}")
