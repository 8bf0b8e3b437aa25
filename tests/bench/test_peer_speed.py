"""benchmarks/peer_speed.py: a quick run on a CPU and one on a GPU."""

import pytest
from benchmarks import peer_speed


def test_quick_run_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    rows = peer_speed.measure("snli-100d", "cpu", peer_speed.QUICK)
    assert [row["recipe"] for row in rows] == peer_speed.systems("snli-100d")
    assert rows[0]["ratio"] == 1
    assert not any(row["captured"] for row in rows)
    out = capsys.readouterr().out
    assert all(f"{row['recipe']} is ready after" in out for row in rows)


@pytest.mark.gpu
@pytest.mark.parametrize("base", peer_speed.BASES)
def test_gpu_quick(base: str) -> None:
    for row in peer_speed.measure(base, "cuda", peer_speed.QUICK):
        assert row["captured"], row["recipe"]
        assert row["seconds"] > 0
        assert ("exact" in row) == any(x in row["recipe"] for x in ("spinn", "latent", "cyk"))
