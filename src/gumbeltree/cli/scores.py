"""Input and output of the command `evaluate`."""

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

if TYPE_CHECKING:
    from gumbeltree.model import SentenceModel


def find_task(model: "SentenceModel", name: str | None, columns: Mapping[str, str | None]) -> Task:
    """Return the reader that the options name, by default that of the training data.

    Args:
        model: its provenance includes the settings of the training data.
        name: name of the task, from the options.
        columns: text, text2 and label, from the options; they imply a table.
    """
    trained = _data_settings(model)
    options = {key: value for key, value in columns.items() if value}
    name = name or ("table" if options else trained.get("task"))
    if not isinstance(name, str):
        raise ValueError(
            f"the model does not record its task; pass --task with one of {', '.join(TASKS)}"
        )
    if name != "table" and options:
        raise ValueError(
            f"--{next(iter(options))} names a column of a table, but --task is {name}; pass only "
            "one of them"
        )
    task = _table(model, {**trained, **options}) if name == "table" else TASKS[name]()
    # gold trees are only needed for analysis
    task.trees = False
    check_fit(model, task)
    return task


def check_fit(model: "SentenceModel", task: Task) -> None:
    """Raise unless the model can classify the examples of a task."""
    kinds = {True: "pairs", False: "single sentences"}
    pair = model.head.sentences == 2
    if pair != task.pair:
        raise ValueError(
            f"the model classifies {kinds[pair]}, but the task {task.name} has {kinds[task.pair]}; "
            "pass another model or --task"
        )
    if not set(task.labels or ()) <= set(model.labels):
        raise ValueError(
            f"the task {task.name} has the labels {', '.join(task.labels or ())}, but the model "
            f"knows {', '.join(model.labels)}; pass another model or --task"
        )


def _data_settings(model: "SentenceModel") -> dict[str, Any]:
    recipe = model.provenance.get("recipe")
    settings = recipe.get("data") if isinstance(recipe, dict) else None
    return settings if isinstance(settings, dict) else {}


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


def find_file(task: Task, data: Path, split: str | None) -> Path:
    """Return the file to evaluate on: `data` itself, or the file of a split in the folder."""
    if not data.is_dir():
        if split is not None:
            raise ValueError(
                f"--split {split} selects a file of a folder, but {data} is a file; pass only one "
                "of them"
            )
        return data
    split = split or "test"
    files = task.splits(data)
    if split not in files:
        raise FileNotFoundError(
            f"{data} has no file for the split {split}, only for {', '.join(files)}; pass one of "
            "these with --split, or a file with --data"
        )
    return files[split]


def generated(model: "SentenceModel", task: Task, split: str) -> tuple[Path, list[Example]]:
    """Generate the data of a model again and return one split of it.

    Args:
        model: its provenance records how much was generated and how it was divided.
        task: the reader.
        split: train, dev or test.
    """
    trained = _data_settings(model)
    if not hasattr(task, "generate") or not trained.get("generate"):
        raise ValueError(f"the task {task.name} reads files; pass a folder or a file with --data")
    shares = {name: trained[f"{name}_fraction"] for name in ("dev", "test")}
    shares = {"train": 1 - sum(shares.values()), **shares}
    examples = list(task.generate(trained["generate"], trained["split_seed"]))
    parts = divide(len(examples), list(shares.values()), trained["split_seed"])
    splits = {name: rows for name, rows in zip(shares, parts, strict=True) if rows}
    recorded = model.provenance.get("data", {}).get("splits", {})
    if {name: len(rows) for name, rows in splits.items()} != {
        name: counts["examples"] for name, counts in recorded.items()
    }:
        # with a test file, the rest was divided differently: training examples might come back
        raise ValueError(
            "the model was trained on files as well as on generated data, so its held-out split "
            "cannot be generated again; pass --data"
        )
    if split not in splits:
        raise ValueError(f"there is no split {split}; pass --split with one of {', '.join(splits)}")
    return Path(f"generated-{task.name}"), [examples[row] for row in splits[split]]


def print_scores(console: Console, evaluation: Evaluation) -> None:
    """Print the summary and the tables of an evaluation."""
    console.print(evaluation.summary(), highlight=False, soft_wrap=True)
    for table in evaluation.tables():
        console.print(f"\n{table.title}", highlight=False, soft_wrap=True)
        grid = Grid()
        for place, name in enumerate(table.header):
            grid.add_column(Text(name), justify="right" if place or name else "left")
        for row in table.rows:
            grid.add_row(*map(Text, row))
        console.print(grid)
