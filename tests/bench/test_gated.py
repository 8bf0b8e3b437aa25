"""benchmarks/gated.py: its batches, and a quick run on a GPU."""

import numpy as np
import pytest
from benchmarks import gated


def test_batches_have_equal_lengths() -> None:
    lengths = gated.listops_lengths(128)
    assert 26.5 < lengths.mean() < 27.5
    assert 1 <= lengths.min() < 3
    assert 90 < lengths.max() <= 100
    split = gated.split_of(lengths.tolist())
    assert len(split) == gated.BATCHES * 128
    for batch in split.lengths[:, 0].reshape(gated.BATCHES, -1):
        assert np.array_equal(batch, lengths)
    assert 2 <= split.words.min() <= split.words.max() < gated.VOCABULARY


@pytest.mark.gpu
def test_gpu_quick() -> None:
    report = gated.measure(quick=True)
    assert {*report["correctness"]} == {"ieee", "tf32", "bf16"}
    found = {(row["way"], row["precision"]) for row in report["cases"]}
    assert {("exact", "tf32"), ("eager", "tf32"), ("captured", "32")} < found
    for name in {row["case"] for row in report["cases"]}:
        rows = [row for row in report["cases"] if row["case"] == name and row["way"] != "exact"]
        # these take the same number of steps
        losses = [row["loss"] for row in rows]
        assert max(losses) - min(losses) < 0.05 * losses[0]
