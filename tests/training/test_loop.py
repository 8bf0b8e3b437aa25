import builtins
import dataclasses
import itertools
import json
import math
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gumbeltree
from gumbeltree import load
from gumbeltree.code_version import code_version
from gumbeltree.config import OPTIMIZERS, Recipe, TrainingConfig, load_recipe, with_settings
from gumbeltree.data.compile import prepare, with_labels
from gumbeltree.data.prepared import load_prepared
from gumbeltree.evaluation import evaluate
from gumbeltree.migrate import current_recipe
from gumbeltree.parts import HEADS
from gumbeltree.settings import from_dict
from gumbeltree.states import Draw
from gumbeltree.training import loop
from gumbeltree.training import step as steps
from gumbeltree.training.folder import RunFolder
from gumbeltree.training.loop import evaluation_points, train
from gumbeltree.training.noise import step_seed
from gumbeltree.training.optimizers import Adadelta, new_optimizer
from gumbeltree.training.seeds import summarize
from gumbeltree.training.start import known_words, new_model, start_from
from gumbeltree.training.text import train_text
from tests.runs import SMALL, contents, metrics, small, table
from tests.test_noise import example_noise


@pytest.fixture(scope="module")
def finished(demo, tmp_path_factory):
    """The folder and the result of a short run; not to be changed."""
    folder = tmp_path_factory.mktemp("training") / "run"
    return folder, train(small("tuned=false"), demo, folder, recipe_name="demo")


def accuracies(monkeypatch, *values):
    """Let evaluations return these accuracies, then 0."""
    left = list(values)

    def fake(model, split, **options):
        return lambda: SimpleNamespace(
            value=left.pop(0) if left else 0.0, loss=1.0, metric=lambda name: 0.5
        )

    monkeypatch.setattr(loop, "Evaluator", fake)


@pytest.fixture
def batches(monkeypatch):
    """The batches that training reads, as lists of (epoch, rows)."""
    seen = []
    call = steps.Step.__call__

    def spied(step, rows, epoch, number):
        seen.append((epoch, rows))
        call(step, rows, epoch, number)

    monkeypatch.setattr(steps.Step, "__call__", spied)
    return seen


# learning


def test_learns_to_spot_a_word(tmp_path):
    recipe = with_settings(
        load_recipe("text"),
        [*SMALL, "data.text=body", "data.label=class", "epochs=6", "learning_rate=0.04"],
    )
    path = table(tmp_path / "table.csv", lambda text: "yes" if "w1" in text else "no")
    result = train(recipe, prepare(recipe, path), tmp_path / "run")
    assert result["dev_accuracy"] > 0.95
    assert result["test_accuracy"] > 0.95
    losses = [line["train_loss"] for line in metrics(tmp_path / "run")]
    assert losses[0] > 0.6
    assert losses[-1] < 0.3
    model = load(tmp_path / "run")
    assert [p.label for p in model.predict(["w1 w2", "w3 w2", "w1"])] == ["yes", "no", "yes"]


@pytest.mark.parametrize(("optimizer", "clip"), [("adam", 0.0), ("adadelta", 0.001)])
def test_first_step_by_hand(demo, tmp_path, optimizer, clip):
    recipe = with_labels(
        small(
            f"optimizer={optimizer}",
            f"clip={clip}",
            "learning_rate=0.3",
            "embedding.dropout=0",
            "head.dropout=0",
            "batch_size=1000",
            "epochs=1",
        ),
        demo,
    )
    train(recipe, demo, tmp_path / "run")
    model = new_model(recipe.model, demo, recipe.training.seed)
    split = demo.splits["train"]
    batch = split.batch(np.arange(len(split)))
    noise = example_noise(0, 0, batch.own, 1, batch.sentences.layout.T)
    loss = F.cross_entropy(model(batch.sentences, Draw(noise)).output, batch.targets)
    loss.backward()
    parameters = list(model.parameters())
    norm = torch.stack([p.grad.norm() for p in parameters]).norm()
    scale = min(1.0, clip / (norm + 1e-6)) if clip else 1.0
    for p in parameters:
        g = p.grad * scale
        if optimizer == "adam":
            # the first step of Adam: both averages are the gradient's own
            step = g / (g.abs() + 1e-8)
        else:
            step = g * (1e-6**0.5) / (0.1 * g * g + 1e-6).sqrt()
        p.data -= 0.3 * step
    (line,) = metrics(tmp_path / "run")
    assert line["train_loss"] == pytest.approx(loss.item(), abs=1e-6)
    trained = load(tmp_path / "run").state_dict()
    for name, x in model.state_dict().items():
        # Adam divides tiny gradients by their size
        assert torch.quantile((trained[name] - x).abs(), 0.95) < 1e-4, name


def test_optimizers_have_the_parameters_of_the_paper():
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    cpu = torch.device("cpu")
    adam = new_optimizer(TrainingConfig(optimizer="adam", learning_rate=0.25), model, cpu)
    assert type(adam) is torch.optim.Adam
    (group,) = adam.param_groups
    assert (group["lr"], group["betas"], group["eps"]) == (0.25, (0.9, 0.999), 1e-8)
    assert group["weight_decay"] == 0
    assert [p is model.weight for p in group["params"]] == [True]
    adadelta = new_optimizer(TrainingConfig(optimizer="adadelta", learning_rate=1.0), model, cpu)
    assert type(adadelta) is Adadelta
    (group,) = adadelta.param_groups
    assert (group["lr"], group["rho"], group["eps"]) == (1.0, 0.9, 1e-6)
    for name in ("adam", "adadelta"):
        config = TrainingConfig(optimizer=name, weight_decay=0.125)
        assert new_optimizer(config, model, cpu).param_groups[0]["weight_decay"] == 0.125
    # only `capturable` differs on a CUDA device
    (group,) = adam.param_groups
    config = TrainingConfig(optimizer="adam", learning_rate=0.25)
    captured = new_optimizer(config, model, torch.device("cuda")).param_groups[0]
    assert (group["capturable"], captured["capturable"]) == (False, True)
    for key in ("lr", "betas", "eps", "weight_decay"):
        assert captured[key] == group[key], key


def test_batch_norm_never_gets_a_single_example(tmp_path):
    # 61 examples in batches of 20
    recipe = with_settings(
        load_recipe("text"), [*SMALL, "data.text=body", "data.label=class", "batch_norm=true"]
    )
    path = table(tmp_path / "train.csv", lambda text: len(text) > 3, rows=61)
    dev = table(tmp_path / "dev.csv", lambda text: len(text) > 3, rows=10)
    recipe = with_settings(recipe, ["test_fraction=0"])
    result = train(recipe, prepare(recipe, path, dev=dev), tmp_path / "run")
    assert result["steps"] == 6
    assert "test_accuracy" not in result


def test_a_remainder_of_one_example_is_a_batch_except_for_batch_norm(demo, tmp_path, batches):
    # 140 examples
    train(small("batch_size=139", "epochs=1"), demo, tmp_path / "run")
    assert sorted(len(rows) for _, rows in batches) == [1, 139]
    batches.clear()
    train(small("batch_size=139", "epochs=1", "batch_norm=true"), demo, tmp_path / "norm")
    assert [len(rows) for _, rows in batches] == [140]


@pytest.mark.parametrize("precision", ["64", "bf16", "tf32"])
def test_precisions(demo, tmp_path, precision):
    recipe = small(f"precision='{precision}'", "batch_size=70")
    train(with_settings(recipe, ["epochs=1"]), demo, tmp_path / "run")
    wanted = torch.float64 if precision == "64" else torch.float32
    assert {x.dtype for x in load(tmp_path / "run").parameters()} == {wanted}
    train(recipe, demo, tmp_path / "run", resume=True)
    train(recipe, demo, tmp_path / "straight")
    assert contents(tmp_path / "run") == contents(tmp_path / "straight")
    torch.set_float32_matmul_precision("highest")


def test_double_precision_reaches_the_loss(demo, tmp_path):
    # with this learning rate the loss is that of the initial weights
    recipe = small(
        "precision='64'",
        *("learning_rate=1e-300", "epochs=1", "evaluations=1"),
        *("embedding.dropout=0.0", "head.dropout=0.0"),
    )
    train(recipe, demo, tmp_path / "run")
    model = new_model(with_labels(recipe, demo).model, demo, 0).double()
    split = demo.splits["train"]
    batch = split.batch(np.arange(len(split)))
    noise = example_noise(0, 0, batch.own, 1, batch.sentences.layout.T)
    with torch.no_grad():
        scores = model(batch.sentences, Draw(noise)).output
        loss = float(F.cross_entropy(scores, batch.targets))
    assert metrics(tmp_path / "run")[0]["train_loss"] == pytest.approx(loss, rel=1e-13)


def test_word_vectors_stay_unless_tuned(demo, finished):
    recipe = with_labels(small("tuned=false"), demo)
    start = new_model(recipe.model, demo, 0)
    model = load(finished[0])
    assert torch.equal(model.embedding.weight, start.embedding.weight)
    assert not torch.equal(model.encoder.query, start.encoder.query)


def test_tuned_word_vectors_change(demo, tmp_path):
    train(small("tuned=true", "epochs=1"), demo, tmp_path / "run")
    start = new_model(with_labels(small(), demo).model, demo, 0)
    trained = load(tmp_path / "run").embedding.weight
    assert (trained != start.embedding.weight).any(1).float().mean() > 0.5


def test_training_starts_from_the_word_vectors(demo):
    vectors = np.random.default_rng(0).normal(size=(demo.tokenizer.get_vocab_size(), 8))
    data = dataclasses.replace(demo, vectors=vectors.astype(np.float32))
    model = new_model(with_labels(small(), demo).model, data, 0)
    assert np.array_equal(model.embedding.weight.detach().numpy(), data.vectors)


# randomness


def test_same_seed_same_bits(demo, finished, tmp_path):
    torch.rand(7)
    train(small("tuned=false"), demo, tmp_path / "run", recipe_name="demo")
    assert contents(tmp_path / "run") == contents(finished[0])


def test_initial_weights_depend_on_the_seed(demo):
    first, again, other = (
        new_model(small().model, demo, seed).encoder.state_dict() for seed in (0, 0, 1)
    )
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["query"], other["query"])


def test_another_seed_another_model(demo, finished, tmp_path):
    train(small("tuned=false", "seed=1"), demo, tmp_path / "run", recipe_name="demo")
    one, other = contents(tmp_path / "run"), contents(finished[0])
    assert one["model.safetensors"] != other["model.safetensors"]
    assert one["result"]["seed"] == 1


def test_dropout_differs_from_step_to_step(demo, tmp_path):
    masks = []

    def note(module, inputs, output):
        # of the head
        if isinstance(module, nn.Dropout) and module.training and module.p == 0.5:
            masks.append((output == 0) & (inputs[0] != 0))

    handle = nn.modules.module.register_module_forward_hook(note)
    try:
        train(small("head.dropout=0.5", "epochs=1"), demo, tmp_path / "run")
    finally:
        handle.remove()
    # two per step
    assert len(masks) == 14
    assert not any(torch.equal(masks[0], mask) for mask in masks[2::2])


def test_every_epoch_reads_every_example_once_in_another_order(demo, tmp_path, batches):
    # enough batches for pools of several, sorted by length
    train(small("seed=3", "batch_size=10"), demo, tmp_path / "run")
    epochs = [[row for e, rows in batches if e == epoch for row in rows] for epoch in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(140))
    assert epochs[0] != epochs[1]
    lengths = demo.splits["train"].lengths[:, 0]
    spread = np.mean([np.ptp(lengths[rows]) for _, rows in batches])
    batches.clear()
    train(small("pool=1", "batch_size=10", "epochs=1"), demo, tmp_path / "shuffled")
    assert np.mean([np.ptp(lengths[rows]) for _, rows in batches]) > 1.2 * spread


def test_noise_depends_on_the_example_alone():
    rows = torch.tensor([5, 0, 2**33, 7])
    noise = example_noise(1, 2, rows, 2, 6)
    assert noise.shape == (8, 5, 5)
    # alone, in another order, in another width
    assert torch.equal(example_noise(1, 2, rows[1:2], 2, 6)[1], noise[5])
    assert torch.equal(example_noise(1, 2, rows.flip(0), 2, 6)[0], noise[3])
    assert torch.equal(example_noise(1, 2, rows, 2, 9)[:, :5, :5], noise)
    assert example_noise(1, 2, rows, 1, 1).shape == (4, 0, 0)
    assert len(noise.unique()) > 0.99 * noise.numel()
    others = [example_noise(seed, epoch, rows, 2, 6) for seed, epoch in ((1, 3), (2, 2), (3, 2))]
    for other in others:
        assert (other == noise).float().mean() < 0.01


def test_noise_is_gumbel():
    noise = example_noise(0, 0, torch.arange(2000), 1, 11).double()
    n = noise.numel()
    spread = torch.pi / 6**0.5
    assert abs(noise.mean() - 0.5772157) < 5 * spread / n**0.5
    assert noise.std() == pytest.approx(spread, rel=0.02)
    assert noise.isfinite().all()
    # adjacent values are independent in each dimension
    by_axis = noise.view(2000, 10, 10)
    for axis in range(3):
        size = by_axis.shape[axis]
        one, other = by_axis.narrow(axis, 0, size - 1), by_axis.narrow(axis, 1, size - 1)
        both = torch.stack([one.flatten(), other.flatten()])
        assert abs(torch.corrcoef(both)[0, 1]) < 5 / n**0.5 * 1.2


def test_seeds_of_steps_differ():
    seeds = {step_seed(s, step, r) for s in range(3) for step in range(50) for r in range(4)}
    assert len(seeds) == 600
    assert all(0 <= seed < 2**63 for seed in seeds)


# evaluations, learning rate, end


@pytest.mark.parametrize(
    ("count", "evaluations", "points"),
    [(10, 1, {10}), (10, 2, {5, 10}), (7, 3, {2, 5, 7}), (3, 100, {1, 2, 3}), (1, 5, {1})],
)
def test_evaluation_points(count, evaluations, points):
    assert evaluation_points(count, evaluations) == points


def test_evaluation_points_are_as_many_as_requested():
    for count, evaluations in itertools.product(range(1, 60), range(1, 60)):
        points = evaluation_points(count, evaluations)
        assert len(points) == min(count, evaluations)
        assert min(points) > 0
        assert max(points) == count


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        (("evaluation_steps=3", "epochs=1"), [4, 7]),
        # every second epoch, and the last one
        (("evaluation_steps=10", "epochs=5"), [14, 28, 35]),
        (("evaluation_steps=14", "epochs=4"), [14, 28]),
    ],
)
def test_small_data_sets_are_evaluated_less_often(demo, tmp_path, settings, steps):
    train(small("evaluations=3", *settings), demo, tmp_path, quiet=True)
    assert [line["step"] for line in metrics(tmp_path)] == steps


def test_a_model_that_learned_nothing_says_so(demo, tmp_path, capsys):
    train(small("epochs=1", "learning_rate=0"), demo, tmp_path / "none")
    assert "no better on the development split" in capsys.readouterr().err
    texts, labels = ["a gem .", "so dull ."] * 40, ["good", "bad"] * 40
    train_text(texts, labels, encoder="bag", settings=["epochs=5", "learning_rate=0.05"])
    assert "no better on the development split" not in capsys.readouterr().err


def test_metrics_of_a_run(demo, finished):
    folder, result = finished
    lines = metrics(folder)
    assert [line["step"] for line in lines] == [2, 5, 7, 9, 12, 14]
    assert [line["epoch"] for line in lines] == [0.2857, 0.7143, 1.0, 1.2857, 1.7143, 2.0]
    assert all(0.5 < line["train_loss"] < 0.8 for line in lines)
    assert {line["learning_rate"] for line in lines} == {0.05}
    times = [line["seconds"] for line in lines]
    assert times == sorted(times)
    best = max(lines, key=lambda line: line["dev_accuracy"])
    found = evaluate(load(folder), demo.splits["dev"])
    assert (best["dev_accuracy"], best["dev_loss"]) == (found.accuracy, found.loss)
    assert lines[-1]["best_accuracy"] == best["dev_accuracy"] == result["dev_accuracy"]


def test_train_loss_is_the_mean_since_the_last_evaluation(demo, tmp_path):
    # the weights stay, so that each example has one loss
    still = ("learning_rate=1e-300", "precision='64'", "embedding.dropout=0", "head.dropout=0")
    means = []
    for evaluations in (1, 7):
        folder = tmp_path / str(evaluations)
        train(small(*still, "epochs=1", f"evaluations={evaluations}"), demo, folder)
        means.append(np.mean([line["train_loss"] for line in metrics(folder)]))
    # batches are of equal size
    assert means[0] == pytest.approx(means[1], rel=1e-12)


def test_the_result(demo, finished):
    folder, result = finished
    assert json.loads((folder / "result.json").read_text(encoding="utf-8")) == result
    model = load(folder)
    for name in ("dev", "test"):
        found = evaluate(model, demo.splits[name])
        assert result[f"{name}_accuracy"] == found.accuracy
        assert result[f"{name}_loss"] == found.loss
    assert (result["recipe"], result["seed"], result["steps"]) == ("demo", 0, 14)
    assert result["labels"] == ["negative", "positive"]
    assert result["versions"]["torch"] == torch.__version__
    assert result["code"] == [code_version()]
    assert result["seconds"] >= 0


def test_the_model_records_its_provenance(demo, finished):
    folder, result = finished
    about = load(folder).provenance
    assert about["recipe_name"] == "demo"
    assert about["seed"] == 0
    assert about["recipe"]["training"]["batch_size"] == 20
    assert about["recipe"]["model"]["head"]["labels"] == ["negative", "positive"]
    assert about["versions"]["gumbeltree"] == gumbeltree.__version__
    assert about["code"] == [code_version()]
    assert about["metrics"]["dev_accuracy"] == result["dev_accuracy"]
    assert about["metrics"]["test_accuracy"] == result["test_accuracy"]
    assert about["metrics"]["epoch"] == result["best_epoch"]
    assert about["data"]["digest"] == demo.fingerprint()
    assert about["data"]["splits"]["train"]["examples"] == 140


def test_halves_the_learning_rate_after_patience(demo, tmp_path, monkeypatch):
    accuracies(monkeypatch, 0.5, 0.5, 0.4, 0.5, 0.6, 0.6, 0.1, 0.6, 0.6, 0.6, 0.6, 0.6)
    train(small("patience=2", "epochs=4", "learning_rate=0.008"), demo, tmp_path / "run")
    rates = [line["learning_rate"] for line in metrics(tmp_path / "run")]
    # after three in a row without improvement, from the next evaluation on
    assert rates == [0.008] * 4 + [0.004] * 4 + [0.002] * 3 + [0.001]


def test_stops_early(demo, tmp_path, monkeypatch):
    accuracies(monkeypatch, 0.5, 0.4, 0.4, 0.6, 0.6, 0.3, 0.6)
    result = train(small("stop_after=3", "epochs=9"), demo, tmp_path / "run")
    assert len(metrics(tmp_path / "run")) == 7
    assert (result["best_epoch"], result["steps"]) == (1.2857, 16)


def test_keeps_the_best_model_not_the_last(demo, tmp_path, monkeypatch):
    states = []
    models = []
    real = loop.new_model
    monkeypatch.setattr(loop, "new_model", lambda *args: models.append(real(*args)) or models[-1])

    def on_step(step):
        states.append({key: x.clone() for key, x in models[0].state_dict().items()})

    accuracies(monkeypatch, 0.3, 0.7, 0.7, 0.6, 0.5, 0.1)
    # saved only at the end
    train(small("checkpoint_seconds=1000"), demo, tmp_path / "run", on_step=on_step)
    saved = load(tmp_path / "run").state_dict()
    same = [all(torch.equal(saved[key], x) for key, x in state.items()) for state in states]
    # evaluations follow steps 2, 5, 7, 9, 12 and 14
    assert [step for step, equal in enumerate(same, 1) if equal] == [5]
    assert [line["best_accuracy"] for line in metrics(tmp_path / "run")] == [0.3] + [0.7] * 5


def test_metrics_have_null_for_nan(demo, tmp_path, monkeypatch):
    accuracies(monkeypatch, np.nan, 0.3, np.nan, 0.2)
    train(small("epochs=1", "evaluations=4", "tuned=false"), demo, tmp_path / "run")
    text = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8")
    assert "NaN" not in text
    found = [(line["dev_accuracy"], line["best_accuracy"]) for line in metrics(tmp_path / "run")]
    assert found == [(None, None), (0.3, 0.3), (None, 0.3), (0.2, 0.3)]


def test_anneals_the_temperature(demo, tmp_path):
    train(small("anneal_rate=0.1", "evaluations=7"), demo, tmp_path / "run")
    lines = metrics(tmp_path / "run")
    expected = [max(0.5, float(np.exp(-0.1 * step))) for step in range(14)]
    assert [line["temperature"] for line in lines] == pytest.approx(expected)
    assert load(tmp_path / "run").config.encoder.temperature == 1.0


def test_on_step_follows_evaluations_and_checkpoints(demo, tmp_path):
    done = []

    def on_step(step):
        done.append(step)
        assert (tmp_path / "run" / "last.checkpoint").exists() == (step >= 4)

    train(small("epochs=1", "evaluations=2"), demo, tmp_path / "run", on_step=on_step)
    assert done == list(range(1, 8))


# resuming


def test_leaves_a_finished_run_unchanged(demo, finished, tmp_path):
    folder, result = finished
    old = shutil.copytree(folder, tmp_path / "old")
    # the record of another version of torch must stay
    for path in (old / "result.json", old / "model" / "config.json"):
        text = path.read_text(encoding="utf-8")
        assert torch.__version__ in text
        path.write_text(text.replace(torch.__version__, "1.0.old"), encoding="utf-8")
    copy = shutil.copytree(old, tmp_path / "run")
    for recipe in (small("tuned=false"), small("tuned=false", "epochs=1")):
        again = train(recipe, demo, copy, recipe_name="demo", resume=True)
        assert again["versions"]["torch"] == "1.0.old"
        assert again["test_accuracy"] == result["test_accuracy"]
        for path in old.rglob("*"):
            if path.is_file():
                assert (copy / path.relative_to(old)).read_bytes() == path.read_bytes(), path


def test_records_each_version_of_the_code(demo, finished, tmp_path, monkeypatch):
    copy = shutil.copytree(finished[0], tmp_path / "run")
    other = {"commit": None, "clean": None, "source": "0" * 40}
    monkeypatch.setattr(loop, "code_version", lambda: other)
    # no further step: as before
    again = train(small("tuned=false"), demo, copy, recipe_name="demo", resume=True)
    assert again["code"] == [code_version()]
    (copy / "result.json").unlink()
    again = train(small("tuned=false"), demo, copy, recipe_name="demo", resume=True)
    assert again["code"] == [code_version()]
    more = small("tuned=false", "epochs=3")
    assert train(more, demo, copy, recipe_name="demo", resume=True)["code"] == [
        code_version(),
        other,
    ]


def test_code_of_a_run_of_version_0_1_is_unknown(tmp_path):
    frozen = Path(__file__).parents[1] / "frozen"
    run = shutil.copytree(frozen / "run", tmp_path / "run")
    folder = loop.RunFolder(run, json.loads((run / "settings.json").read_text("utf-8")), True)
    state = folder.load_checkpoint()
    del state["progress"]["code"]
    folder.save_checkpoint(state)
    recipe = from_dict(Recipe, current_recipe(folder.settings["recipe"]))
    data = load_prepared(frozen / "prepared.safetensors")
    result = train(recipe, data, run, recipe_name="demo", resume=True)
    unknown = {"commit": None, "clean": None, "source": None}
    assert result["code"] == [unknown, code_version()]


def test_init_in_double_precision(demo, tmp_path):
    recipe = small("precision='64'", "epochs=1")
    train(recipe, demo, tmp_path / "first")
    recipe, init = start_from(recipe, tmp_path / "first")
    start = new_model(with_labels(recipe, demo).model, demo, 1, init, torch.float64)
    for mine, theirs in zip(start.encoder.parameters(), init.encoder.parameters(), strict=True):
        assert mine.dtype == torch.float64
        assert torch.equal(mine, theirs)
    assert torch.equal(start.embedding.weight, init.embedding.weight)
    train(recipe, demo, tmp_path / "second", init=init)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_init_from_an_encoder_with_batch_norm(demo, dtype):
    recipe = small("encoder.kind=spinn", "encoder.parses=true")
    config = with_labels(recipe, demo).model
    init = new_model(config, demo, 1)
    init.encoder.leaf.norm.num_batches_tracked += 3
    start = new_model(config, demo, 2, init, dtype)
    assert start.encoder.leaf.norm.num_batches_tracked == 3
    assert torch.equal(start.encoder.cell.weight, init.encoder.cell.weight.to(dtype))


def test_resumes_with_more_epochs(demo, finished, tmp_path):
    copy = shutil.copytree(finished[0], tmp_path / "run")
    more = small("tuned=false", "epochs=4", "checkpoint_seconds=50")
    straight = train(more, demo, tmp_path / "straight", recipe_name="demo")
    resumed = train(more, demo, copy, recipe_name="demo", resume=True)
    assert resumed["steps"] == straight["steps"] == 28
    assert contents(copy) == contents(tmp_path / "straight")


def test_resumes_with_more_patience(demo, tmp_path, monkeypatch):
    accuracies(monkeypatch, 0.5, 0.4, 0.4, 0.4, 0.6)
    train(small(), demo, tmp_path / "straight")
    accuracies(monkeypatch, 0.5, 0.4, 0.4, 0.4)
    assert train(small("stop_after=3"), demo, tmp_path / "run")["steps"] == 9
    accuracies(monkeypatch, 0.6)
    assert train(small(), demo, tmp_path / "run", resume=True)["steps"] == 14
    one, other = contents(tmp_path / "run"), contents(tmp_path / "straight")
    assert one == other
    assert len(one["metrics"]) == 6


def test_resumes_with_more_halvings(demo, tmp_path, monkeypatch):
    accuracies(monkeypatch, 0.5, 0.4, 0.4, 0.4, 0.6)
    train(small("patience=0"), demo, tmp_path / "straight")
    accuracies(monkeypatch, 0.5, 0.4)
    run = tmp_path / "run"
    assert train(small("patience=0", "stop_halvings=1"), demo, run)["steps"] < 14
    accuracies(monkeypatch, 0.4, 0.4, 0.6)
    assert train(small("patience=0"), demo, run, resume=True)["steps"] == 14
    assert contents(run) == contents(tmp_path / "straight")


ROUGH = (
    *("patience=0", "anneal_rate=0.02", "batch_norm=true", "batch_size=33", "epochs=3"),
    "optimizer=adadelta",
)


@pytest.fixture(scope="module")
def straight(demo, tmp_path_factory):
    """A run with everything that a checkpoint has to restore."""
    folder = tmp_path_factory.mktemp("training") / "straight"
    train(small(*ROUGH), demo, folder)
    assert len({line["learning_rate"] for line in metrics(folder)}) > 2
    return contents(folder)


@pytest.mark.parametrize(("step", "seconds"), [*((n, 0) for n in (1, 2, 6, 13)), (8, 1000)])
def test_resumes_after_a_failure_at_a_step(demo, straight, tmp_path, step, seconds):
    recipe = small(*ROUGH, f"checkpoint_seconds={seconds}")

    def fail(done):
        if done == step:
            raise RuntimeError("failed")

    with pytest.raises(RuntimeError, match="failed"):
        train(recipe, demo, tmp_path / "run", on_step=fail)
    train(recipe, demo, tmp_path / "run", resume=True)
    resumed = contents(tmp_path / "run")
    if seconds:
        # the provenance quotes the settings, which differ here
        resumed["config.json"] = straight["config.json"]
    assert resumed == straight


def test_resumes_a_run_without_settings_that_are_newer(demo, straight, tmp_path):
    recipe, folder = small(*ROUGH, "checkpoint_seconds=0"), tmp_path / "run"

    def fail(done):
        if done == 6:
            raise RuntimeError("failed")

    with pytest.raises(RuntimeError, match="failed"):
        train(recipe, demo, folder, on_step=fail)
    # write the run as a version without the setting would have written it
    path = folder / "settings.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    with RunFolder(folder, settings, True) as run:
        state = run.load_checkpoint()
        del settings["recipe"]["data"]["quotes"]
        run.settings = settings
        run.save_checkpoint(state)
    path.write_text(json.dumps(settings), encoding="utf-8")
    train(recipe, demo, folder, resume=True)
    assert contents(folder) == straight


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_gpu_resumes_on_another_device(demo, tmp_path, optimizer):
    # a capturable optimizer keeps all of its state on the device
    for epochs, device in enumerate(["cpu", "cuda", "cpu", "cuda"], 1):
        recipe = small(f"optimizer={optimizer}", f"epochs={epochs}")
        result = train(recipe, demo, tmp_path / "run", device=device, resume=True)
        assert result["steps"] == 7 * epochs
    losses = [line["train_loss"] for line in metrics(tmp_path / "run")]
    assert np.isfinite(losses).all()


# starting from a model


def test_init_provides_the_encoder_and_the_words(demo, finished, tmp_path):
    recipe, init = start_from(
        small("head.hidden_dim=5", "encoder.hidden_dim=9", "data.lower=false"), finished[0]
    )
    # the settings of the encoder and of the text are those of the model
    assert recipe.model.encoder == init.config.encoder
    assert recipe.data.lower is True
    assert recipe.model.head.hidden_dim == 5
    words = [*reversed(known_words(init)), "zebra"]
    other = dataclasses.replace(
        demo, tokenizer=gumbeltree.text.tokenizer.whitespace_tokenizer(words, True)
    )
    model = new_model(with_labels(recipe, other).model, other, 1, init)
    plain = new_model(with_labels(recipe, other).model, other, 1)
    for name, x in model.encoder.state_dict().items():
        assert torch.equal(x, init.encoder.state_dict()[name])
    for word in known_words(init):
        row = model.embedding.weight[other.tokenizer.token_to_id(word)]
        assert torch.equal(row, init.embedding.weight[init.tokenizer.token_to_id(word)])
    zebra = other.tokenizer.token_to_id("zebra")
    assert torch.equal(model.embedding.weight[zebra], plain.embedding.weight[zebra])
    for name, x in model.head.state_dict().items():
        assert torch.equal(x, plain.head.state_dict()[name])


def test_rejects_init_of_another_size(demo, finished, tmp_path):
    with pytest.raises(ValueError, match=r"encoder of the initial model .*\[45\]"):
        train(small("encoder.hidden_dim=9"), demo, tmp_path / "run", init=load(finished[0]))


def test_rejects_resuming_without_the_init_model(demo, finished, tmp_path):
    init = load(finished[0])
    train(small("epochs=1"), demo, tmp_path / "run", init=init)
    with pytest.raises(ValueError, match="another model; pass the original --init, or") as error:
        train(small("epochs=1"), demo, tmp_path / "run", resume=True)
    assert not re.search("[0-9a-f]{16}", str(error.value).replace(str(tmp_path), ""))
    train(small("epochs=1"), demo, tmp_path / "run", init=init, resume=True)


# TensorBoard, several seeds


def test_tensorboard_gets_the_metrics(finished):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(finished[0] / "tensorboard")).Reload()
    lines = metrics(finished[0])
    for name in ("train_loss", "dev_accuracy", "learning_rate"):
        found = [(event.step, event.value) for event in events.Scalars(name)]
        assert found == [(line["step"], pytest.approx(line[name])) for line in lines]


def test_trains_without_tensorboard(demo, finished, tmp_path, monkeypatch):
    real = builtins.__import__

    def missing(name, *given, **options):
        if "tensorboard" in name and "gumbeltree" not in name:
            raise ImportError("no such package")
        return real(name, *given, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    train(small("tuned=false"), demo, tmp_path / "run", recipe_name="demo")
    assert not (tmp_path / "run" / "tensorboard").exists()
    assert contents(tmp_path / "run") == contents(finished[0])


def test_summarizes_several_seeds():
    runs = [
        {"recipe": "demo", "seed": seed, "dev_accuracy": dev, "test_accuracy": 0.5}
        for seed, dev in ((4, 0.5), (5, 0.75), (6, 1.0))
    ]
    head = HEADS["single"]
    summary = summarize(runs, head)
    assert summary["dev_accuracy"] == {"mean": 0.75, "deviation": 0.25, "each": [0.5, 0.75, 1.0]}
    assert summary["test_accuracy"]["deviation"] == 0
    assert summary["runs"] == runs
    assert summary["best_seed"] == 6
    assert summarize(runs[:1], head)["dev_accuracy"]["deviation"] is None
    # NaN is never the best
    runs[2]["dev_accuracy"] = math.nan
    assert summarize(runs, head)["best_seed"] == 5
    assert "best_seed" not in summarize(runs[2:], head)
