"""`gumbeltree bench --device cuda`: training steps, inference, growth, bulk encoding."""

import dataclasses
import gc
import random
import string
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.status import Status
from torch import Tensor

from gumbeltree.bench.cases import snli_lengths, snli_step
from gumbeltree.bench.report import (
    MODES,
    format_size,
    format_time,
    growth_report,
    print_growth,
    print_table,
    quantiles,
)
from gumbeltree.config import EncoderConfig, load_recipe
from gumbeltree.data.split import Split, shuffled
from gumbeltree.device.graphs import Graphs
from gumbeltree.layout import Arrangement, Layout, Sentences
from gumbeltree.model import SentenceModel
from gumbeltree.nn.encoders.gumbel_tree import GumbelTreeEncoder
from gumbeltree.noise import gumbel_noise, new_keys
from gumbeltree.states import Draw
from gumbeltree.text.tokenizer import treebank_tokenizer
from gumbeltree.training.optimizers import new_optimizer
from gumbeltree.training.start import start_fabric
from gumbeltree.training.step import CapturedStep

LIMITS = {"ieee": 1e-4, "tf32": 2e-2, "bf16": 1e-1}
"""Largest relative difference between `fused` and `exact` attributed to rounding."""


class CudaSizes(NamedTuple):
    """Sizes and repetitions of the measurements."""

    recipe: str = "snli-300d"
    wide: str = "snli-600d"
    pairs: int = 128
    examples: int = 51_200
    random_batches: int = 60
    passes: int = 5
    words: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    width: int = 128
    sentences: int = 1_000_000
    vocabulary: int = 20_000


QUICK = CudaSizes("snli-100d", "snli-100d", 4, 64, 3, 2, (16, 70), 8, 50, 100)


def measure(quick: bool, status: Status) -> dict[str, Any]:
    """Check correctness, then measure time and memory.

    Raises:
        ValueError: If `fused` differs from `exact` by more than rounding.
    """
    sizes = QUICK if quick else CudaSizes()
    status.update("checking that fused matches exact")
    report: dict[str, Any] = {"correctness": correctness()}
    status.update("timing reference")
    cases = [reference(mode, sizes) for mode in ("training", "inference")]
    for precision in ("tf32", "32", "bf16"):
        for batches in ("random", "bucketed"):
            status.update(f"timing training steps, {precision}, {batches} batches")
            cases.append(training(sizes.recipe, precision, batches, sizes))
        status.update(f"timing inference, {precision}")
        cases.append(inference(precision, sizes))
    status.update(f"timing {sizes.wide}")
    cases.append(training(sizes.wide, "tf32", "random", sizes))
    status.update("measuring growth with sentence length")
    rows = [growth(words, sizes.width) for words in sizes.words]
    status.update(f"encoding {sizes.sentences:,} sentences")
    return report | {
        "cases": cases,
        "growth": growth_report(sizes.width, rows, "fused"),
        "bulk": bulk(sizes),
    }


def correctness(config: EncoderConfig | None = None, keys: bool = False) -> dict[str, Any]:
    """Compare `fused` with `exact` at every precision: merges, and values in the same trees.

    Args:
        config: Encoder to compare; by default, that of the paper with 300D.
        keys: Whether noise comes from keys, as in training, instead of a table.

    Raises:
        ValueError: If they differ by more than rounding.
    """
    report: dict[str, Any] = {}
    torch.manual_seed(0)
    config = config or EncoderConfig(300, 300)
    state = GumbelTreeEncoder(config).state_dict()
    state["query"] = torch.randn(config.hidden_dim) * 0.3
    words = torch.randn(64, 30, config.embedding_dim).cuda()
    lengths = torch.randint(1, 31, (64,)).cuda()
    noise = gumbel_noise((64, 29, 29), device=words.device)
    if keys:
        noise = new_keys(64, device=words.device)
    # not a sum of squares: that of a normalised state is constant
    target = torch.randn(64, config.hidden_dim).cuda()
    forced: Tensor | None = None
    for precision, limit in LIMITS.items():
        torch.set_float32_matmul_precision("highest" if precision == "ieee" else "high")
        results = []
        for impl in ("exact", "fused"):
            encoder = GumbelTreeEncoder(dataclasses.replace(config, impl=impl)).cuda()
            encoder.load_state_dict(state)
            with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
                free = encoder(words, lengths, noise=noise).order
                encoding = encoder(words, lengths, noise=noise, order=forced)
            (encoding.vector.float() * target).sum().backward()
            gradients = [p.grad for p in encoder.parameters() if p.grad is not None]
            results.append((free, [encoding.vector.detach().float(), *gradients]))
            if forced is None:
                # compare all values in the trees that `exact` builds at IEEE precision
                forced = free.clamp(min=0)
        (order, expected), (other, values) = results
        same = float((order == other)[order >= 0].float().mean())
        pairs = zip(expected, values, strict=True)
        error = max(float((a - b).norm() / a.norm()) for a, b in pairs)
        report[precision] = {"same_merges": same, "relative_error": error}
        if not error < limit or (precision == "ieee" and same < 0.999):
            raise ValueError(
                f"fused differs from exact in {precision}: {report}; benchmark aborted"
            )
    return report


def snli_like(sizes: CudaSizes, lengths_of: list[list[int]] | None = None) -> Split:
    """Return pairs of random words with SNLI's sentence lengths.

    `lengths_of` replaces `snli_lengths()`.
    """
    generator = np.random.Generator(np.random.PCG64(0))
    sides = [
        generator.choice(len(counts), sizes.examples, p=np.array(counts) / sum(counts))
        for counts in lengths_of or snli_lengths()
    ]
    lengths = np.stack(sides, axis=1)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return Split(
        generator.integers(2, sizes.vocabulary, starts[-1]).astype(np.uint32),
        starts.astype(np.int64),
        np.arange(lengths.size, dtype=np.int32).reshape(lengths.shape),
        generator.integers(0, 3, sizes.examples),
    )


def setup(
    recipe: str,
    precision: str,
    batches: str,
    sizes: CudaSizes,
    lengths: list[list[int]] | None = None,
    **encoder: Any,
) -> tuple[SentenceModel, CapturedStep, list[NDArray[np.int64]]]:
    """Return a model, its training step and random or bucketed batches of synthetic pairs.

    `lengths` replaces `snli_lengths()`, `encoder` settings of the encoder.
    """
    release()
    split = snli_like(sizes, lengths)
    config = load_recipe(recipe)
    training = dataclasses.replace(config.training, precision=precision)
    words = [f"w{i}" for i in range(sizes.vocabulary - 2)]
    torch.manual_seed(0)
    parts = dataclasses.replace(config.model.encoder, **encoder)
    model = SentenceModel(
        dataclasses.replace(config.model, encoder=parts), treebank_tokenizer(words, lower=True)
    )
    fabric = start_fabric("cuda", precision)
    optimizer = new_optimizer(training, model, fabric.device)
    fabric.setup(model, optimizer)
    step = CapturedStep(fabric, model, optimizer, split, training)
    if batches == "bucketed":
        chosen = [x for x in shuffled(split, sizes.pairs, 0, 0) if len(x) == sizes.pairs]
    else:
        order = np.random.Generator(np.random.PCG64(1)).permutation(len(split))
        count = min(sizes.random_batches, len(split) // sizes.pairs)
        chosen = list(order[: count * sizes.pairs].reshape(count, sizes.pairs))
    return model, step, chosen


def release() -> None:
    """Free cached memory and reset its peak."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def passes(
    function: Callable[[NDArray[np.int64]], object], batches: list[NDArray[np.int64]], count: int
) -> dict[str, float]:
    """Return the seconds per batch of `count` passes over all batches, after two warm-up passes."""
    seconds = []
    for _ in range(count + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for rows in batches:
            function(rows)
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - start) / len(batches))
    return quantiles(seconds[2:])


def case(name: str, impl: str, precision: str, seconds: dict[str, float]) -> dict[str, Any]:
    """Return a row of the report with torch's peak reserved memory, including caches and graphs."""
    held = torch.cuda.max_memory_reserved()
    return {"name": name, "impl": impl, "precision": precision, **seconds, "bytes": held}


def training(recipe: str, precision: str, batches: str, sizes: CudaSizes) -> dict[str, Any]:
    """Time whole training steps, including head, clipping and optimizer."""
    _, step, chosen = setup(recipe, precision, batches, sizes)
    seconds = passes(lambda rows: step(rows, 0, 0), chosen, sizes.passes)
    wide = ", 600D" if recipe == "snli-600d" else ""
    return case(f"training, {batches} batches{wide}", "fused", precision, seconds)


def inference(precision: str, sizes: CudaSizes) -> dict[str, Any]:
    """Time the computation of class scores for random batches."""
    model, step, chosen = setup(sizes.recipe, precision, "random", sizes)
    model.eval()
    data, graphs = step.on_device, Graphs(step.on_device.targets.device)

    def score(rows: NDArray[np.int64]) -> None:
        bounds, numbers = data.place(rows)

        def function(numbers: Tensor) -> Tensor:
            output: Tensor = model(data.read(numbers, bounds).sentences, Draw()).output
            return output

        graphs(bounds, function, numbers)

    with torch.inference_mode(), step.fabric.autocast():
        seconds = passes(score, chosen, sizes.passes)
    return case("inference, random batches", "fused", precision, seconds)


def reference(mode: str, sizes: CudaSizes) -> dict[str, Any]:
    """Time `reference`, padded like the authors' code."""
    release()
    torch.set_float32_matmul_precision("highest")
    step = snli_step("reference", mode, sizes.recipe, sizes.pairs, 5, "cuda")
    # with the warm-up passes, each of the five batches runs twice before timing
    for _ in range(8):
        step()
    seconds = passes(lambda _: step(), [np.zeros(1, np.int64)], 5)
    return case(f"{mode}, random batches", "reference", "32", seconds)


def growth(words: int, width: int) -> dict[str, Any]:
    """Measure one sentence of `words` words."""
    release()
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    encoder = GumbelTreeEncoder(EncoderConfig(width, width)).cuda()
    embedded = torch.randn(words, width).cuda()
    keys = torch.tensor([[1, 2]]).cuda()
    temperature = torch.ones((), device=embedded.device)
    layout = Layout.of(Arrangement.of(np.array([words]), words), embedded.device)
    sentence = Sentences(embedded, layout)
    parameters = list(encoder.parameters())

    def train(_: Tensor) -> Tensor:
        encoding = encoder(sentence, draw=Draw(keys, temperature))
        return torch.autograd.grad(encoding.vector.sum(), parameters)[0]

    def infer(_: Tensor) -> Tensor:
        with torch.inference_mode():
            vector: Tensor = encoder(sentence, draw=Draw()).vector
            return vector

    row: dict[str, Any] = {"impl": "fused", "words": words}
    nothing = np.zeros(1, dtype=np.int64)
    for name, function in zip(MODES, (infer, train), strict=True):
        graphs = Graphs(embedded.device)
        # allocate library workspaces, whose size is constant, before measuring memory
        function(torch.zeros(1))
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        function(torch.zeros(1))
        if name == "training":
            row["bytes"] = torch.cuda.max_memory_allocated() - before
        row[name] = passes(lambda _: graphs(0, function, nothing), [nothing], 5)  # noqa: B023
    return row


def sentences(sizes: CudaSizes) -> Iterator[str]:
    """Yield synthetic sentences of SNLI's lengths with Zipfian word frequencies."""
    chooser = random.Random(0)
    words = pseudo_words(sizes.vocabulary)
    weights = [1 / (rank + 10) for rank in range(len(words))]
    pool = chooser.choices(words, weights, k=200_000)
    for counts in snli_lengths():
        for length in chooser.choices(range(len(counts)), counts, k=sizes.sentences // 2):
            start = chooser.randrange(len(pool) - length)
            yield " ".join(pool[start : start + max(1, length - 1)]).capitalize() + "."


def pseudo_words(count: int) -> list[str]:
    """Return distinct random words of two to nine letters."""
    chooser = random.Random(1)
    words: dict[str, None] = {}
    while len(words) < count:
        words["".join(chooser.choices(string.ascii_lowercase, k=chooser.randint(2, 9)))] = None
    return list(words)


def bulk(sizes: CudaSizes) -> dict[str, Any]:
    """Time the encoding of many sentences, from strings to vectors in memory."""
    release()
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    config = load_recipe(sizes.recipe).model
    tokenizer = treebank_tokenizer([*pseudo_words(sizes.vocabulary), "."], lower=True)
    model = SentenceModel(config, tokenizer).cuda().eval()
    texts = list(sentences(sizes))
    # compile kernels and capture graphs before timing
    model.encode(texts[: len(texts) // 20] + texts[-len(texts) // 20 :])
    start = time.perf_counter()
    vectors = model.encode(texts)
    seconds = time.perf_counter() - start
    if not np.isfinite(vectors).all():
        raise ValueError("the encoder returned NaN or infinite vectors; benchmark aborted")
    return {
        "sentences": len(texts),
        "width": config.encoder.hidden_dim,
        "seconds": seconds,
        "rate": len(texts) / seconds,
    }


def show(report: dict[str, Any], out: Console) -> None:
    """Print the figures as tables."""
    out.print(f"{report['machine']['gpu']}, torch {report['versions']['torch']}", highlight=False)
    for precision, x in report["correctness"].items():
        out.print(
            f"  {precision}: fused differs from exact by {x['relative_error']:.0e}, "
            f"{100 * x['same_merges']:.2f} % of merges are identical",
            highlight=False,
        )
    rows = [
        (
            *(x["name"], x["impl"], x["precision"]),
            *(format_time(x["median"]), format_size(x["bytes"])),
        )
        for x in report["cases"]
    ]
    title = "quick check, not a benchmark" if report["quick"] else "128 pairs with SNLI lengths"
    print_table(out, title, ("case", "implementation", "precision", "time", "memory"), rows)
    print_growth(out, report["growth"])
    bulk = report["bulk"]
    out.print(
        f"{bulk['sentences']:,} sentences from strings to {bulk['width']}D vectors: "
        f"{bulk['seconds']:.1f} s, {bulk['rate']:,.0f} sentences per second",
        highlight=False,
    )
