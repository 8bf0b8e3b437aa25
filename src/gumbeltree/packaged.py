"""Models shipped with the package in `pretrained/`; describing them does not import torch."""

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gumbeltree.registry import suggest

FOLDER = Path(__file__).parent / "pretrained"
CONFIG = "config.json"


@dataclasses.dataclass(frozen=True)
class PackagedModel:
    """Description of a packaged model, from its config.json; None where not recorded.

    Attributes:
        name: Name for `gumbeltree.load` and the commands.
        kind: Its head, such as "single", "pair" or "similarity".
        labels: Class names; empty if it does not classify.
        task: Task it was trained on.
        examples: Number of training examples.
        dev_accuracy: Accuracy on the development split, 0..1; None if it does not classify.
        test_accuracy: Accuracy on the test split, 0..1; None if it does not classify.
        measure: Name of its main metric, such as "accuracy" or "triplets".
        dev_value: That metric on the development split.
        test_value: That metric on the test split.
        license: License identifier, as in its card.
        bytes: Size of its folder.
        folder: Path of its folder.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    task: str | None
    examples: int | None
    dev_accuracy: float | None
    test_accuracy: float | None
    measure: str | None
    dev_value: float | None
    test_value: float | None
    license: str | None
    bytes: int
    folder: Path

    def as_dict(self) -> dict[str, Any]:
        """Return all fields, ready for JSON."""
        return {**dataclasses.asdict(self), "folder": str(self.folder)}


def pretrained_models() -> list[PackagedModel]:
    """Describe the models shipped with the package, sorted by name.

    Example:
        >>> for model in pretrained_models():
        ...     print(model.name, model.test_accuracy)
    """
    return [about_packaged(name) for name in packaged_names()]


def packaged_names() -> list[str]:
    """Return the names of the packaged models."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{CONFIG}"))


def packaged_folder(name: str) -> Path | None:
    """Return the folder of a packaged model, or None if no model has this name."""
    return FOLDER / name if name in packaged_names() else None


def about_packaged(name: str) -> PackagedModel:
    """Describe the packaged model with this name."""
    folder = FOLDER / name
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    head, about = config["model"]["head"], config["provenance"]
    metrics = about.get("metrics", {})
    measure, dev, test = results_of(about)
    return PackagedModel(
        name=name,
        kind=head["kind"],
        labels=tuple(head.get("labels", ())),
        task=about.get("recipe", {}).get("data", {}).get("task"),
        examples=about.get("data", {}).get("splits", {}).get("train", {}).get("examples"),
        dev_accuracy=metrics.get("dev_accuracy"),
        test_accuracy=metrics.get("test_accuracy"),
        measure=measure,
        dev_value=dev,
        test_value=test,
        license=about.get("license"),
        bytes=sum(path.stat().st_size for path in folder.iterdir()),
        folder=folder,
    )


def results_of(about: dict[str, Any]) -> tuple[str | None, float | None, float | None]:
    """Return the main metric in the provenance of a model, and its values on dev and test."""
    metrics = about.get("metrics", {})
    name = main_metric(metrics)
    return name, metrics.get(f"dev_{name}"), metrics.get(f"test_{name}")


def main_metric(metrics: Iterable[str]) -> str | None:
    """Return the metric that selected a model; the next one if that was the loss.

    Args:
        metrics: names of results such as "dev_accuracy", in the order of a result.json.
    """
    names = [key.removeprefix("dev_") for key in metrics if key.startswith("dev_")]
    return next((name for name in names if name != "loss"), names[0] if names else None)


def packaged_hint(folder: Path) -> str:
    """Return the end of an error message: the packaged models the user may have meant."""
    known, name = packaged_names(), folder.as_posix()
    if name in known and folder.is_dir():
        return f"; it shadows the packaged model {name}: rename it, or work in another folder"
    return f"; packaged models: {', '.join(known)}.{suggest(name, known)}"
