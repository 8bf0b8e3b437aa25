"""Models that come with the package, by name: folders in `pretrained/`, read without torch."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from gumbeltree.registry import suggest

FOLDER = Path(__file__).parent / "pretrained"
CONFIG = "config.json"


@dataclasses.dataclass(frozen=True)
class PackagedModel:
    """What is known of a model that comes with the package, from its config.json alone.

    Attributes:
        name: as `gumbeltree.load` and the commands take it.
        kind: what it classifies, "single" sentences or "pair".
        labels: names of its classes.
        task: what it was trained on; None where that is not recorded, and so for those below.
        examples: how many examples it was trained on.
        dev_accuracy: share of the development split that it gets right.
        test_accuracy: the same of the test split.
        license: identifier, as in its card.
        bytes: size of its folder.
        folder: where it lies.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    task: str | None
    examples: int | None
    dev_accuracy: float | None
    test_accuracy: float | None
    license: str | None
    bytes: int
    folder: Path

    def as_dict(self) -> dict[str, Any]:
        """Return everything, for JSON."""
        return {**dataclasses.asdict(self), "folder": str(self.folder)}


def pretrained_models() -> list[PackagedModel]:
    """Return what is known of each model that comes with the package, by name.

    Example:
        >>> for model in pretrained_models():
        ...     print(model.name, model.test_accuracy)
    """
    return [about_packaged(name) for name in packaged_names()]


def packaged_names() -> list[str]:
    """Return the names of the models that come with the package."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{CONFIG}"))


def packaged_folder(name: str) -> Path | None:
    """Return the folder of the model of that name, or None if there is none such."""
    return FOLDER / name if name in packaged_names() else None


def about_packaged(name: str) -> PackagedModel:
    """Return what is known of the packaged model of that name."""
    folder = FOLDER / name
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    head, about = config["model"]["head"], config["provenance"]
    metrics = about.get("metrics", {})
    return PackagedModel(
        name=name,
        kind=head["kind"],
        labels=tuple(head["labels"]),
        task=about.get("recipe", {}).get("data", {}).get("task"),
        examples=about.get("data", {}).get("splits", {}).get("train", {}).get("examples"),
        dev_accuracy=metrics.get("dev_accuracy"),
        test_accuracy=metrics.get("test_accuracy"),
        license=about.get("license"),
        bytes=sum(path.stat().st_size for path in folder.iterdir()),
        folder=folder,
    )


def packaged_hint(folder: Path) -> str:
    """Return which models come with the package, should one of them have been meant."""
    known, name = packaged_names(), folder.as_posix()
    if not known:
        return ""
    if name in known and folder.is_dir():
        return f"; it hides the packaged model {name}: rename it, or work in another folder"
    return f"; packaged models: {', '.join(known)}.{suggest(name, known)}"
