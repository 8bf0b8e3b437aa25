"""Find labelled data that fits a model, for `evaluate` and `trees`."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gumbeltree.config import DataConfig, Recipe
from gumbeltree.data.compile import read_splits
from gumbeltree.data.examples import Examples
from gumbeltree.tasks import TASKS
from gumbeltree.tasks.task import Task

if TYPE_CHECKING:
    from gumbeltree.model import SentenceModel


def recipe_of(
    model: "SentenceModel", task: str | None, columns: Mapping[str, str | None]
) -> Recipe:
    """Return settings to read data for a model: those of its training data, overridden by options.

    Args:
        model: its provenance includes the settings of the training data.
        task: name of the task, from the options.
        columns: text, text2 and label, from the options; they imply a table.
    """
    options = {key: value for key, value in columns.items() if value}
    trained = model.data_settings
    task = task or ("table" if options else trained.get("task"))
    if task is None:
        raise ValueError(
            f"the model does not record its task; pass --task with one of {', '.join(TASKS)}"
        )
    if task != "table" and options:
        raise ValueError(
            f"--{next(iter(options))} names a column of a table, but --task is {task}; pass only "
            "one of them"
        )
    known = {field.name for field in dataclasses.fields(DataConfig)}
    settings = {key: value for key, value in trained.items() if key in known}
    return Recipe("", model.config, DataConfig(**{**settings, **options, "task": task}))


def check_fit(model: "SentenceModel", task: Task) -> None:
    """Raise unless the model reads the examples of a task and predicts its labels."""
    kinds = {True: "pairs", False: "single sentences"}
    pair = model.head.sentences == 2
    if pair != task.pair:
        raise ValueError(
            f"the model reads {kinds[pair]}, but the task {task.name} has {kinds[task.pair]}; "
            "pass another model or --task"
        )
    if task.labels and model.head.predicts == "number":
        raise ValueError(
            f"the model predicts numbers, but the task {task.name} has the labels "
            f"{', '.join(task.labels)}; pass another model or --task"
        )
    if task.labels and model.head.predicts == "similarity":
        raise ValueError(
            f"the model predicts similarities, but the task {task.name} has the labels "
            f"{', '.join(task.labels)}; pass --task snli_similarity, or --sts"
        )
    if model.head.predicts != "tags" and not set(task.labels or ()) <= set(model.labels):
        raise ValueError(
            f"the task {task.name} has the labels {', '.join(task.labels or ())}, but the model "
            f"knows {', '.join(model.labels)}; pass another model or --task"
        )


def find_file(task: Task, data: Path, split: str | None) -> Path:
    """Return the file to evaluate on: `data` itself, or the file of a split in the folder."""
    if not data.is_dir():
        if split is not None:
            raise ValueError(
                f"--split {split} selects a file of a folder, but {data} is a file; pass a "
                "folder, or omit --split"
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


def generated(model: "SentenceModel", recipe: Recipe, task: Task, split: str) -> Examples:
    """Regenerate the data of a model and return one split.

    Args:
        model: its provenance records the sizes of its splits.
        recipe: how many examples to generate and how to split them.
        task: the reader.
        split: train, dev or test.
    """
    if not hasattr(task, "generate") or not recipe.data.generate:
        raise ValueError(f"the task {task.name} reads files; pass a folder or a file with --data")
    splits = read_splits(task, recipe)
    recorded = model.provenance.get("data", {}).get("splits", {})
    if {name: len(part.rows) for name, part in splits.items()} != {
        name: counts["examples"] for name, counts in recorded.items()
    }:
        # with a test file, the rest was split differently, so training examples could reappear
        raise ValueError(
            "the model was trained on files, so its held-out split cannot be regenerated; pass "
            "--data"
        )
    if split not in splits:
        raise ValueError(f"there is no split {split}; pass --split with one of {', '.join(splits)}")
    return splits[split]
