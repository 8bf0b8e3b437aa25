"""Measure the recipe `text` on small tables, next to TF-IDF with logistic regression.

    python benchmarks/small_tables.py --data FOLDER [--out FILE]

FOLDER is that of `own_text.py`. A table consists of random rows of the training split of MR or
TREC; one tenth of them selects the best model, as for any table. The accuracy is measured on the
development split, which selects nothing here: the test splits are kept for `own_text.py`. `every`
evaluates twice per epoch however short it is, as the recipe did before `evaluation_steps`, and
trains for at most 16 epochs.
"""

import argparse
import csv
import itertools
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from own_text import CS, Data, read_set

from gumbeltree import load
from gumbeltree.config import load_recipe, with_settings
from gumbeltree.data.compile import prepare
from gumbeltree.evaluation import evaluate
from gumbeltree.training.loop import train

METHODS = {"text": (), "every": ("evaluation_steps=1", "epochs=16")}
"""Changes to the recipe."""


def rows_of(data: Data, count: int, seed: int) -> dict[str, list[tuple[str, str]]]:
    """Return the rows of a small table, and those to measure on, by their use."""
    train_rows = list(zip(data["train"].texts, data["train"].labels, strict=True))
    chosen = random.Random(seed).sample(train_rows, count)
    rows = {"dev": chosen[: count // 10], "train": chosen[count // 10 :]}
    known = {label for _, label in rows["train"]}
    rest = zip(data["dev"].texts, data["dev"].labels, strict=True)
    rows["measured"] = [row for row in rest if row[1] in known]
    return {name: [(text, label) for (text,), label in part] for name, part in rows.items()}


def run_recipe(rows: dict[str, list[tuple[str, str]]], changes: Any, seed: int) -> dict[str, Any]:
    """Train the recipe with changed settings."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("train", "dev"):
            with open(Path(folder, f"{name}.csv"), "w", encoding="utf-8", newline="") as out:
                csv.writer(out).writerows([("text", "label"), *rows[name]])
        settings = [f"training.seed={seed}", "test_fraction=0", "any_labels=true", *changes]
        recipe = with_settings(load_recipe("text"), settings)
        start = time.process_time()
        prepared = prepare(recipe, Path(folder))
        result = train(recipe, prepared, Path(folder, "run"), device="cpu", quiet=True)
        seconds = time.process_time() - start
        texts, labels = zip(*rows["measured"], strict=True)
        accuracy = evaluate(load(Path(folder, "run")), texts, labels).value
    return {"accuracy": accuracy, "steps": result["steps"], "seconds": seconds}


def run_tfidf(rows: dict[str, list[tuple[str, str]]]) -> dict[str, Any]:
    """Fit TF-IDF with logistic regression, as in `own_text.py`."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    start = time.process_time()
    features = TfidfVectorizer(ngram_range=(1, 2)).fit([text for text, _ in rows["train"]])
    x = {name: features.transform([text for text, _ in part]) for name, part in rows.items()}
    y = {name: [label for _, label in part] for name, part in rows.items()}
    models = [LogisticRegression(C=C, max_iter=1000).fit(x["train"], y["train"]) for C in CS]
    best = max(models, key=lambda model: model.score(x["dev"], y["dev"]))
    seconds = time.process_time() - start
    return {"accuracy": best.score(x["measured"], y["measured"]), "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("small_tables.jsonl"))
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    lines = []
    with open(given.out, "w", encoding="utf-8") as out:
        for seed, name, count in itertools.product(range(given.seeds), ("mr", "trec"), (400, 1000)):
            rows = rows_of(read_set(name, given.data), count, seed)
            for method in (*METHODS, "tfidf"):
                changes = METHODS.get(method)
                found = run_tfidf(rows) if changes is None else run_recipe(rows, changes, seed)
                lines.append({"set": name, "rows": count, "method": method, "seed": seed, **found})
                out.write(json.dumps(lines[-1]) + "\n")
                out.flush()
    for name, count, method in itertools.product(("mr", "trec"), (400, 1000), (*METHODS, "tfidf")):
        key = {"set": name, "rows": count, "method": method}
        runs = [line for line in lines if key.items() <= line.items()]
        mean = statistics.mean(run["accuracy"] for run in runs)
        cpu = statistics.mean(run["seconds"] for run in runs)
        print(f"{name:5} {count:5} {method:6} {100 * mean:5.1f} %  {cpu:5.1f} CPU s")


if __name__ == "__main__":
    main()
