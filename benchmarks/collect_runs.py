"""Turn finished runs of `gumbeltree train` into small records, from which the results are written.

    python benchmarks/collect_runs.py RUN_FOLDER... [--out benchmarks/results/runs] [--replace]
        [--alone]

A folder is that of a run, or one that holds such folders at any depth. Each run becomes one JSON
file, named by recipe, changed settings and seed, such as `snli-300d--trees=left--seed1.json`. Merge
orders of the development split (`dev_orders.npz`), where a run has them, are copied beside it.
With `--alone` the records say that nothing else ran on the machine, so that their times count.
Nothing is written unless every run is finished and readable.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from gumbeltree.atomic import replace_file
from gumbeltree.config import ModelConfig, Recipe, load_recipe, recipe_names
from gumbeltree.describe import count_parameters
from gumbeltree.migrate import current_model, current_recipe, first_encoder
from gumbeltree.parts import ENCODERS
from gumbeltree.settings import from_dict, part_settings

RUNS = Path(__file__).parent / "results" / "runs"
SETTINGS, METRICS, RESULT = "settings.json", "metrics.jsonl", "result.json"
CONFIG, CHECKPOINT = "model/config.json", "last.checkpoint"
ORDERS = "dev_orders.npz"

NO_OVERRIDES = ("description", "training.seed", "training.checkpoint_seconds")
"""What may differ from the packaged recipe without making another experiment of a run."""

LONGEST = 150
"""Characters of changed settings in a record's name; a digest stands for more."""


class Collected(NamedTuple):
    """A record on its way to its file."""

    folder: Path
    text: str
    orders: bytes | None


def flat(data: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Return nested tables as one, with dotted keys."""
    rows: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            rows |= flat(value, f"{path}{key}.")
        else:
            rows[path + key] = list(value) if isinstance(value, tuple) else value
    return rows


def complete(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe flat, with defaults for the settings that did not exist in its time.

    Encoders have the form of version 1, in which trees, leaf and cell are single settings of one
    encoder, so that runs of all times can be compared.
    """
    now = current_recipe(recipe)
    encoder = now.get("model", {}).get("encoder", {})
    settings = dataclasses.asdict(part_settings(ENCODERS, "gumbel_tree", encoder, "encoder"))
    plain = dataclasses.asdict(Recipe("", ModelConfig()))
    del plain["model"]["encoder"]
    found = flat(plain) | flat(now)
    found = {key: x for key, x in found.items() if not key.startswith("model.encoder.")}
    first = first_encoder(settings)
    return found | {f"model.encoder.{key}": value for key, value in first.items()}


def difference(recipe: dict[str, Any], packaged: dict[str, Any]) -> dict[str, Any]:
    """Return which settings of a recipe differ from the packaged ones, by dotted key."""
    ours, theirs = complete(recipe), complete(packaged)
    if theirs["model.head.labels"] == ["?"]:
        # these stand for the labels of the data
        theirs["model.head.labels"] = ours["model.head.labels"]
    return {
        key: value
        for key, value in sorted(ours.items())
        if key not in NO_OVERRIDES and value != theirs.get(key)
    }


def short_key(key: str) -> str:
    """Return the shortest end of a dotted key that `--set` understands."""
    keys = complete({})
    parts = key.split(".")
    for start in range(len(parts) - 1, 0, -1):
        end = ".".join(parts[start:])
        if sum(other == end or other.endswith("." + end) for other in {*keys, key}) == 1:
            return end
    return key


def setting(key: str, value: Any) -> str:
    """Return a changed setting as `--set` takes it."""
    return f"{short_key(key)}={value if isinstance(value, str) else json.dumps(value)}"


def stem(recipe: str, overrides: dict[str, Any], seed: int | None = None) -> str:
    """Return the name of a record, or of all seeds of it, without an ending."""
    names = [setting(key, value) for key, value in sorted(overrides.items())]
    changes = "--".join(re.sub(r"[^\w.=+-]+", "_", name, flags=re.ASCII) for name in names)
    if len(changes) > LONGEST:
        digest = hashlib.sha256("--".join(names).encode()).hexdigest()[:8]
        changes = f"{len(names)}-changes-{digest}"
    return "--".join(
        [recipe, *([changes] if changes else []), *([] if seed is None else [f"seed{seed}"])]
    )


def find_runs(folder: Path) -> list[Path]:
    """Return the folders of runs in `folder`, itself included."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected the folder of a run, got no folder")
    marks = {SETTINGS, METRICS, RESULT, CHECKPOINT}
    found = []
    for place, inner, files in os.walk(folder):
        inner.sort()
        if marks & set(files):
            found.append(Path(place))
            # what is inside belongs to the run
            inner.clear()
    if not found:
        raise ValueError(f"{folder}: expected a run of `gumbeltree train` in it, found none")
    return found


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds a table."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged (no table)")
    return content


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a run's evaluations."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error})") from error
    needed = ("epoch", "seconds", "dev_accuracy")
    if not lines or not all(isinstance(x, dict) and all(k in x for k in needed) for x in lines):
        raise ValueError(f"{path}: expected lines with {', '.join(needed)}, got others or none")
    return lines


def short(value: Any) -> Any:
    """Return a number with six significant digits, anything else as it is."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


def make_record(folder: Path) -> dict[str, Any]:
    """Return the record of a finished run; raise with the folder and what is wrong with it."""
    missing = [n for n in (SETTINGS, METRICS, RESULT, CONFIG) if not (folder / n).is_file()]
    if missing:
        hint = "; finish it with --resume" if missing == [RESULT] else ""
        raise ValueError(f"{folder}: expected a finished run, it lacks {', '.join(missing)}{hint}")
    settings, result = read_json(folder / SETTINGS), read_json(folder / RESULT)
    lines, config = read_metrics(folder / METRICS), read_json(folder / CONFIG)
    try:
        return _record(settings, result, lines, config["provenance"])
    except KeyError as error:
        raise ValueError(f"{folder}: expected a run of this package, it lacks {error}") from error
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error


def _record(
    settings: dict[str, Any],
    result: dict[str, Any],
    lines: list[dict[str, Any]],
    provenance: dict[str, Any],
) -> dict[str, Any]:
    name, recipe, data = settings["recipe_name"], settings["recipe"], provenance["data"]
    if name not in recipe_names():
        raise ValueError(f"its recipe {name!r} is none of the package's: nothing to compare with")
    if settings.get("init_digest"):
        raise ValueError("it started from another model (--init): no recipe gives its result")
    if settings["data_digest"] != data["digest"]:
        raise ValueError(f"{SETTINGS} and {CONFIG} are of different data")
    if result["seed"] != recipe["training"]["seed"]:
        raise ValueError(f"{SETTINGS} and {RESULT} are of different seeds")
    # the first of the highest, as training chooses
    best = max(lines, key=lambda line: line["dev_accuracy"])
    if best["epoch"] != result["best_epoch"]:
        raise ValueError(
            f"{METRICS} has its best accuracy at epoch {best['epoch']}, {RESULT} at "
            f"{result['best_epoch']}: they are of different runs"
        )
    model = from_dict(ModelConfig, current_model(recipe["model"]), "model")
    counts = {"trained": count_parameters(model)["total"]}
    if model.embedding.tuned:
        # <pad> and <unk> have rows of their own
        words = data["vocabulary"]["training"] + data["vocabulary"]["extra"] + 2
        counts["word_vectors"] = words * model.encoder.embedding_dim
    name, overrides = named(name, recipe)
    return {
        "recipe_name": name,
        "seed": result["seed"],
        "overrides": overrides,
        "code": [known_commit(code) for code in result.pop("code", [])],
        "result": result,
        "best": {"epoch": best["epoch"], "seconds": short(best["seconds"])},
        "parameters": counts,
        "data": {
            "digest": data["digest"],
            "examples": {split: about["examples"] for split, about in data["splits"].items()},
            "vectors": data["vectors"],
        },
        "recipe": recipe,
        "metrics": [{key: short(value) for key, value in line.items()} for line in lines],
    }


def known_commit(code: dict[str, Any]) -> dict[str, Any]:
    """Return which code made a run, with its commit.

    Where the run did not know its commit, or that tree was changed, it is the one whose package has
    the same digest, if there is one in this repository.
    """
    if code["clean"]:
        return code
    for commit, source in sources().items():
        if source == code["source"]:
            return {"commit": commit, "clean": True, "source": source}
    return code


@cache
def sources() -> dict[str, str]:
    """Return the digest of the package at each commit that changed it, the newest first."""

    def git(*arguments: str) -> list[str]:
        command = ["git", "-C", str(Path(__file__).parent.parent), *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stdout.splitlines()

    try:
        commits = git("log", "--format=%H", "--", "src/gumbeltree")
        return dict(
            zip(commits, git("rev-parse", *(f"{c}:src/gumbeltree" for c in commits)), strict=True)
        )
    except (OSError, subprocess.CalledProcessError):
        return {}


def named(name: str, recipe: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the recipe that a run's settings are those of, and what it changed in it.

    A recipe with changes that is another one of the package, as tuned recipes are before they have
    a name, is that one.
    """
    changed = difference(recipe, dataclasses.asdict(load_recipe(name)))
    if changed:
        for other in recipe_names():
            if not difference(recipe, dataclasses.asdict(load_recipe(other))):
                return other, {}
    return name, changed


def record_text(record: dict[str, Any]) -> str:
    """Return a record as JSON, one line for each evaluation."""
    rows = ",\n".join("  " + json.dumps(line, ensure_ascii=False) for line in record["metrics"])
    rest = {key: value for key, value in record.items() if key != "metrics"}
    head = json.dumps(rest, indent=1, ensure_ascii=False).removesuffix("\n}")
    return f'{head},\n "metrics": [\n{rows}\n ]\n}}\n'


def collect(
    folders: list[Path], out: Path, replace: bool = False, alone: bool = False
) -> list[str]:
    """Write the records of all runs in `folders`, all or none; return what was done, in lines."""
    records: dict[str, Collected] = {}
    for folder in dict.fromkeys(run.resolve() for given in folders for run in find_runs(given)):
        record = make_record(folder)
        name = stem(record["recipe_name"], record["overrides"], record["seed"])
        marked = record_text(record | {"alone": True})
        # that a run was alone is known once, not each time that it is collected
        known = alone or _read(out, f"{name}.json") == marked.encode()
        orders = folder / ORDERS
        new = Collected(
            folder,
            marked if known else record_text(record),
            orders.read_bytes() if orders.is_file() else None,
        )
        before = records.setdefault(name, new)
        if before[1:] != new[1:]:
            raise ValueError(f"{before.folder} and {folder} are both {name}; give one of them")
    there = {name: (_read(out, f"{name}.json"), _read(out, f"{name}.npz")) for name in records}
    lines = []
    for name, new in records.items():
        old_text, old_orders = there[name]
        same = old_text == new.text.encode() and old_orders == new.orders
        if old_text is not None and not same and not replace:
            raise ValueError(
                f"{out / name}.json is the record of another run than {new.folder}; pass --replace "
                "to put this one in its place"
            )
        done = "is there" if same else "new" if old_text is None else "replaced"
        lines.append(f"{name}: {done}")
    out.mkdir(parents=True, exist_ok=True)
    for name, new in records.items():
        _write(out / f"{name}.npz", new.orders)
        _write(out / f"{name}.json", new.text.encode())
    return lines


def _read(folder: Path, name: str) -> bytes | None:
    path = folder / name
    return path.read_bytes() if path.is_file() else None


def _write(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink(missing_ok=True)
    elif not path.is_file() or path.read_bytes() != content:
        replace_file(path, lambda part: part.write_bytes(content))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN_FOLDER")
    parser.add_argument("--out", type=Path, default=RUNS, help="folder of the records")
    parser.add_argument("--replace", action="store_true", help="records of other runs")
    parser.add_argument(
        "--alone", action="store_true", help="one run had the machine to itself at a time"
    )
    arguments = parser.parse_args()
    try:
        lines = collect(arguments.folders, arguments.out, arguments.replace, arguments.alone)
    except (OSError, ValueError) as error:
        sys.exit(f"collect_runs: error: {error}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
