"""The parts of `bench --device cuda` that need no CUDA device: data, counts, report."""

import io
import json
from importlib import resources

import numpy as np
import pytest
import torch
from rich.console import Console

from gumbeltree.bench import cuda
from gumbeltree.config import load_recipe
from gumbeltree.data.device_split import DeviceSplit
from gumbeltree.data.split import Split
from gumbeltree.model import SentenceModel
from gumbeltree.text.tokenizer import treebank_tokenizer, whitespace_tokenizer


def test_made_up_pairs_have_the_lengths_of_snli() -> None:
    split = cuda.snli_like(cuda.CudaSizes(examples=20_000))
    text = (resources.files("gumbeltree") / "bench" / "snli_lengths.json").read_text("utf-8")
    for column, side in enumerate(("premise", "hypothesis")):
        counts = np.array(json.loads(text)[side], dtype=float)
        words = np.arange(len(counts))
        mean = (counts * words).sum() / counts.sum()
        deviation = ((counts * (words - mean) ** 2).sum() / counts.sum()) ** 0.5
        found = split.lengths[:, column]
        assert abs(found.mean() - mean) < 5 * deviation / 20_000**0.5
        assert found.min() >= 1
        assert counts[found].all()
    assert len(split) == 20_000
    assert {*split.labels.tolist()} == {0, 1, 2}
    assert 2 <= split.words.min() <= split.words.max() < 20_000


def test_made_up_sentences() -> None:
    sizes = cuda.CudaSizes(sentences=400, vocabulary=300)
    texts = list(cuda.sentences(sizes))
    assert len(texts) == 400
    assert texts == list(cuda.sentences(sizes))
    words = cuda.pseudo_words(300)
    assert len(set(words)) == 300
    tokenizer = treebank_tokenizer([*words, "."], lower=True)
    unknown = tokenizer.token_to_id("<unk>")
    ids = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    assert all(row[-1] == tokenizer.token_to_id(".") for row in ids)
    assert not any(unknown in row for row in ids)
    assert 7 < np.mean([len(row) for row in ids]) < 15


def test_work_by_hand() -> None:
    # one pair: three words and one word
    split = Split(
        np.array([1, 2, 3, 4], np.uint32),
        np.array([0, 3, 4]),
        np.array([[0, 1]], np.int32),
        np.array([0]),
    )
    recipe = load_recipe("snli-300d")
    model = SentenceModel(recipe.model, whitespace_tokenizer(["a"]))
    D = E = 300
    words, merges, candidates = 4, 2, 3
    # W_ih x forward and its weight's gradient; W_hh h forward, back and its weight's gradient
    leaf = words * 2 * (2 * E + 3 * D) * 4 * D
    # neither root has a projection
    tree = (words + merges - 2) * 2 * D * 10 * D
    tree += (candidates + merges + candidates + merges) * 2 * 5 * D * 2 * D
    head = 3 * 2 * (4 * D * 1024 + 1024 * 3)
    flops, moved = cuda.work(model, DeviceSplit(split, torch.device("cpu")), np.array([0]))
    assert flops == leaf + tree + head
    numbers = words * (3 * E + 36 * D + 12 * D)
    numbers += (words + merges) * 20 * D + candidates * 18 * D
    numbers += (candidates + merges) * 19 * D + candidates * 8 * D
    # layers of three, two and one node: five are sent to; the word alone needs none
    numbers += 5 * 14 * D
    numbers += 3 * 28 * D * D + 10 * 2_861_547 + 6 * (4 * D * 1024 + 1024 * 3)
    assert moved == 4 * numbers


def test_each_moment_counts_once() -> None:
    kernels = [
        cuda.Kernel(10.0, 20.0, "a"),
        # started beside the first, and waits for it
        cuda.Kernel(12.0, 26.0, "b"),
        cuda.Kernel(13.0, 18.0, "c"),
        cuda.Kernel(22.0, 25.0, "c"),
        # after a pause
        cuda.Kernel(30.0, 31.0, "a"),
    ]
    expected = {"a": 11.0, "b": 6.0, "c": 0.0}
    assert cuda.attributed(kernels) == expected
    assert cuda.attributed(kernels[::-1]) == expected
    assert cuda.attributed([]) == {}
    assert cuda.group_of("void cutlass::Kernel2<...>") == "large products"
    assert cuda.group_of("step_kernel") == "merge, forward loop"
    assert cuda.group_of("vectorized_elementwise_kernel") == "everything else"


def report() -> dict[str, object]:
    time = {"median": 0.002, "p20": 0.0019, "p80": 0.0021}
    case = {"name": "training, random batches", "precision": "tf32", **time, "bytes": 2**30}
    return {
        "machine": {"gpu": "NVIDIA H200"},
        "versions": {"torch": "2.99"},
        "quick": False,
        "correctness": {"ieee": {"same_merges": 1.0, "relative_error": 3e-7}},
        "cases": [{**case, "impl": "fused"}, {**case, "impl": "reference", "name": "another"}],
        "roofline": [
            {
                "name": "training, random batches",
                "seconds": 0.002,
                "flops": 5e10,
                "flops_per_second": 2.5e13,
                "share_of_tf32_peak": 0.05,
                "bytes": 3.2e9,
                "bytes_per_second": 1.6e12,
                "share_of_memory_peak": 0.33,
                "kernel_seconds": {"large products": 0.0003, "everything else": 0.0001},
            }
        ],
        "growth": {
            "width": 128,
            "rows": [{"words": 64, "inference": time, "training": time, "bytes": 2**20}],
        },
        "bulk": {
            "sentences": 1_000_000,
            "width": 300,
            "seconds": 10.0,
            "rate": 100_000.0,
            "tokenizing_alone_seconds": 4.0,
        },
    }


def test_the_report_is_shown() -> None:
    out = Console(file=io.StringIO(), width=160)
    cuda.show(report(), out)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    for part in (
        "NVIDIA H200, torch 2.99",
        "100.00 % of merges equal",
        "2.00 ms",
        # 233 ms of the authors' code
        "103.0x",
        "1,024 MiB",
        "50.0 GFLOP in 2.00 ms, 25.0 TFLOP/s, 5.0 %",
        "3.20 GB moved, 1.60 TB/s, 33 %",
        "300 us  large products",
        "1,000,000 sentences from strings to 300D vectors: 10.0 s, 100,000 a second",
    ):
        assert part in text, part


def test_other_cards_are_not_compared_with_figures_of_one() -> None:
    for change in ({"machine": {"gpu": "NVIDIA A10"}}, {"quick": True}):
        out = Console(file=io.StringIO(), width=160)
        cuda.show({**report(), **change}, out)
        text = out.file.getvalue()  # type: ignore[attr-defined]
        assert "103.0x" not in text
        assert "206 ms" not in text


@pytest.mark.gpu
def test_gpu_quick(tmp_path) -> None:
    out = Console(file=io.StringIO(), width=160)
    cuda.run(tmp_path / "cuda.json", None, True, out, Console(file=io.StringIO()))
    found = json.loads((tmp_path / "cuda.json").read_text("utf-8"))
    assert found["quick"]
    assert {case["impl"] for case in found["cases"]} == {"reference", "fused"}
    assert all(case["median"] > 0 for case in found["cases"])
