"""The folder of a training run: settings, state, metrics, best model, result.

settings.json      what was asked for, and a digest of the data
last.checkpoint    everything needed to go on, written whole or not at all
metrics.jsonl      one line for each evaluation
tensorboard/       the same for TensorBoard, where it is installed
model/             the best model so far
dev_orders.npz     its merges of the development sentences, written at the end
result.json        written last of all
"""

import dataclasses
import hashlib
import io
import json
import os
import pickle
import struct
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from safetensors import SafetensorError

from gumbeltree.atomic import replace_file
from gumbeltree.config import Recipe
from gumbeltree.migrate import FORMAT_VERSION, current_recipe
from gumbeltree.settings import from_dict
from gumbeltree.store import CONFIG, TOKENIZER, WEIGHTS

SETTINGS, CHECKPOINT, METRICS = "settings.json", "last.checkpoint", "metrics.jsonl"
RESULT, ORDERS, MODEL, LOCK = "result.json", "dev_orders.npz", "model", ".lock"
MAGIC = b"gumbeltree checkpoint 1\n"

CHANGEABLE = ("training.epochs", "training.stop_after", "training.checkpoint_seconds")
"""Settings that a resumed run may change: what has been done stays what it was."""


class RunFolder:
    """A run's folder, held by one process at a time.

    Args:
        path: made if absent.
        settings: what decides the run's result; a resumed run must have the same.
        resume: go on with a run that is there; otherwise one that is there is refused.
    """

    def __init__(self, path: str | Path, settings: dict[str, Any], resume: bool) -> None:
        self.path = Path(path)
        self.settings = settings
        self.resume = resume
        self._lock = FileLock(self.path / LOCK)

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise OSError(
                f"{self.path} is in use by another process; wait for it, or name another folder"
            ) from None
        except OSError as error:
            raise OSError(
                f"{self.path} cannot be written to ({error}); name another folder with --out"
            ) from error
        try:
            self._check()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()

    def _check(self) -> None:
        there = check_free(self.path, self.resume)
        if there:
            before = self.read(SETTINGS)
            self._note_former(before)
            self._compare(before)
        self._clean()
        if not there:
            self.write(SETTINGS, self.settings)

    def _clean(self) -> None:
        """Remove what a killed process left half done."""
        for left_over in [*self.path.glob("*.part"), *(self.path / MODEL).glob("*.part")]:
            left_over.unlink()
        if not (self.path / MODEL / CONFIG).exists():
            # the first model was on its way: its last file is the one that makes it a model
            for name in (WEIGHTS, TOKENIZER):
                (self.path / MODEL / name).unlink(missing_ok=True)

    def _note_former(self, before: dict[str, Any]) -> None:
        """Bring the settings of a run that an earlier version began into today's form."""
        version = before.setdefault("format_version", 1)
        if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
            raise ValueError(
                f"{self.path / SETTINGS} has format version {version!r}, this gumbeltree reads "
                f"versions 1 to {FORMAT_VERSION}; go on with a newer one"
            )
        if version == 1:
            before["former"] = _former(before)
            before["format_version"] = FORMAT_VERSION
            if isinstance(before.get("recipe"), dict):
                try:
                    recipe = from_dict(Recipe, current_recipe(before["recipe"]), "recipe")
                except ValueError as error:
                    raise ValueError(f"{self.path / SETTINGS}: {error}") from error
                # tuples come back from JSON as lists
                before["recipe"] = json.loads(json.dumps(dataclasses.asdict(recipe)))
            if _has_fixed_trees(before) and self.has(CHECKPOINT) and not self.has(RESULT):
                raise ValueError(
                    f"{self.path} holds an unfinished run with fixed trees of gumbeltree 0.1.0, "
                    "whose state had a query vector; finish it with that version, or start anew in "
                    "another folder"
                )
        if "former" in before:
            # what the state of such a run says that it belongs to
            self.settings = {**self.settings, "former": before["former"]}

    def ended_long_ago(self) -> bool:
        """Return whether a run ended whose state only version 1 could read."""
        if not (self.has(RESULT) and self.has(SETTINGS)):
            return False
        before = self.read(SETTINGS)
        return before.get("format_version", 1) == 1 and _has_fixed_trees(before)

    def _compare(self, before: dict[str, Any]) -> None:
        old, new = dict(_flat(before)), dict(_flat(self.settings))
        for settings in (old, new):
            settings.pop("format_version", None)
        for key in sorted(old.keys() | new.keys()):
            name = key.removeprefix("recipe.")
            if old.get(key) != new.get(key) and name not in CHANGEABLE:
                what = "data" if key == "data_digest" else f"`{name}`"
                what = "model to start from (--init)" if key == "init_digest" else what
                raise ValueError(
                    f"{self.path} holds a run of another kind: its {what} is {old.get(key)!r}, now "
                    f"it is {new.get(key)!r}; give it what it was started with, or name another "
                    "folder with --out"
                )

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Write a JSON file, whole or not at all."""
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        with saving(self.path / name):
            replace_file(self.path / name, lambda path: path.write_text(text, encoding="utf-8"))

    def write_arrays(self, name: str, arrays: dict[str, NDArray[Any]]) -> None:
        """Write arrays, compressed, whole or not at all."""

        def write(path: Path) -> None:
            with open(path, "wb") as file:
                np.savez_compressed(file, **arrays)  # type: ignore[arg-type]

        with saving(self.path / name):
            replace_file(self.path / name, write)

    def read(self, name: str) -> dict[str, Any]:
        """Read a JSON file."""
        path = self.path / name
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(
                f"{path} is damaged ({error}); name another folder with --out"
            ) from error
        if not isinstance(content, dict):
            raise ValueError(f"{path} is damaged (no table); name another folder with --out")
        return content

    def has(self, name: str) -> bool:
        """Return whether a file is there."""
        return (self.path / name).exists()

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Write the state of training, whole or not at all."""
        buffer = io.BytesIO()
        torch.save({"run": self._run(), **state}, buffer)
        content = buffer.getbuffer()
        head = MAGIC + struct.pack("<QI", len(content), zlib.crc32(content))

        def write(path: Path) -> None:
            with open(path, "wb") as file:
                file.write(head)
                file.write(content)

        with saving(self.path / CHECKPOINT):
            replace_file(self.path / CHECKPOINT, write)

    def load_checkpoint(self) -> dict[str, Any]:
        """Read the state of training; no code in it is run."""
        path = self.path / CHECKPOINT
        content = path.read_bytes()
        start = len(MAGIC) + 12
        whole = False
        if content.startswith(MAGIC) and len(content) >= start:
            length, check = struct.unpack("<QI", content[len(MAGIC) : start])
            payload = content[start:]
            whole = len(payload) == length and zlib.crc32(payload) == check
        if not whole:
            raise ValueError(
                f"{path} is damaged or cut short: expected what training wrote, got "
                f"{len(content):,} bytes that do not fit together; restore it from a copy, or "
                f"start anew in another folder. The best model so far is in {self.path / MODEL}"
            )
        try:
            state: dict[str, Any] = torch.load(
                io.BytesIO(payload), map_location="cpu", weights_only=True
            )
        except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
            raise ValueError(f"{path} cannot be read ({error}); start anew") from error
        if state.pop("run", None) not in (self._run(), _former(self.read(SETTINGS))):
            raise ValueError(
                f"{path} belongs to another run than {self.path / SETTINGS}; put back its own, or "
                "start anew in another folder"
            )
        return state

    def _run(self) -> str:
        return _digest(self.settings)

    def cut_metrics(self, size: int) -> None:
        """Drop the lines that came after the state that is resumed: they will come again."""
        path = self.path / METRICS
        if path.exists() and path.stat().st_size > size:
            os.truncate(path, size)

    def add_metrics(self, line: dict[str, Any]) -> int:
        """Append a line to the metrics; return the size of the file."""
        path = self.path / METRICS
        with saving(path), open(path, "ab") as file:
            # JSON has no NaN
            plain = {k: None if isinstance(v, float) and v != v else v for k, v in line.items()}
            file.write(json.dumps(plain).encode() + b"\n")
            return file.tell()


def _has_fixed_trees(settings: dict[str, Any]) -> bool:
    """Return whether trees do not depend on words, by settings of any version."""
    encoder = settings.get("recipe", {}).get("model", {}).get("encoder", {})
    learned = encoder.get("kind", "gumbel_tree") == "gumbel_tree"
    fixed = learned and encoder.get("trees", "learned") != "learned"
    return bool(fixed or encoder.get("kind") == "fixed_tree")


def _former(settings: dict[str, Any]) -> str:
    """Return the digest that version 1 gave the settings of a run, "" if it did not begin it."""
    first = settings.get("format_version", 1) == 1
    return str(settings.get("former", _digest(settings) if first else ""))


def _digest(settings: dict[str, Any]) -> str:
    """Return a digest of the settings that a resumed run must share."""
    left_out = (*CHANGEABLE, "format_version", "former")
    rows = [row for row in _flat(settings) if row[0].removeprefix("recipe.") not in left_out]
    return hashlib.sha256(json.dumps(sorted(rows)).encode()).hexdigest()[:32]


def check_free(path: Path, resume: bool) -> bool:
    """Return whether a run is in the folder; raise if it must not be touched, or is none.

    Args:
        path: of a run's folder, which need not exist.
        resume: whether a run that is there will go on.
    """
    if not path.is_dir():
        return False
    there = [f for f in path.iterdir() if f.name != LOCK and not f.name.endswith(".part")]
    if there and not (path / SETTINGS).is_file():
        raise FileExistsError(
            f"{path} exists, holds {there[0].name} and is no training run; name another folder "
            "with --out"
        )
    if there and not resume:
        raise FileExistsError(
            f"{path} holds a training run; pass --resume to go on with it, or name another folder "
            "with --out"
        )
    return bool(there)


class saving:
    """Say what failed, and that nothing is lost, when a file cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # a full disk is an error of its own kind to safetensors, and of none to tokenizers
        if isinstance(error, OSError | SafetensorError) or type(error) is Exception:
            raise OSError(
                f"{self.path} could not be written ({error}); what was saved before is intact: "
                "make room, then go on with --resume"
            ) from error


def _flat(data: dict[str, Any], path: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in data.items():
        rows += _flat(value, f"{path}{key}.") if isinstance(value, dict) else [(path + key, value)]
    return rows
