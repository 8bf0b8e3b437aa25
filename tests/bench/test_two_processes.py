"""benchmarks/two_processes.py: what it checks, a run on a CPU and one on a GPU."""

import pytest
from benchmarks import two_processes
from benchmarks.two_processes import faults


def test_reports_faults() -> None:
    run = {"weights": 1e-6, "one": {"graphs": 2}, "two": {"graphs": 2}}
    report = {"device": "cuda", "runs": {"sgd": run}, "killed": {"same_bits": True}}
    assert not faults(report)
    run["weights"] = float("nan")
    run["two"] = {"graphs": 0}
    report["killed"] = {"same_bits": False}
    weights, captured, killed = faults(report)
    assert "the weights differ by nan" in weights
    assert "not captured" in captured
    assert "killed and resumed" in killed
    assert len(faults({**report, "device": "cpu"})) == 2


@pytest.mark.parametrize(
    "device",
    [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)],
)
def test_two_processes_equal_one(device: str) -> None:
    report = two_processes.measure(device)
    assert not faults(report)
    # the processes were killed between two of four evaluations
    assert report["killed"]["evaluations"] == 3
    assert len(report["killed"]["resumed"]["dev_loss"]) == 4
    assert all(x > 0 for x in report["seconds"].values())
    assert len(report["seconds"]) == (2 if device == "cpu" else 4)
