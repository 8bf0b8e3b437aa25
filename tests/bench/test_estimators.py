"""benchmarks/estimators.py: its table, its ratios, a quick run on a CPU and one on a GPU."""

import json
from pathlib import Path

import pytest
from benchmarks import estimators

from gumbeltree.nn.estimators.estimator import LocalEstimator
from gumbeltree.parts import ESTIMATORS


def test_every_local_estimator_is_measured() -> None:
    local = {name for name in ESTIMATORS if isinstance(ESTIMATORS[name](), LocalEstimator)}
    assert {settings["kind"] for settings in estimators.ESTIMATORS.values()} == local
    others = {settings["kind"] for settings in estimators.POLICIES.values()}
    assert others == {*ESTIMATORS} - local - {"soft"}


def test_ratios_compare_the_same_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(estimators.time, "perf_counter", lambda: clock[0])
    calls: list[str] = []

    def step(name: str, seconds: float) -> None:
        # every call takes longer than the one before
        clock[0] += seconds * (1 + len(calls) // 2)
        calls.append(name)

    sizes = estimators.QUICK._replace(rounds=4, warm_up=1)
    steps = {name: lambda n=name, s=s: step(n, s) for name, s in (("st_gumbel", 1.0), ("st", 3.0))}
    found = estimators.turns(steps, 2, sizes, lambda: None)
    assert found["st"]["ratio"] == 3
    assert found["st_gumbel"]["ratio"] == 1
    assert found["st_gumbel"]["median"] == 1.75
    assert calls[:4] == ["st_gumbel", "st", "st", "st_gumbel"]


def test_quick_run_on_a_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    few = {name: estimators.ESTIMATORS[name] for name in ("st_gumbel", "gumbel_rao, 10 draws")}
    monkeypatch.setattr(estimators, "ESTIMATORS", few)
    file = tmp_path / "estimators.json"
    report = estimators.measure(estimators.QUICK, ["cpu"], file)
    assert {*report["cases"]} == {"cpu"}
    for name in few:
        assert report["correctness"][name]["exact"] < 1e-10
        assert report["cases"]["cpu"][name]["ratio"] > 0
    assert json.loads(file.read_text()) == report
    assert report["quick"]


def test_a_wrong_gradient_stops_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimators, "largest_error", lambda **settings: float("nan"))
    with pytest.raises(ValueError, match="exact differs from reference by nan in float64: st_gumb"):
        estimators.checked(False, 8)


@pytest.mark.gpu
def test_gpu_quick(tmp_path: Path) -> None:
    report = estimators.measure(estimators.QUICK, ["cuda"], tmp_path / "estimators.json")
    assert {*report["cases"]} == {f"cuda, {x} batches" for x in ("random", "bucketed")}
    for rows in report["cases"].values():
        assert {*rows} == {*estimators.ESTIMATORS, *estimators.POLICIES}
        assert all(row["median"] > 0 for row in rows.values())
    for row in report["correctness"].values():
        assert {*row["fused"]} == {"ieee", "tf32", "bf16"}
