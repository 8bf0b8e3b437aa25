"""Count how often plain beams hold the same tree twice, in trained and in untrained models.

    python benchmarks/duplicates.py duplicates.json --model listops-64d --data test.tsv [--k 5]

Different orders of the same merges lead to the same tree, so that beams can repeat themselves;
`encoder.distinct` drops repetitions. For each range of lengths, the report has the share of beams
that repeat a better one if nothing is dropped, for the model and for the same model with random
weights. Sentences with fewer than k trees are left out.
"""

import argparse
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import torch

from gumbeltree.bench.report import environment
from gumbeltree.config import BeamTreeConfig
from gumbeltree.layout import Sentences
from gumbeltree.model import SentenceModel, load
from gumbeltree.nn.encoders.beam_tree import BeamTreeEncoder
from gumbeltree.tasks import TASKS
from gumbeltree.text.files import Report
from gumbeltree.tree import Tree

RANGES = ((2, 10), (11, 20), (21, 40), (41, 100))
"""Shortest and longest sentences of each row."""
BATCH = 50


def trees_of(model: SentenceModel, texts: list[str], k: int) -> list[set[Tree]]:
    """Return the different trees that k plain beams find for each text."""
    encoder = BeamTreeEncoder(dataclasses.replace(model.encoder.config, beams=k, distinct=False))
    encoder.load_state_dict(model.encoder.state_dict())
    encoder.eval()
    found = []
    for i in range(0, len(texts), BATCH):
        part = texts[i : i + BATCH]
        ids = [model.tokenizer.encode(text).ids for text in part]
        with torch.inference_mode():
            beams = encoder(model.embed(Sentences.of(ids))).beams
        for text, orders in zip(part, beams.order.tolist(), strict=True):
            merges = len(text.split()) - 1
            found.append({Tree(text, order[:merges]) for order in orders})
    return found


def repeated(model: SentenceModel, texts: list[str], k: int) -> float:
    """Return the share of beams that repeat a better one."""
    different = sum(len(trees) for trees in trees_of(model, texts, k))
    return 1 - different / (k * len(texts))


def untrained(model: SentenceModel) -> SentenceModel:
    """Return a model with the same settings and random weights."""
    torch.manual_seed(0)
    return SentenceModel(model.config, model.tokenizer).eval()


def report(model: SentenceModel, texts: list[str], k: int, limit: int) -> list[dict[str, Any]]:
    """Return the shares for each range of lengths."""
    rows = []
    other = untrained(model)
    for low, high in RANGES:
        # a sentence of n words has Catalan(n - 1) trees
        fit = [
            text
            for text in texts
            if low <= (n := len(text.split())) <= high and math.comb(2 * n - 2, n - 1) // n >= k
        ][:limit]
        if not fit:
            continue
        shares = {"trained": repeated(model, fit, k), "random": repeated(other, fit, k)}
        rows.append({"words": [low, high], "texts": len(fit), **shares})
        print(f"{low} to {high} words: {shares}", flush=True)
    return rows


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("json", type=Path, help="JSON file for all figures")
    parser.add_argument("--model", default="listops-64d", help="model with beams")
    parser.add_argument("--data", type=Path, required=True, help="file of the model's task")
    parser.add_argument("--task", default="listops", help="task that reads the file")
    parser.add_argument("--k", type=int, default=5, help="number of beams")
    parser.add_argument("--limit", type=int, default=200, help="texts per range of lengths")
    given = parser.parse_args()
    model = load(given.model, "cpu")
    if not isinstance(model.config.encoder, BeamTreeConfig):
        parser.error(f"{given.model} has no beams; pass a model with encoder.kind=beam_tree")
    examples = TASKS[given.task]().read(given.data, "test", Report())
    texts = [text for example in examples for text in example.texts]
    rows = report(model, texts, given.k, given.limit)
    found = {**environment(), "model": given.model, "beams": given.k, "rows": rows}
    given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
