"""Captured steps in two processes that communicate with Gloo equal those of one process.

On a CPU nothing is captured, and the kernels run in Triton's interpreter. This module is also the
program of the processes: see `main`.
"""

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric

from gumbeltree import layout
from gumbeltree.config import load_recipe, with_settings
from gumbeltree.data.compile import prepare
from gumbeltree.training import loop
from gumbeltree.training.start import leave_processes, start_fabric
from gumbeltree.training.step import CapturedStep
from tests.models import tiny_model
from tests.runs import contents
from tests.training import test_step
from tests.training.test_processes import SAME, assert_same, end_of, start_module
from tests.training.test_step import (
    FEW_SPARE_ROWS,
    GPU_BATCHES,
    Update,
    adam,
    cuda_steps,
    fused_adam,
    interpreted,
    split_of,
)

PPO = {"kind": "ppo", "baseline": "nvil", "updates": 2, "critic_dim": 4}
RLOO = {"kind": "reinforce", "baseline": "rloo", "samples": 2, "scaled": True}
CASES = {
    "clipped": {"leaf": "lstm", "clip": 0.05},
    "clipped in the optimizer": {"trees": "left", "clip": 0.05, "optimizer": fused_adam},
    "grouped": {"kind": "pair", "trees": "balanced", "optimizer": adam},
    "critic": {"encoder": "parser_composer", "leaf": "affine", "estimator": PPO},
    "several trees": {"leaf": "affine", "estimator": RLOO},
}
# shares of different sizes, of none, and of single words in one process only
BATCHES = [np.array([0, 1, 2]), np.array([5]), np.array([2, 3, 0, 1])]
GPU_CASES = {
    "sgd": {"optimizer": "sgd"},
    "adam": {"optimizer": "adam"},
    "uneven": {"optimizer": "sgd", "batches": [np.arange(7), np.arange(1), np.arange(64)] * 3},
    "critic": {"encoder": "parser_composer", "estimator": PPO, "optimizer": "sgd"},
    "several trees": {"estimator": RLOO, "optimizer": "sgd"},
}
RUN = ("data.generate=40", "max_words=3", "batch_size=7", "optimizer=sgd", "learning_rate=0.2",
       "impl=fused")  # fmt: skip
STEPS = 8


def use_few_spare_rows():
    for name, rounded in FEW_SPARE_ROWS.items():
        setattr(layout, name, rounded)


@pytest.fixture(autouse=True)
def _restored(monkeypatch):
    monkeypatch.setattr(loop, "why_not_captured", loop.why_not_captured)
    for name in FEW_SPARE_ROWS:
        monkeypatch.setattr(layout, name, getattr(layout, name))


def trained(fabric, name):
    """Return the weights, sums and statistics after a few steps in float64."""
    settings = CASES[name]
    split = split_of(2 if settings.get("kind") == "pair" else 1, lengths=(1, 3, 2, 3, 1, 2, 1, 2))
    update = Update(True, split=split, batch_norm=False, fabric=fabric, **settings)
    update.model.head.grouped = name == "grouped"
    for number, rows in enumerate(BATCHES):
        update(rows, epoch=number // 2)
    step, policy = update.step, update.step.policy
    if fabric.world_size > 1:
        torch.distributed.all_reduce(step.loss)
    critic = policy.critic.state_dict() if policy.critic is not None else {}
    return {**update.state, **critic, "loss": step.loss, "norm": step.norm, "sums": policy.sums}


def gpu_trained(name):
    """Return the losses and norms of steps on the device, the weights, and the parts of graphs."""
    settings = {"batches": GPU_BATCHES, **GPU_CASES[name]}
    sums, state, step = cuda_steps(True, batch_norm=False, **settings)
    sums = torch.from_numpy(sums)
    if step.fabric.world_size > 1:
        losses = sums[:, 0].contiguous()
        torch.distributed.all_reduce(losses)
        sums[:, 0] = losses
    return sums, state, [len(x.parts) for x in step.graphs.captured.values()]


def run(folder, device, kill_at=0):
    """Train or resume a small run; kill the process after a step if `kill_at` is not 0."""
    if device == "cpu":
        loop.why_not_captured = lambda *_: None
        use_few_spare_rows()
    recipe = with_settings(load_recipe("demo"), [*SAME, *RUN])

    def on_step(step):
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    loop.train(
        recipe, prepare(recipe), folder, device=device, resume=True, quiet=True, on_step=on_step
    )


def main(what, folder, device="cpu", kill_at="0"):
    """Do the part of one of several processes."""
    if what == "run":
        run(folder, device, int(kill_at))
        leave_processes()
        return
    fabric = start_fabric(device, "32")

    def model(*args, **kwargs):
        # the weights of the first process count
        new = tiny_model(*args, **kwargs)
        for p in new.parameters():
            p.data.add_(fabric.global_rank)
        return new

    test_step.tiny_model = model
    if device == "cpu":
        use_few_spare_rows()
        found = {name: trained(fabric, name) for name in CASES}
    else:
        found = {name: gpu_trained(name) for name in GPU_CASES}
    torch.save(found, Path(folder) / f"{fabric.global_rank}.pt")
    leave_processes()


def two_processes(*arguments):
    return end_of(start_module("tests.training.test_shared_steps", *arguments))


def results_of_two(folder, device):
    ended = two_processes("steps", folder, device)
    assert ended.code == 0, ended
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@interpreted
def test_two_processes_equal_one(tmp_path):
    use_few_spare_rows()
    first, second = results_of_two(tmp_path, "cpu")
    for name, settings in CASES.items():
        # the optimizers of torch round to float32, as the learning rate does
        tolerance = 1e-6 if "optimizer" in settings or "estimator" in settings else 1e-9
        for key, x in trained(Fabric(accelerator="cpu", devices=1), name).items():
            assert torch.equal(first[name][key], second[name][key]), (name, key)
            torch.testing.assert_close(
                first[name][key], x, rtol=tolerance, atol=tolerance, msg=f"{name}: {key}"
            )


def test_the_second_stream_ends_before_the_graph():
    events = []
    step = object.__new__(CapturedStep)
    step.overlap = SimpleNamespace(finish=lambda: events.append("finish"))
    step.graphs = SimpleNamespace(outside=lambda work: work())
    step._outside(lambda: events.append("work"))
    assert events == ["finish", "work"]


@pytest.mark.gpu
def test_gpu_two_processes_on_one_device_equal_one(tmp_path):
    shared, other = results_of_two(tmp_path, "cuda")
    for name in GPU_CASES:
        (sums, state, parts), (_, same, _) = shared[name], other[name]
        alone, expected, whole = gpu_trained(name)
        # one graph per shape in one process; in two, graphs and the exchanges between them
        assert set(whole) == {1}
        assert parts
        assert all(x > 1 and x % 2 for x in parts), parts
        torch.testing.assert_close(sums[0], alone[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(sums[:, 0], alone[:, 0], rtol=1e-3, atol=1e-3)
        for key, x in expected.items():
            assert torch.equal(state[key], same[key]), (name, key)
            if x.is_floating_point():
                assert float((state[key] - x).norm() / x.norm()) < 3e-2, (name, key)


@pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=[pytest.mark.slow, interpreted]),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ],
)
def test_two_captured_processes_survive_a_kill(tmp_path, device):
    run(tmp_path / "one", device)
    for name in ("two", "killed"):
        # the run evaluates, and saves a checkpoint, three times per epoch
        ended = two_processes("run", tmp_path / name, device, 5 if name == "killed" else 0)
        assert (ended.code == 0) == (name == "two"), ended
    ended = two_processes("run", tmp_path / "killed", device)
    assert ended.code == 0, ended
    assert contents(tmp_path / "killed") == contents(tmp_path / "two")
    assert_same(tmp_path / "two", tmp_path / "one", STEPS, 1e-5 if device == "cpu" else 1e-4)


if __name__ == "__main__":
    main(*sys.argv[1:])
