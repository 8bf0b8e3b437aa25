"""Small training runs for tests."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gumbeltree.config import Recipe, load_recipe, with_settings

SMALL = (
    "data.generate=280",
    "max_words=6",
    "dev_fraction=0.3",
    "test_fraction=0.2",
    "embedding.dropout=0.1",
    "head.dropout=0.1",
    "optimizer=adam",
    "evaluation_steps=1",
    "learning_rate=0.05",
    "clip=5.0",
    "patience=10",
    "stop_after=0",
    "embedding_dim=8",
    "encoder.hidden_dim=8",
    "head.hidden_dim=8",
    "batch_size=20",
    "epochs=2",
    "evaluations=3",
    "checkpoint_seconds=0",
)
"""Settings of a run that takes a fraction of a second."""


def small(*settings: str, name: str = "demo") -> Recipe:
    """Return a recipe with the settings of a small run, then `settings`."""
    return with_settings(load_recipe(name), [*SMALL, *settings])


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the evaluations that a run recorded."""
    text = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def contents(folder: Path) -> dict[str, Any]:
    """Return everything that two identical runs have in common."""
    folder = Path(folder)
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    del result["seconds"]
    lines = metrics(folder)
    for line in lines:
        del line["seconds"]
    model = {path.name: path.read_bytes() for path in (folder / "model").iterdir()}
    assert sorted(model) == ["config.json", "model.safetensors", "tokenizer.json"]
    return {"result": result, "metrics": lines, **model}


def table(
    path: Path, label: Callable[[list[str]], object], rows: int = 300, words: int = 9
) -> Path:
    """Write a table of random texts, with `label(words)` in the column "class"."""
    generator = random.Random(5)
    lines = ["body,class"]
    for _ in range(rows):
        text = [f"w{generator.randrange(words)}" for _ in range(generator.randint(1, 6))]
        lines.append(f"{' '.join(text)},{label(text)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
