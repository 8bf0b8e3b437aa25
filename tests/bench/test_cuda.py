"""`bench --device cuda`: made-up data and the report without a GPU, a quick run with one."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

from gumbeltree.bench import cuda
from gumbeltree.bench.cases import snli_lengths
from gumbeltree.bench.report import growth_report
from gumbeltree.bench.run import run
from gumbeltree.text.tokenizer import treebank_tokenizer


def console() -> Console:
    return Console(file=io.StringIO(), width=160)


def test_made_up_pairs_have_the_lengths_of_snli() -> None:
    split = cuda.snli_like(cuda.CudaSizes(examples=20_000))
    for counts, lengths in zip(map(np.array, snli_lengths()), split.lengths.T, strict=True):
        words = np.arange(len(counts))
        mean = np.average(words, weights=counts)
        deviation = np.average((words - mean) ** 2, weights=counts) ** 0.5
        assert abs(lengths.mean() - mean) < 5 * deviation / len(lengths) ** 0.5
        assert lengths.min() >= 1
    assert {*split.labels.tolist()} == {0, 1, 2}
    assert 2 <= split.words.min() <= split.words.max() < 20_000


def test_made_up_sentences_have_known_words() -> None:
    sizes = cuda.CudaSizes(sentences=400, vocabulary=300)
    texts = list(cuda.sentences(sizes))
    assert len(texts) == 400
    assert texts == list(cuda.sentences(sizes))
    words = cuda.pseudo_words(300)
    assert len(set(words)) == 300
    tokenizer = treebank_tokenizer([*words, "."], lower=True)
    unknown = tokenizer.token_to_id("<unk>")
    ids = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    assert not any(unknown in row for row in ids)
    assert 7 < np.mean([len(row) for row in ids]) < 15


def test_report_is_shown() -> None:
    time = {"median": 0.002, "p20": 0.0019, "p80": 0.0021}
    case = {"name": "training", "impl": "fused", "precision": "tf32", **time, "bytes": 2**30}
    rows = [
        {"impl": "fused", "words": n, "inference": time, "training": time, "bytes": n * 2**20}
        for n in (64, 128)
    ]
    out = console()
    cuda.show(
        {
            "machine": {"gpu": "NVIDIA H200"},
            "versions": {"torch": "2.99"},
            "quick": False,
            "correctness": {"ieee": {"same_merges": 1.0, "relative_error": 3e-7}},
            "cases": [case],
            "growth": growth_report(128, rows, "fused"),
            "bulk": {"sentences": 1_000_000, "width": 300, "seconds": 10.0, "rate": 100_000.0},
        },
        out,
    )
    text = out.file.getvalue()  # type: ignore[attr-defined]
    # memory doubles with the number of words, times are constant
    parts = ("NVIDIA H200", "100.00 %", "2.00 ms", "1,024.0 MiB", "T^0.00", "T^1.00", "100,000")
    assert all(part in text for part in parts)


@pytest.mark.gpu
def test_gpu_quick(tmp_path) -> None:
    run("cuda", tmp_path / "cuda.json", tmp_path / "growth.svg", True, console(), console())
    report = json.loads((tmp_path / "cuda.json").read_text("utf-8"))
    assert report["quick"]
    assert {case["impl"] for case in report["cases"]} == {"reference", "fused"}
    assert all(case["median"] > 0 for case in report["cases"])
    assert (tmp_path / "growth.svg").is_file()
