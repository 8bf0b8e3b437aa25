"""What `evaluate` reads and prints."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from gumbeltree.nn.heads.head import Evaluation
from gumbeltree.tasks import TASKS
from gumbeltree.tasks.table import split as divide
from gumbeltree.tasks.task import Example, Task
from gumbeltree.text.files import Report

if TYPE_CHECKING:
    from gumbeltree.model import SentenceModel


def find_task(model: "SentenceModel", name: str | None, columns: Mapping[str, str | None]) -> Task:
    """Return the reader of the data: as the options say, else as the model was trained.

    Args:
        model: its provenance holds the settings it was trained with.
        name: of the task, from the options.
        columns: text, text2 and label, from the options; they imply a table.
    """
    recipe = model.provenance.get("recipe")
    settings = recipe.get("data") if isinstance(recipe, dict) else None
    trained: dict[str, Any] = settings if isinstance(settings, dict) else {}
    given = {key: value for key, value in columns.items() if value}
    name = name or ("table" if given else trained.get("task"))
    if not isinstance(name, str):
        raise ValueError(
            f"expected a task, got none with the model; pass --task with one of {', '.join(TASKS)}"
        )
    if name != "table" and given:
        raise ValueError(
            f"--{next(iter(given))} names a column of a table, got --task {name}; leave one of "
            "them out"
        )
    task = _table(model, {**trained, **given}) if name == "table" else TASKS[name]()
    # gold trees are for analysis
    task.trees = False
    check_fit(model, task)
    return task


def _table(model: "SentenceModel", columns: Mapping[str, Any]) -> Task:
    missing = [key for key in ("text", "label") if not columns.get(key)]
    if model.head.sentences == 2 and not columns.get("text2"):
        missing.append("text2")
    if missing:
        options = " and ".join(f"--{key} COLUMN" for key in missing)
        raise ValueError(f"a table needs the names of its columns; pass {options}")
    task: Task = TASKS["table"](
        columns["text"],
        columns.get("text2") or None,
        columns["label"],
        model.labels,
        columns.get("quotes", True),
    )
    task.pretokenized = columns.get("pretokenized", False)
    return task


def check_fit(model: "SentenceModel", task: Task) -> None:
    """Raise unless the model can classify what the task reads."""
    kinds = {True: "pairs", False: "single sentences"}
    pair = model.head.sentences == 2
    if pair != task.pair:
        raise ValueError(
            f"the model classifies {kinds[pair]}, the task {task.name} has {kinds[task.pair]}; "
            "pass another model, or another --task"
        )
    if not set(task.labels or ()) <= set(model.labels):
        raise ValueError(
            f"the task {task.name} has labels {', '.join(task.labels or ())}, the model knows "
            f"{', '.join(model.labels)}; pass another model, or another --task"
        )


def find_file(task: Task, data: Path, split: str | None) -> Path:
    """Return the file to evaluate on: `data` itself, or that of a split in the folder."""
    if not data.is_dir():
        if split is not None:
            raise ValueError(
                f"--split chooses a file of a folder, got the file {data}, which is read whole; "
                "leave --split out"
            )
        return data
    split = split or "test"
    found = task.splits(data)
    if split not in found:
        raise FileNotFoundError(
            f"{data}: expected a file for the split {split}, got {', '.join(found)}; pass --split "
            "with one of these, or a file"
        )
    return found[split]


def generated(
    model: "SentenceModel", task: Task, split: str, report: Report
) -> tuple[Path, list[Example]]:
    """Return the part of generated data that a model was trained or is to be evaluated on.

    Args:
        model: its provenance says how much was generated and how it was divided.
        task: its reader.
        split: train, dev or test.
        report: counts the examples.
    """
    trained = model.provenance.get("recipe", {}).get("data", {})
    if not hasattr(task, "generate") or not trained.get("generate"):
        raise ValueError(
            f"the task {task.name} reads files, got no --data; pass the folder or the file"
        )
    shares = {name: trained[f"{name}_fraction"] for name in ("dev", "test")}
    shares = {"train": 1 - sum(shares.values()), **shares}
    examples = list(task.generate(trained["generate"], trained["split_seed"]))
    parts = divide(len(examples), list(shares.values()), trained["split_seed"])
    made = {name: rows for name, rows in zip(shares, parts, strict=True) if rows}
    counted = model.provenance.get("data", {}).get("splits", {})
    if {name: len(rows) for name, rows in made.items()} != {
        name: about["examples"] for name, about in counted.items()
    }:
        # with a test file, say, the rest was divided otherwise: training examples might come back
        raise ValueError(
            "the model was trained on files as well as on generated data, so its held-out part "
            "cannot be made again; pass --data"
        )
    if split not in made:
        raise ValueError(f"expected one of the splits {', '.join(made)}, got {split}; pass --split")
    part = [examples[i] for i in made[split]]
    report.examples = len(part)
    return Path(f"generated-{task.name}"), part


def print_scores(console: Console, evaluation: Evaluation) -> None:
    """Print what a head makes of an evaluation."""
    console.print(evaluation.summary(), highlight=False, soft_wrap=True)
    for table in evaluation.tables():
        console.print(f"\n{table.title}", highlight=False, soft_wrap=True)
        grid = Grid()
        for place, name in enumerate(table.header):
            grid.add_column(Text(name), justify="right" if place or name else "left")
        for row in table.rows:
            grid.add_row(*map(Text, row))
        console.print(grid)
