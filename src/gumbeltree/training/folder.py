"""The folder of a training run.

settings.json      recipe, and digests of the data and of the initial model
last.checkpoint    everything needed to resume
metrics.jsonl      one line per evaluation
tensorboard/       the same metrics for TensorBoard, if it is installed
loggers.json       ids of the run in experiment trackers, if any were selected
model/             the best model so far
dev_orders.npz     its merges of the development sentences, written at the end
result.json        written last

Files are replaced atomically, so that a run killed at any moment can be resumed.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import pickle
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
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

CHANGEABLE = tuple(
    f"training.{name}" for name in ("epochs", "stop_after", "stop_halvings", "checkpoint_seconds")
)
"""Settings that a resumed run may change."""


class RunFolder:
    """The folder of a run, which only one process at a time can lock.

    Args:
        path: created on entry if it does not exist.
        settings: settings that determine the result; resuming requires the same settings.
        resume: continue an existing run instead of raising an error.
    """

    def __init__(self, path: str | Path, settings: dict[str, Any], resume: bool) -> None:
        self.path = Path(path)
        self.settings = settings
        self.resume = resume
        self._lock = FileLock(self.path / LOCK)
        self._new = False

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
        except Timeout:
            raise OSError(
                f"{self.path} is in use by another process; wait for it to end, or choose another "
                "folder with --out"
            ) from None
        except OSError as error:
            raise OSError(
                f"cannot write to {self.path} ({error}); choose another folder with --out"
            ) from error
        try:
            self._begin()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def forget(self) -> None:
        """Remove the settings of a run that could not start, so that another one can."""
        if self._new:
            (self.path / SETTINGS).unlink(missing_ok=True)

    def _begin(self) -> None:
        """Start a run, or check that the settings match the existing one; remove partial files."""
        if check_free(self.path, self.resume):
            self._compare(self._current(self.read(SETTINGS)))
        else:
            self.write(SETTINGS, self.settings)
            self._new = True
        model = self.path / MODEL
        left_over = [*self.path.glob("*.part"), *model.glob("*.part")]
        if not (model / CONFIG).exists():
            # the config is written last, so a model without one is incomplete
            left_over += [model / WEIGHTS, model / TOKENIZER]
        for path in left_over:
            path.unlink(missing_ok=True)

    def _current(self, before: dict[str, Any]) -> dict[str, Any]:
        """Return an existing run's settings in the current format."""
        version = before.setdefault("format_version", 1)
        if type(version) is not int or not 1 <= version <= FORMAT_VERSION:
            raise ValueError(
                f"{self.path / SETTINGS} has format version {version!r}, but this gumbeltree "
                f"reads versions 1 to {FORMAT_VERSION}; upgrade it to resume the run"
            )
        unfinished = self.has(CHECKPOINT) and not self.has(RESULT)
        if version == 1 and _has_fixed_trees(before) and unfinished:
            raise ValueError(
                f"{self.path} holds an unfinished run of gumbeltree 0.1.0 with fixed trees, "
                "whose checkpoint this version cannot read; finish the run with version 0.1.0, "
                "or choose another folder with --out"
            )
        try:
            recipe = from_dict(Recipe, current_recipe(before.get("recipe", {})), "recipe")
        except ValueError as error:
            raise ValueError(f"{self.path / SETTINGS}: {error}") from error
        # settings that are newer than the run have their defaults; JSON turns tuples into lists
        now = {**before, "recipe": json.loads(json.dumps(dataclasses.asdict(recipe)))}
        now["format_version"] = FORMAT_VERSION
        if now != before or "former" in before:
            # the checkpoint may still contain the digest of the earlier settings
            now["former"] = before.get("former") or _digest(before)
            self.settings = {**self.settings, "former": now["former"]}
        return now

    def has_unreadable_checkpoint(self) -> bool:
        """Return whether a finished run has a checkpoint that only version 0.1 can read."""
        if not (self.has(RESULT) and self.has(SETTINGS)):
            return False
        before = self.read(SETTINGS)
        return before.get("format_version", 1) == 1 and _has_fixed_trees(before)

    def _compare(self, before: dict[str, Any]) -> None:
        """Raise if a setting that must not change has changed."""
        old, new = dict(_flat(before)), dict(_flat(self.settings))
        special = {
            "data_digest": "its data are different; pass the original files",
            "init_digest": "it started from another model; pass the original --init",
        }
        # first what explains other differences: the encoder, then settings, then the data
        kind = "recipe.model.encoder.kind"
        for key in sorted(old.keys() | new.keys(), key=lambda x: (x in special, x != kind, x)):
            name = key.removeprefix("recipe.")
            if old.get(key) != new.get(key) and name not in (*CHANGEABLE, "format_version"):
                values = f"its `{name}` is {old.get(key)!r}, not {new.get(key)!r}"
                difference = special.get(key, f"{values}; pass the original value")
                raise ValueError(
                    f"{self.path} holds a different run: {difference}, or choose another folder "
                    "with --out"
                )

    def write(self, name: str, content: dict[str, Any]) -> None:
        """Write a JSON file."""
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        self._replace(name, lambda path: path.write_text(text, encoding="utf-8"))

    def write_arrays(self, name: str, arrays: dict[str, NDArray[Any]]) -> None:
        """Write arrays to a compressed .npz file."""
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        self._replace(name, lambda path: path.write_bytes(buffer.getbuffer()))

    def _replace(self, name: str, write: Callable[[Path], object]) -> None:
        with saving(self.path / name):
            replace_file(self.path / name, write)

    def read(self, name: str) -> dict[str, Any]:
        """Read a JSON file."""
        path = self.path / name
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(content, dict):
                raise ValueError(f"expected a JSON object, got {type(content).__name__}")
        except ValueError as error:
            raise ValueError(
                f"{path} is damaged ({error}); choose another folder with --out"
            ) from error
        return content

    def has(self, name: str) -> bool:
        """Return whether a file exists."""
        return (self.path / name).exists()

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Write a checkpoint with its length and checksum."""
        # imported on use, so that `check_free` needs no torch
        import torch

        buffer = io.BytesIO()
        torch.save({"run": _digest(self.settings), **state}, buffer)
        content = buffer.getbuffer()
        head = MAGIC + struct.pack("<QI", len(content), zlib.crc32(content))

        def write(path: Path) -> None:
            with open(path, "wb") as file:
                file.write(head)
                file.write(content)

        self._replace(CHECKPOINT, write)

    def load_checkpoint(self) -> dict[str, Any]:
        """Read the checkpoint without executing any code in it."""
        import torch

        path = self.path / CHECKPOINT
        content = path.read_bytes()
        start = len(MAGIC) + 12
        payload = content[start:]
        check = struct.pack("<QI", len(payload), zlib.crc32(payload))
        if content[:start] != MAGIC + check:
            raise ValueError(
                f"{path} is damaged or cut short ({len(content):,} bytes); restore it from a copy, "
                f"or choose another folder with --out. The best model so far is in "
                f"{self.path / MODEL}"
            )
        try:
            state: dict[str, Any] = torch.load(
                io.BytesIO(payload), map_location="cpu", weights_only=True
            )
        except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
            raise ValueError(
                f"cannot read {path} ({error}); choose another folder with --out"
            ) from error
        saved = self.read(SETTINGS)
        former = saved.get("former") or _digest(saved)
        if state.pop("run", None) not in (_digest(self.settings), former):
            raise ValueError(
                f"{path} belongs to another run than {self.path / SETTINGS}; restore the "
                "matching checkpoint, or choose another folder with --out"
            )
        return state

    def flat_settings(self) -> dict[str, Any]:
        """Return the settings of the recipe by their full names."""
        return dict(_flat(self.settings["recipe"]))

    def last_logged(self) -> int:
        """Return the step of the last line of the metrics, 0 if there is none."""
        path = self.path / METRICS
        lines = path.read_bytes().splitlines() if path.is_file() else []
        for line in reversed(lines):
            # a line can be incomplete after a power cut
            with contextlib.suppress(ValueError):
                return int(json.loads(line)["step"])
        return 0

    def cut_metrics(self, size: int) -> None:
        """Remove the metrics after the checkpoint, which the resumed run repeats."""
        path = self.path / METRICS
        if path.exists() and path.stat().st_size > size:
            os.truncate(path, size)

    def add_metrics(self, record: dict[str, Any]) -> int:
        """Append a line to the metrics; return the new file size in bytes."""
        path = self.path / METRICS
        # JSON has no NaN
        plain = {k: None if isinstance(v, float) and v != v else v for k, v in record.items()}
        with saving(path), open(path, "ab") as file:
            file.write(json.dumps(plain).encode() + b"\n")
            return file.tell()


def check_free(path: Path, resume: bool) -> bool:
    """Return whether a folder holds a run; raise for other files, or for a run without `resume`.

    Args:
        path: run folder, which need not exist.
        resume: whether an existing run may be continued.
    """
    files = path.iterdir() if path.is_dir() else ()
    names = [f.name for f in files if f.name != LOCK and not f.name.endswith(".part")]
    if names and not (path / SETTINGS).is_file():
        raise FileExistsError(
            f"{path} is not a training run (it contains {names[0]}); choose another folder with "
            "--out"
        )
    if names and not resume:
        raise FileExistsError(
            f"{path} already holds a training run; pass --resume to continue it, or choose another "
            "folder with --out"
        )
    return bool(names)


@contextlib.contextmanager
def saving(path: Path) -> Iterator[None]:
    """Turn errors in writing `path` into an OSError that says how to continue."""
    try:
        yield
    except Exception as error:
        # on a full disk, safetensors raises its own error, and tokenizers a plain Exception
        if isinstance(error, OSError | SafetensorError) or type(error) is Exception:
            raise OSError(
                f"cannot write {path} ({error}); files saved earlier are intact. Free some disk "
                "space, then continue with --resume"
            ) from error
        raise


def _has_fixed_trees(settings: dict[str, Any]) -> bool:
    """Return whether a run, in any format version, uses fixed trees."""
    encoder = settings.get("recipe", {}).get("model", {}).get("encoder", {})
    kind = encoder.get("kind", "gumbel_tree")
    learned = encoder.get("trees", "learned") == "learned"
    return kind == "fixed_tree" or (kind == "gumbel_tree" and not learned)


def _digest(settings: dict[str, Any]) -> str:
    """Return a digest of the settings that a resumed run must not change."""
    left_out = (*CHANGEABLE, "format_version", "former")
    rows = [row for row in _flat(settings) if row[0].removeprefix("recipe.") not in left_out]
    return hashlib.sha256(json.dumps(sorted(rows)).encode()).hexdigest()[:32]


def _flat(data: dict[str, Any], path: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in data.items():
        rows += _flat(value, f"{path}{key}.") if isinstance(value, dict) else [(path + key, value)]
    return rows
