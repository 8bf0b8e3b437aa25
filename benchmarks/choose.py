"""Print the setting of each estimator with the highest development accuracy.

    python benchmarks/choose.py RUNS.jsonl

RUNS.jsonl has runs of benchmarks/plans/estimators_search.toml, collected by `collect_runs.py`. Of
each run, only recipe, settings, seed, data and development accuracy are read, never results on
test files. Runs of one estimator that differ in other settings compete; seeds are averaged. Among
equal accuracies, the setting with the fewest changes wins. Settings that all runs share, such as
the number of epochs of the search, do not belong to the choice.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from estimator_rows import Row, needed, title

KEYS = ("recipe", "set", "seed", "dev_accuracy", "data")
"""All that is read of a run."""


class Candidate(NamedTuple):
    """One setting of an estimator."""

    recipe: str
    estimator: str
    set: tuple[str, ...]
    accuracies: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean development accuracy over the seeds."""
        return statistics.fmean(self.accuracies)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a file without everything that must not influence the choice."""
    runs = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if not runs:
        raise ValueError(f"{path} contains no runs; add them with collect_runs.py")
    for run in runs:
        if missing := [key for key in KEYS if key not in run]:
            raise ValueError(f"{path}: a run of {run.get('recipe')} has no {missing[0]!r}")
    return [{key: run[key] for key in KEYS} for run in runs]


def candidates(runs: Iterable[dict[str, Any]]) -> list[Candidate]:
    """Return the settings of all runs; raise ValueError if they cannot be compared."""
    found: dict[tuple[str, tuple[str, ...]], dict[int, float]] = {}
    data: dict[str, str] = {}
    for run in runs:
        row = Row(run["recipe"], tuple(run["set"]))
        if data.setdefault(row.recipe, run["data"]["digest"]) != run["data"]["digest"]:
            raise ValueError(
                f"the runs of {row.recipe} used different data: compare them one by one"
            )
        found.setdefault((row.recipe, needed(row)), {})[run["seed"]] = run["dev_accuracy"]
    seeds = {tuple(sorted(of_seed)) for of_seed in found.values()}
    if len(seeds) > 1:
        raise ValueError(
            f"all settings need the same seeds, got {' and '.join(map(str, sorted(seeds)))}; "
            "finish the missing runs"
        )
    shared = set.intersection(*(set(changes) for _, changes in found)) if len(found) > 1 else set()
    return [
        Candidate(
            recipe,
            title(Row(recipe, changes).settings.model.encoder),
            tuple(change for change in changes if change not in shared),
            tuple(of_seed.values()),
        )
        for (recipe, changes), of_seed in found.items()
    ]


def best(found: Iterable[Candidate]) -> dict[tuple[str, str], list[Candidate]]:
    """Return the settings of each recipe and estimator, the best first."""
    groups: dict[tuple[str, str], list[Candidate]] = {}
    for each in sorted(found, key=lambda x: (-x.mean, len(x.set), x.set)):
        groups.setdefault((each.recipe, each.estimator), []).append(each)
    return groups


def lines(groups: dict[tuple[str, str], list[Candidate]]) -> list[str]:
    """Return the accuracies of all settings, and the best one as a line of a plan."""
    text = []
    for (recipe, estimator), found in sorted(groups.items()):
        text.append(f"{recipe}, {estimator}:")
        for each in found:
            text.append(f"  dev {100 * each.mean:6.2f}  {' '.join(each.set) or 'as in the recipe'}")
        text.append(f"  set = {json.dumps(list(found[0].set))}")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=Path, help="file of collected runs")
    given = parser.parse_args()
    try:
        print("\n".join(lines(best(candidates(read(given.runs))))))
    except (OSError, ValueError) as error:
        sys.exit(f"choose: error: {error}")


if __name__ == "__main__":
    main()
