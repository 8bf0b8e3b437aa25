"""Compare the NumPy runtime with torch on one thread: time per text and texts per second.

    python benchmarks/light.py                 # the packaged models
    python benchmarks/light.py runs/mine       # a model of your own
    python benchmarks/light.py --encoders      # random weights, every encoder, 100D and 300D

Both runtimes read the same texts, which consist of random words, and the script first checks that
their answers agree. Rounds alternate between the runtimes, so other work on the machine slows down
both, and the script reports the best round of each. Times include tokenization.
"""

# ruff: noqa: E402
import os

# before NumPy and torch are imported
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ[f"{library}_NUM_THREADS"] = "1"

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gumbeltree
from gumbeltree.text_model import TextModel

ENCODERS: list[dict[str, Any]] = [
    {"kind": "gumbel_tree"},
    {"kind": "gumbel_tree", "leaf": "affine"},
    {"kind": "gumbel_tree", "leaf": "bilstm"},
    {"kind": "gumbel_tree", "attention": True},
    {"kind": "fixed_tree", "trees": "balanced"},
    {"kind": "lstm"},
    {"kind": "bag"},
]


def random_texts(model: TextModel, count: int, mean: int, spread: int) -> list[str]:
    """Return texts of random words of the model, their lengths from a normal distribution."""
    chance = np.random.default_rng(0)
    words = sorted(word for word in model.tokenizer.get_vocab() if word.isalpha())
    lengths = chance.normal(mean, spread, count).round().astype(int).clip(2, 3 * mean)
    return [" ".join(chance.choice(words, length)) for length in lengths]


def inputs(model: TextModel, texts: list[str]) -> list[Any]:
    """Return what `predict` takes: texts or pairs of texts."""
    pairs = list(zip(texts, reversed(texts), strict=True))
    return texts if model.head.sentences == 1 else pairs


def check(model: TextModel, light: TextModel, texts: list[str]) -> str:
    """Return the largest differences; raise if they are too large, or if trees differ."""
    vectors = float(np.abs(model.encode(texts) - light.encode(texts)).max())
    examples = inputs(model, texts)
    answers = [[_numbers(a) for a in m.predict(examples)] for m in (model, light)]
    probabilities = float(np.abs(np.subtract(*answers)).max())
    differ = 0
    if model.encoder.builds_trees:
        trees = zip(model.parse_many(texts), light.parse_many(texts), strict=True)
        differ = sum(one != other for one, other in trees)
    if max(vectors, probabilities) > 1e-5 or differ:
        raise SystemExit(f"differences: {vectors=:.1e} {probabilities=:.1e} trees={differ}")
    return f"vectors {vectors:.0e}, probabilities {probabilities:.0e}, all trees equal"


def _numbers(answer: Any) -> list[float]:
    """Return the probabilities of a prediction, or the number that it predicts."""
    shares = getattr(answer, "probabilities", None)
    return [answer.value] if shares is None else [*shares.values()]


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measure(title: str, name: str | Path, count: int, words: int, rounds: int) -> None:
    """Print the times of both runtimes for one model."""
    models = {runtime: gumbeltree.load(name, runtime=runtime) for runtime in ("torch", "numpy")}
    model, light = models.values()
    texts = random_texts(model, count, words, words // 2)
    differences = check(model, light, texts[:500])
    ones = inputs(model, random_texts(model, 50, words, 0))
    single: dict[str, list[float]] = {runtime: [] for runtime in models}
    bulk: dict[str, list[float]] = {runtime: [] for runtime in models}
    for _ in range(rounds):
        for runtime, model in models.items():
            times = [seconds(lambda one=one: model.predict([one])) for one in ones]  # noqa: B023
            single[runtime].append(statistics.median(times))
            bulk[runtime].append(seconds(lambda: model.encode(texts)))  # noqa: B023
    p50 = [1000 * min(times) for times in single.values()]
    rates = [len(texts) / min(times) for times in bulk.values()]
    print(f"{title}: {differences}")
    print(f"  one {'text' if model.head.sentences == 1 else 'pair'}, p50: torch {p50[0]:.2f} ms, "
          f"NumPy {p50[1]:.2f} ms, {p50[0] / p50[1]:.2f}x as fast")  # fmt: skip
    print(f"  bulk: torch {rates[0]:,.0f} texts/s, NumPy {rates[1]:,.0f} texts/s, "
          f"{rates[1] / rates[0]:.2f}x as fast", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*")
    parser.add_argument("--encoders", action="store_true", help="measure every encoder")
    parser.add_argument("--texts", type=int, default=2048, help="texts of the bulk measurement")
    parser.add_argument("--words", type=int, default=20, help="mean number of words per text")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    sizes = arguments.texts, arguments.words, arguments.rounds
    torch.set_num_threads(1)
    packaged = [model.name for model in gumbeltree.pretrained_models()]
    if not arguments.encoders:
        for name in arguments.models or packaged:
            measure(name, name, *sizes)
        return
    tokenizer = gumbeltree.load(packaged[0], runtime="numpy").tokenizer
    for width in (100, 300):
        for settings in ENCODERS:
            encoder = {"embedding_dim": width, "hidden_dim": width, **settings}
            head = gumbeltree.HeadConfig("single", ("no", "yes"), 100)
            torch.manual_seed(0)
            config = gumbeltree.ModelConfig(encoder, head)
            model = gumbeltree.SentenceModel(config, tokenizer)
            with torch.no_grad():
                # random word vectors and queries are too small to tell candidates apart
                model.embedding.weight.normal_(std=0.5)
                if settings["kind"] == "gumbel_tree":
                    model.encoder.query.normal_(std=0.5)
            with tempfile.TemporaryDirectory() as folder:
                gumbeltree.save(model, folder)
                title = " ".join([*(str(value) for value in settings.values()), f"{width}D"])
                measure(title.replace("True", "attention"), folder, *sizes)


if __name__ == "__main__":
    main()
