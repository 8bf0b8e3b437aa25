"""Add finished runs of `gumbeltree train` to benchmarks/results/runs.jsonl, one line per run.

    python benchmarks/collect_runs.py RUN_FOLDER... [--out FILE] [--exclusive] [--replace]

A folder is a run, or contains runs at any depth. `--exclusive` records that nothing else used the
machine, so that the times can be compared. Where `train_all.py` has evaluated a run on further
files, their accuracies are added. `python benchmarks/write_results.py` then updates
docs/results.md, and `python benchmarks/write_generalise.py` docs/generalise.md, whose runs are in
results/generalise.jsonl.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from gumbeltree.atomic import replace_file
from gumbeltree.config import ModelConfig, Recipe, load_recipe, recipe_names
from gumbeltree.describe import count_parameters
from gumbeltree.migrate import current_model, current_recipe, first_encoder
from gumbeltree.settings import from_dict

RUNS = Path(__file__).parent / "results" / "runs.jsonl"
IGNORED = ("description", "training.seed", "training.checkpoint_seconds")
"""Settings that do not distinguish experiments."""
SCORES = (
    *(f"{x}_{y}" for y in ("accuracy", "binary_accuracy") for x in ("dev", "test")),
    "dev_loss",
)
DRAWN_EVALUATIONS = 20
"""Curves with more evaluations per epoch are not recorded."""


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one, with dotted keys."""
    rows: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            rows |= flat(value, f"{prefix}{key}.")
        else:
            rows[prefix + key] = list(value) if isinstance(value, tuple) else value
    return rows


def settings(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return all settings of a recipe by dotted key, under the names that `--set` accepts.

    The encoder has the flat form of version 1, where `trees` and `leaf` are single settings.
    """
    tables = dataclasses.asdict(from_dict(Recipe, current_recipe(recipe)))
    tables["model"]["encoder"] = first_encoder(tables["model"]["encoder"])
    return flat(tables)


def changes(recipe: dict[str, Any], base: dict[str, Any]) -> list[str]:
    """Return the `--set` values that turn the recipe `base` into `recipe`."""
    ours, theirs = settings(recipe), settings(base)
    if theirs.get("model.head.labels") == ["?"]:
        # placeholder for the labels of the data
        theirs["model.head.labels"] = ours.get("model.head.labels")
    changed = {
        key: value
        for key, value in sorted(ours.items())
        if key not in IGNORED and value != theirs.get(key)
    }
    return [
        f"{short_key(key, ours)}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in changed.items()
    ]


def short_key(key: str, keys: dict[str, Any]) -> str:
    """Return the shortest unambiguous end of a dotted key, which is what `--set` needs."""
    parts = key.split(".")
    ends = (".".join(parts[start:]) for start in range(len(parts) - 1, -1, -1))
    return next(end for end in ends if sum(f".{other}".endswith(f".{end}") for other in keys) == 1)


def packaged(name: str) -> dict[str, Any]:
    return dataclasses.asdict(load_recipe(name))


def identify(name: str, recipe: dict[str, Any]) -> tuple[str, list[str]]:
    """Return the packaged recipe that a run used and its changes.

    A changed recipe that equals another packaged one counts as that one.
    """
    if name not in recipe_names():
        raise ValueError(f"recipe {name!r} is not a packaged one; collect runs of packaged recipes")
    changed = changes(recipe, packaged(name))
    for other in recipe_names() if changed else ():
        if not changes(recipe, packaged(other)):
            return other, []
    return name, changed


def find_runs(folder: Path) -> list[Path]:
    """Return the folders of runs in `folder`, itself included."""
    runs = sorted(path.parent for path in folder.rglob("metrics.jsonl"))
    if not runs:
        raise ValueError(f"{folder} contains no run of `gumbeltree train`")
    return runs


def read_run(folder: Path, exclusive: bool = False) -> dict[str, Any]:
    """Return the record of a finished run for runs.jsonl."""
    if not (folder / "result.json").is_file():
        raise ValueError(f"{folder} is not finished; finish it with `gumbeltree train --resume`")
    asked, result, config = (
        json.loads((folder / name).read_text(encoding="utf-8"))
        for name in ("settings.json", "result.json", "model/config.json")
    )
    if asked.get("init_digest"):
        raise ValueError(f"{folder} started from another model (--init); no recipe reproduces it")
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    metrics = [json.loads(line) for line in lines]
    best = next(line for line in metrics if line["epoch"] == result["best_epoch"])
    recipe, data = asked["recipe"], config["provenance"]["data"]
    name, changed = identify(asked["recipe_name"], recipe)
    model = from_dict(ModelConfig, current_model(recipe["model"]), "model")
    parameters = {"trained": count_parameters(model)["total"]}
    if model.embedding.tuned:
        # <pad> and <unk> have rows of their own
        words = data["vocabulary"]["training"] + data["vocabulary"]["extra"] + 2
        parameters["word_vectors"] = words * model.encoder.embedding_dim
    run = {
        "recipe": name,
        "set": changed,
        "seed": result["seed"],
        **{key: result[key] for key in SCORES if key in result},
        "best_epoch": best["epoch"],
        "best_step": best["step"],
        "best_seconds": float(f"{best['seconds']:.6g}"),
        "steps": result["steps"],
        "seconds": result["seconds"],
        "exclusive": exclusive,
        "code": [known_commit(code) for code in result.get("code", [])],
        "machine": result.get("machine"),
        "versions": result.get("versions"),
        "parameters": parameters,
        "data": {
            "digest": data["digest"],
            "examples": {split: about["examples"] for split, about in data["splits"].items()},
            "vectors": data["vectors"],
        },
    }
    evaluated = folder.with_name(f"{folder.name}.json")
    if evaluated.is_file():
        found = json.loads(evaluated.read_text(encoding="utf-8"))
        run["tests"] = {
            Path(x["file"]).stem: {key: x[key] for key in ("examples", "mean_words", "accuracy")}
            for x in (found if isinstance(found, list) else [found])
        }
    dense = recipe["training"]["evaluations"] > DRAWN_EVALUATIONS
    if (
        recipe["data"]["task"] == "snli"
        and not dense
        and all(x[:11] == "batch_size=" for x in changed)
    ):
        # only these are drawn
        run["curve"] = {
            "epoch": [round(line["epoch"], 3) for line in metrics],
            "dev_accuracy": [round(line["dev_accuracy"], 4) for line in metrics],
        }
        if exclusive:
            run["curve"]["seconds"] = [round(line["seconds"], 2) for line in metrics]
    return run


def known_commit(code: dict[str, Any]) -> dict[str, Any]:
    """Return the code of a run, with the commit looked up by its source digest if necessary."""
    if not code["clean"] and (commit := commits_by_source().get(code["source"])):
        return code | {"commit": commit, "clean": True}
    return code


@cache
def commits_by_source() -> dict[str, str]:
    """Return the newest commit with each version of the package, by the digest of its files."""

    def git(*arguments: str) -> list[str]:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True).stdout.split()

    commits = git("log", "--reverse", "--format=%H", "--", "../src/gumbeltree")
    sources = git("rev-parse", *(f"{commit}:src/gumbeltree" for commit in commits))
    return dict(zip(sources, commits, strict=False))


def read_runs(path: Path = RUNS) -> list[dict[str, Any]]:
    """Read the collected runs."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def collect(
    folders: list[Path], out: Path = RUNS, exclusive: bool = False, replace: bool = False
) -> list[str]:
    """Add runs to the file, all or none; return the name of each."""

    def name(run: dict[str, Any]) -> str:
        return " ".join([run["recipe"], *run["set"], f"seed={run['seed']}"])

    known = {name(run): run for run in read_runs(out)}
    new: dict[str, dict[str, Any]] = {}
    for folder in (run for given in folders for run in find_runs(given)):
        run = read_run(folder, exclusive)
        if name(run) in new or (not replace and known.get(name(run), run) != run):
            raise ValueError(f"{folder}: there is another run of {name(run)}; pass --replace")
        new[name(run)] = run
    rows = sorted((known | new).values(), key=lambda run: (run["recipe"], run["set"], run["seed"]))
    text = "".join(json.dumps(run, separators=(",", ":")) + "\n" for run in rows)
    replace_file(out, lambda part: part.write_text(text, encoding="utf-8"))
    return list(new)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN_FOLDER")
    parser.add_argument("--out", type=Path, default=RUNS, help="file of the collected runs")
    parser.add_argument("--exclusive", action="store_true", help="the machine was not shared")
    parser.add_argument("--replace", action="store_true", help="replace runs already in the file")
    arguments = parser.parse_args()
    try:
        names = collect(**vars(arguments))
    except (OSError, ValueError) as error:
        sys.exit(f"collect_runs: error: {error}")
    print("\n".join(names))


if __name__ == "__main__":
    main()
