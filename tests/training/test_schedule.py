"""Learning rates over time."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from gumbeltree.config import TrainingConfig
from gumbeltree.training.loop import train
from gumbeltree.training.schedule import Schedule
from gumbeltree.training.step import Step
from tests.runs import metrics, small
from tests.training.test_loop import accuracies
from tests.training.test_policy import check_resumed, last_state


def schedule(*rates, **settings):
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
    return Schedule(torch.optim.SGD(groups), TrainingConfig(**settings), lower=False)


def rates(made):
    return [group["lr"] for group in made.optimizer.param_groups]


def test_decays_continuously():
    made = schedule(0.5, 0.25, decay=0.75, decay_steps=100, patience=0)
    for step in (0, 1, 50, 100, 250):
        made.begin(0, step)
        assert rates(made) == pytest.approx(
            [0.5 * 0.75 ** (step / 100), 0.25 * 0.75 ** (step / 100)]
        )
    # together with the halvings of a plateau
    assert not made.evaluated(0.5)
    assert made.evaluated(0.4)
    made.begin(0, 300)
    assert rates(made) == pytest.approx([0.25 * 0.75**3, 0.125 * 0.75**3])
    assert made.halvings == 1


def test_halves_every_few_epochs():
    made = schedule(0.5, halve_every=2)
    found = []
    for epoch in range(6):
        made.begin(epoch, 10 * epoch)
        found += rates(made)
    assert found == [0.5, 0.5, 0.25, 0.25, 0.125, 0.125]


def test_is_constant_by_default():
    made = schedule(0.3)
    made.begin(7, 12345)
    assert rates(made) == [0.3]


def test_reads_the_state_of_earlier_versions():
    made = schedule(0.5, patience=0)
    made.plateau.step(0.5)
    made.plateau.step(0.4)
    older = made.plateau.state_dict()
    made.load_state_dict(older)
    made.begin(0, 3)
    assert rates(made) == [0.25]
    assert made.plateau.best == 0.5


SETTINGS = (
    *("restore=true", "patience=0", "batch_size=70", "epochs=6", "evaluations=1"),
    *("decay=0.9", "decay_steps=3", "batch_norm=true", "checkpoint_seconds=0"),
)


@pytest.mark.parametrize("average", ["average=0", "average=0.5"])
def test_returns_to_the_best_weights(demo, tmp_path, monkeypatch, average):
    values = [0.5, 0.6, 0.4, 0.7]
    accuracies(monkeypatch, *values, *[0.1] * 9)
    train(small(*SETTINGS, average), demo, tmp_path / "run", test=False)
    state = last_state(tmp_path / "run")
    best = state["best"]
    for name, x in state["model"].items():
        # the last evaluation was no improvement either
        assert torch.equal(x, best[name]), name
    if average != "average=0":
        assert all(torch.equal(x, best[name]) for name, x in state["average"].items())
    assert state["progress"]["best_step"] == 8
    assert state["schedule"]["halvings"] == 3


def test_stops_after_halvings(demo, tmp_path, monkeypatch):
    accuracies(monkeypatch, 0.5, 0.4, 0.6, 0.5, 0.7, *[0.1] * 9)
    settings = ("patience=0", "batch_size=70", "evaluations=1", "stop_halvings=2", "epochs=9")
    # the second halving follows the fourth epoch of two steps
    assert train(small(*settings), demo, tmp_path / "run", test=False)["steps"] == 8


def test_resumes(demo, tmp_path, monkeypatch):
    values = [0.5, 0.4, 0.6, 0.3, 0.3, 0.65]

    def fail(step):
        if step == 7:
            raise RuntimeError("failed")

    accuracies(monkeypatch, *values, *[0.5] * 9)
    train(small(*SETTINGS, "halve_every=2"), demo, tmp_path / "straight", test=False)
    accuracies(monkeypatch, *values, *[0.5] * 9)
    with pytest.raises(RuntimeError, match="failed"):
        train(small(*SETTINGS, "halve_every=2"), demo, tmp_path / "run", on_step=fail, test=False)
    # the last checkpoint is that of step 6
    accuracies(monkeypatch, *values[3:], *[0.5] * 9)
    train(small(*SETTINGS, "halve_every=2"), demo, tmp_path / "run", resume=True, test=False)
    check_resumed(tmp_path, "model", "optimizer", "schedule", "best")
    # halved in epochs 3 and 5, and after the evaluations 2, 4 and 5
    steps, halvings = [2, 4, 6, 8, 10, 12], [0, 0, 2, 2, 4, 5]
    found = [line["learning_rate"] for line in metrics(tmp_path / "run")]
    wanted = [0.05 * 0.5**n * 0.9 ** ((s - 1) / 3) for s, n in zip(steps, halvings, strict=True)]
    assert found == pytest.approx(wanted)


def test_curriculum_begins_with_the_shortest(demo, tmp_path):
    recipe = small("epochs=4", "curriculum=2", "batch_size=8", "stop_after=0")
    split, seen = demo.splits["train"], []
    examples = len(split)
    train(recipe, demo, tmp_path / "straight", on_step=seen.append, test=False)
    counts = [math.ceil(share * examples) for share in (1 / 3, 2 / 3, 1, 1)]
    assert len(seen) == sum(math.ceil(count / 8) for count in counts)

    def fail(step):
        if step == math.ceil(counts[0] / 8) + 1:
            raise RuntimeError("failed")

    with pytest.raises(RuntimeError, match="failed"):
        train(recipe, demo, tmp_path / "run", on_step=fail, test=False)
    train(recipe, demo, tmp_path / "run", resume=True, test=False)
    check_resumed(tmp_path, "model", "optimizer")


@pytest.mark.parametrize(("epochs", "warned"), [(2, True), (3, False)])
def test_a_curriculum_that_never_ends_is_reported(demo, tmp_path, caplog, epochs, warned):
    train(small(f"epochs={epochs}", "curriculum=2"), demo, tmp_path / "run", test=False)
    assert ("leaves out the longest examples in the first 2 epochs" in caplog.text) == warned


def test_curriculum_keeps_evaluations_apart(demo, tmp_path):
    settings = ("epochs=6", "curriculum=4", "batch_size=8", "evaluations=1", "evaluation_steps=20")
    train(small(*settings, "stop_after=0"), demo, tmp_path / "run", test=False)
    steps = [line["step"] for line in metrics(tmp_path / "run")]
    examples = len(demo.splits["train"])
    ends = np.cumsum([math.ceil(math.ceil(min(5, e) / 5 * examples) / 8) for e in range(1, 7)])
    assert set(steps) < set(ends.tolist())
    assert steps[-1] == ends[-1]
    assert all(np.diff([0, *steps[:-1]]) >= 20)


def test_curriculum_begins_with_as_many_examples_as_batch_normalisation_needs(demo, tmp_path):
    seen, examples = [], len(demo.splits["train"])
    settings = (f"curriculum={examples}", "epochs=2", "batch_norm=true", "stop_after=0")
    train(small(*settings), demo, tmp_path, on_step=seen.append, test=False)
    assert seen == [1, 2]


@pytest.mark.parametrize(("epochs", "curriculum", "largest"), [(3, 0, 0), (3, 1, 1), (2, 9, 1)])
def test_memory_is_reserved_for_the_longest_epoch(
    epochs, curriculum, largest, demo, tmp_path, monkeypatch
):
    reserved, seen = [], []
    monkeypatch.setattr(Step, "reserve", lambda _, batches: reserved.append(batches))
    call = Step.__call__
    monkeypatch.setattr(Step, "__call__", lambda *args: seen.append(args[1:3]) or call(*args))
    settings = (f"epochs={epochs}", f"curriculum={curriculum}", "stop_after=0")
    train(small(*settings), demo, tmp_path, test=False)
    (batches,) = reserved
    wanted = [rows.tolist() for rows, epoch in seen if epoch == largest]
    assert [rows.tolist() for rows in batches] == wanted
