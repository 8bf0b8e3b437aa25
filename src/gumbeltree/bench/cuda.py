"""`gumbeltree bench --device cuda`: whole training steps, inference, growth, bulk encoding."""

import dataclasses
import gc
import json
import math
import random
import statistics
import string
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor

from gumbeltree.bench.cases import snli_step
from gumbeltree.bench.cuda_tables import show
from gumbeltree.config import EncoderConfig, Recipe, load_recipe
from gumbeltree.data.device_split import DeviceSplit
from gumbeltree.data.split import Split, shuffled
from gumbeltree.device.graphs import Graphs
from gumbeltree.layout import Arrangement, Layout, Sentences
from gumbeltree.model import SentenceModel
from gumbeltree.nn.encoders.gumbel_tree import GumbelTreeEncoder
from gumbeltree.noise import gumbel_noise
from gumbeltree.states import Draw
from gumbeltree.text.tokenizer import treebank_tokenizer
from gumbeltree.training.loop import new_optimizer
from gumbeltree.training.start import start_fabric
from gumbeltree.training.step import CapturedStep

PEAKS = {
    "H200": (494.5e12, 4.8e12),
    "H100 80GB HBM3": (494.5e12, 3.35e12),
    "A100-SXM4-80GB": (156e12, 2.04e12),
}
"""FLOP/s in TF32 without sparsity and bytes/s of memory, from NVIDIA's data sheets."""


class CudaSizes(NamedTuple):
    """How much is measured."""

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


def run(
    json_file: Path | None, plot: Path | None, quick: bool, out: Console, progress: Console
) -> None:
    """Measure everything and report it."""
    # the caller's own functions
    from gumbeltree.bench.run import draw_growth, environment, exponent

    sizes = QUICK if quick else CudaSizes()
    report: dict[str, Any] = {**environment(), "quick": quick}
    report["machine"]["gpu"] = torch.cuda.get_device_name()

    def save() -> None:
        # after each part: what was measured is kept if a later part fails
        if json_file is not None:
            json_file.parent.mkdir(parents=True, exist_ok=True)
            json_file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")

    with progress.status("checking that fused equals exact") as status:
        report["correctness"] = correctness()
        cases: list[dict[str, Any]] = []
        report["cases"] = cases

        def add(case: dict[str, Any]) -> None:
            cases.append(case)
            save()

        for mode in ("training", "inference"):
            status.update(f"timing reference, {mode}")
            add(reference(mode, sizes))
        for precision in ("tf32", "32", "bf16"):
            for batches in ("random", "bucketed"):
                status.update(f"timing training steps, {precision}, {batches} batches")
                add(training(sizes.recipe, precision, batches, sizes))
            status.update(f"timing inference, {precision}")
            add(inference(precision, sizes))
        status.update(f"timing {sizes.wide}")
        add(training(sizes.wide, "tf32", "random", sizes))
        status.update("where the time of a step goes")
        report["roofline"] = [roofline(batches, sizes) for batches in ("random", "bucketed")]
        save()
        status.update("growth with sentence length")
        rows = [growth(words, sizes.width) for words in sizes.words]
        length = [row["words"] for row in rows]
        report["growth"] = {
            "width": sizes.width,
            "rows": rows,
            "exponents": {
                "inference": exponent(length, [row["inference"]["median"] for row in rows]),
                "training": exponent(length, [row["training"]["median"] for row in rows]),
                "memory": exponent(length, [row["bytes"] for row in rows]),
            },
        }
        save()
        status.update(f"encoding {sizes.sentences:,} sentences")
        report["bulk"] = bulk(sizes)
        save()
    show(report, out)
    if plot is not None:
        draw_growth(report["growth"], plot, report["machine"]["gpu"])


def correctness() -> dict[str, Any]:
    """Compare `fused` with `exact` in IEEE float32, and in TF32 and bf16 under one order.

    Raises:
        ValueError: If they are further apart than rounding allows: then nothing is timed.
    """
    found: dict[str, Any] = {}
    torch.manual_seed(0)
    config = EncoderConfig(300, 300)
    state = GumbelTreeEncoder(config).state_dict()
    state["query"] = torch.randn(300) * 0.3
    words, lengths = torch.randn(64, 30, 300).cuda(), torch.randint(1, 31, (64,)).cuda()
    noise = gumbel_noise((64, 29, 29), device=words.device)
    limits = {"ieee": 1e-4, "tf32": 2e-2, "bf16": 1e-1}
    forced: Tensor | None = None
    for precision, limit in limits.items():
        torch.set_float32_matmul_precision("highest" if precision == "ieee" else "high")
        results = {}
        for impl in ("exact", "fused"):
            encoder = GumbelTreeEncoder(dataclasses.replace(config, impl=impl)).cuda()
            encoder.load_state_dict(state)
            with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
                free = encoder(words, lengths, noise=noise).order
                encoding = encoder(words, lengths, noise=noise, order=forced)
            (encoding.vector.float() ** 2).sum().backward()
            gradients = [p.grad for p in encoder.parameters() if p.grad is not None]
            results[impl] = free, [encoding.vector.detach().float(), *gradients]
            if forced is None:
                # all compare values in the trees of exact, IEEE
                forced = free.clamp(min=0)
        inside = results["exact"][0] >= 0
        same = (results["exact"][0] == results["fused"][0])[inside].float().mean()
        pairs = zip(results["exact"][1], results["fused"][1], strict=True)
        error = max(float((a - b).norm() / a.norm()) for a, b in pairs)
        found[precision] = {"same_merges": float(same), "relative_error": error}
        if not error < limit or (precision == "ieee" and same < 0.999):
            raise ValueError(f"fused differs from exact in {precision}: {found}: not timed")
    return found


def snli_like(sizes: CudaSizes) -> Split:
    """Return pairs of random words with SNLI's sentence lengths."""
    text = (resources.files("gumbeltree") / "bench" / "snli_lengths.json").read_text("utf-8")
    histogram = json.loads(text)
    chance = np.random.Generator(np.random.PCG64(0))
    lengths = np.stack(
        [
            chance.choice(len(counts), sizes.examples, p=np.array(counts) / sum(counts))
            for counts in (histogram["premise"], histogram["hypothesis"])
        ],
        axis=1,
    )
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return Split(
        chance.integers(2, sizes.vocabulary, starts[-1]).astype(np.uint32),
        starts.astype(np.int64),
        np.arange(lengths.size, dtype=np.int32).reshape(lengths.shape),
        chance.integers(0, 3, sizes.examples),
    )


class Measured(NamedTuple):
    """A model and what trains it, on made-up pairs."""

    model: SentenceModel
    step: CapturedStep
    batches: list[NDArray[np.int64]]


def setup(recipe: str, precision: str, batches: str, sizes: CudaSizes) -> Measured:
    """Return a model, its training step, and batches."""
    release()
    split = snli_like(sizes)
    config: Recipe = load_recipe(recipe)
    training = dataclasses.replace(config.training, precision=precision)
    words = [f"w{i}" for i in range(sizes.vocabulary - 2)]
    torch.manual_seed(0)
    model = SentenceModel(config.model, treebank_tokenizer(words, lower=True))
    fabric = start_fabric("cuda", precision)
    optimizer = new_optimizer(training, model, fabric.device)
    module, _ = fabric.setup(model, optimizer)
    step = CapturedStep(fabric, module, model, optimizer, split, training)
    if batches == "bucketed":
        chosen = [x for x in shuffled(split, sizes.pairs, 0, 0) if len(x) == sizes.pairs]
    else:
        order = np.random.Generator(np.random.PCG64(1)).permutation(len(split))
        count = min(sizes.random_batches, len(split) // sizes.pairs)
        chosen = list(order[: count * sizes.pairs].reshape(count, sizes.pairs))
    return Measured(model, step, chosen)


def release() -> None:
    """Give memory back and forget its highest level."""
    gc.collect()
    # streams' workspaces, which torch's notes on CUDA say to free so
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def passes(
    do: Callable[[NDArray[np.int64]], None], batches: list[NDArray[np.int64]], count: int
) -> dict[str, float]:
    """Return median, p20 and p80 over passes of the wall seconds a batch takes, after two."""
    seconds = []
    for number in range(count + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for rows in batches:
            do(rows)
        torch.cuda.synchronize()
        if number >= 2:
            seconds.append((time.perf_counter() - start) / len(batches))
    cuts = statistics.quantiles(seconds, n=5, method="inclusive")
    return {"median": statistics.median(seconds), "p20": cuts[0], "p80": cuts[-1]}


def training(recipe: str, precision: str, batches: str, sizes: CudaSizes) -> dict[str, Any]:
    """Time whole training steps, heads, clipping and optimizer included."""
    _, step, chosen = setup(recipe, precision, batches, sizes)
    before = torch.cuda.memory_reserved()
    seconds = passes(lambda rows: step(rows, 0, 0), chosen, sizes.passes)
    wide = ", 600D" if recipe == "snli-600d" else ""
    return {
        "name": f"training, {batches} batches{wide}",
        "impl": "fused",
        "precision": precision,
        **seconds,
        # all that torch holds: weights, optimizer, graph pools, and what it keeps for reuse
        "bytes": torch.cuda.max_memory_reserved(),
        "bytes_before": before,
        "graphs": len(step.graphs.captured),
    }


def inference(precision: str, sizes: CudaSizes) -> dict[str, Any]:
    """Time class scores of random batches."""
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
    return {
        "name": "inference, random batches",
        "impl": "fused",
        "precision": precision,
        **seconds,
        "bytes": torch.cuda.max_memory_reserved(),
    }


def reference(mode: str, sizes: CudaSizes) -> dict[str, Any]:
    """Time the plain implementation, padded as the authors' code, operation by operation."""
    release()
    torch.set_float32_matmul_precision("highest")
    step = snli_step("reference", mode, sizes.recipe, sizes.pairs, 5, "cuda")
    # all of its five batches before any is timed
    for _ in range(10):
        step()
    seconds = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    cuts = statistics.quantiles(seconds, n=5, method="inclusive")
    return {
        "name": f"{mode}, random batches",
        "impl": "reference",
        "precision": "32",
        "median": statistics.median(seconds),
        "p20": cuts[0],
        "p80": cuts[-1],
        "bytes": torch.cuda.max_memory_reserved(),
    }


def growth(words: int, width: int) -> dict[str, Any]:
    """Time and weigh one sentence of `words` words."""
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
    for name, function in (("inference", infer), ("training", train)):
        graphs = Graphs(embedded.device)
        # libraries' workspaces, which do not grow, are there before
        function(torch.zeros(1))
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        function(torch.zeros(1))
        if name == "training":
            row["bytes"] = torch.cuda.max_memory_allocated() - before
        row[name] = passes(lambda _: graphs(0, function, nothing), [nothing], 5)  # noqa: B023
    return row


def sentences(sizes: CudaSizes) -> Iterator[str]:
    """Yield made-up sentences of SNLI's lengths, frequent words more often."""
    text = (resources.files("gumbeltree") / "bench" / "snli_lengths.json").read_text("utf-8")
    histogram = json.loads(text)
    chooser = random.Random(0)
    words = pseudo_words(sizes.vocabulary)
    weights = [1 / (rank + 10) for rank in range(len(words))]
    pool = chooser.choices(words, weights, k=200_000)
    for side in ("premise", "hypothesis"):
        counts = histogram[side]
        lengths = chooser.choices(range(len(counts)), counts, k=sizes.sentences // 2)
        for length in lengths:
            start = chooser.randrange(len(pool) - length)
            yield " ".join(pool[start : start + max(1, length - 1)]).capitalize() + "."


def pseudo_words(count: int) -> list[str]:
    """Return different words of two to nine letters."""
    chooser = random.Random(1)
    words: dict[str, None] = {}
    while len(words) < count:
        words["".join(chooser.choices(string.ascii_lowercase, k=chooser.randint(2, 9)))] = None
    return list(words)


def bulk(sizes: CudaSizes) -> dict[str, Any]:
    """Encode many sentences from strings to vectors in memory."""
    release()
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    config = load_recipe(sizes.recipe).model
    tokenizer = treebank_tokenizer([*pseudo_words(sizes.vocabulary), "."], lower=True)
    model = SentenceModel(config, tokenizer).cuda().eval()
    texts = list(sentences(sizes))
    # kernels are compiled and graphs captured on some of them
    model.encode(texts[: len(texts) // 20] + texts[-len(texts) // 20 :])
    start = time.perf_counter()
    for i in range(0, len(texts), 100_000):
        model.tokenizer.encode_batch_fast(texts[i : i + 100_000])
    tokenizing = time.perf_counter() - start
    start = time.perf_counter()
    vectors = model.encode(texts)
    seconds = time.perf_counter() - start
    if not np.isfinite(vectors).all():
        raise ValueError("vectors are not finite")
    return {
        "sentences": len(texts),
        "width": config.encoder.hidden_dim,
        "seconds": seconds,
        "rate": len(texts) / seconds,
        "tokenizing_alone_seconds": tokenizing,
    }


GROUPS = {
    "merge, forward loop": ("step_kernel", "project_kernel"),
    "merge, backward loop": ("undo_kernel", "send_kernel"),
    "merge, outside its loops": (
        *("begin_kernel", "first_layer_kernel", "score_backward_kernel", "children_kernel"),
        *("roots_kernel", "find_rows_kernel"),
    ),
    "leaf LSTM, loops": ("lstm_fwd_kernel", "lstm_bwd"),
    "large products": ("gemm", "cutlass", "splitKreduce", "gemv", "nvjet"),
    "optimizer and clipping": ("multi_tensor",),
}


class Kernel(NamedTuple):
    """When a kernel ran, in microseconds, and what it is part of."""

    start: float
    end: float
    group: str


def group_of(name: str) -> str:
    """Return what a kernel is part of."""
    found = (g for g, names in GROUPS.items() if any(part in name for part in names))
    return next(found, "everything else")


def attributed(kernels: list[Kernel]) -> dict[str, float]:
    """Return the time of each group, each moment counted once.

    A moment belongs to the kernel that began first of those that run: one that was started while
    the kernel before it ran waits for it, and counts from its end.
    """
    spent: dict[str, float] = {}
    until = -math.inf
    for kernel in sorted(kernels):
        own = max(0.0, kernel.end - max(kernel.start, until))
        spent[kernel.group] = spent.get(kernel.group, 0.0) + own
        until = max(until, kernel.end)
    return spent


def roofline(batches: str, sizes: CudaSizes) -> dict[str, Any]:
    """Count the arithmetic of training steps, and see which kernels take their time."""
    from torch.profiler import ProfilerActivity, profile

    model, step, chosen = setup(sizes.recipe, "tf32", batches, sizes)
    chosen = chosen[:40]
    seconds = passes(lambda rows: step(rows, 0, 0), chosen, 3)["median"]
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
        for rows in chosen:
            step(rows, 0, 0)
        torch.cuda.synchronize()
    kernels = [
        Kernel(event.time_range.start, event.time_range.end, group_of(event.name))
        for event in profiled.events()
        if event.device_type.name == "CUDA"
    ]
    spent = {group: us * 1e-6 / len(chosen) for group, us in attributed(kernels).items()}
    counted = [work(model, step.on_device, rows) for rows in chosen]
    flops, moved = (statistics.mean(figure) for figure in zip(*counted, strict=True))
    name = torch.cuda.get_device_name()
    peak = next((figure for key, figure in PEAKS.items() if key in name), None)
    return {
        "name": f"training, {batches} batches",
        "seconds": seconds,
        "flops": flops,
        "flops_per_second": flops / seconds,
        "share_of_tf32_peak": flops / seconds / peak[0] if peak else None,
        "bytes": moved,
        "bytes_per_second": moved / seconds,
        "share_of_memory_peak": moved / seconds / peak[1] if peak else None,
        "kernel_seconds": spent,
    }


def work(model: SentenceModel, data: DeviceSplit, rows: NDArray[np.int64]) -> tuple[float, float]:
    """Return the operations of the products of one training step, and the bytes that it moves.

    A sentence of L words has 3L - 6 candidates at most; fewer if it merges at its ends. Bytes are
    those of each array once where a kernel writes it and once for each kernel that reads it, the
    weights once a step of a loop; that much of it comes from a cache does not matter here.
    """
    encoder = model.config.encoder
    D, E = encoder.hidden_dim, encoder.embedding_dim
    lstm = encoder.leaf.kind == "lstm"
    lengths = data.lengths[data.split.sentences[rows].T.reshape(-1)]
    N, merges = int(lengths.sum()), int((lengths - 1).sum())
    candidates = int(np.where(lengths > 2, 3 * lengths - 6, lengths - 1).sum())
    # per word, forward and backward: inputs (no gradient of fixed vectors) and states
    leaf = N * 2 * (2 * E * 4 * D + 3 * D * 4 * D) if lstm else N * 8 * E * D
    # a root, and a word that is one, has nothing to be merged with
    project = (N + merges - len(lengths)) * 2 * D * 10 * D
    share = candidates * 2 * 5 * D * 2 * D
    undo = merges * 2 * 5 * D * 2 * D
    weight = (candidates + merges) * 2 * 5 * D * 2 * D
    mlp = sum(p.numel() for p in model.head.parameters() if p.dim() == 2)
    flops = leaf + project + share + undo + weight + 3 * 2 * len(rows) * mlp
    # a word's vector, inputs, gates and their gradients, states twice
    words = N * (3 * E + 9 * 4 * D + 6 * 2 * D) if lstm else N * (3 * E + 6 * D)
    # products with the weights; of each candidate gates, states and what its score sends down
    forward = (N + merges) * 2 * 10 * D + candidates * (2 * 5 * D + 4 * 2 * D)
    backward = (candidates + merges) * (3 * 5 * D + 2 * 2 * D) + candidates * 4 * 2 * D
    # in a layer of n nodes each is read and written, with two shares and three states of 2D
    layers = int((lengths * (lengths + 1) // 2 - 1).sum()) * 7 * 2 * D
    steps = int(lengths.max())
    matrices = steps * (2 * 10 * D * D + (8 * D * D if lstm else 0))
    # weight, gradient and two moments: the norm, clipping, the update
    update = 10 * sum(p.numel() for p in model.parameters() if p.requires_grad)
    numbers = words + forward + backward + layers + matrices + update + 6 * mlp
    return float(flops), float(4 * numbers)
