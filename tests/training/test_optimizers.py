"""Optimizers against loops over the elements of their equations."""

import itertools
import math
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from gumbeltree.config import OPTIMIZERS, TrainingConfig
from gumbeltree.ops.adadelta import update_rows
from gumbeltree.training.loop import train
from gumbeltree.training.optimizers import (
    Adadelta,
    AdaGrad,
    Descent,
    RMSProp,
    Several,
    _decay,
    make_state,
    new_optimizer,
)
from tests.runs import small
from tests.training.test_policy import check_resumed

CPU = torch.device("cpu")


def updated(optimizer, values, gradients):
    """Return the parameters after a step with each row of gradients."""
    (parameter,) = (p for group in optimizer.param_groups for p in group["params"])
    parameter.data.copy_(torch.tensor(values))
    for row in gradients:
        parameter.grad = torch.tensor(row, dtype=parameter.dtype)
        optimizer.step()
    return parameter.tolist()


def parameter(size=3):
    return nn.Parameter(torch.zeros(size, dtype=torch.float64))


VALUES = [1.0, -2.0, 0.5]
GRADIENTS = [[0.3, -0.1, 0.0], [1e-4, 2.0, 1e-3], [0.2, 0.2, -0.7]]


def test_sgd():
    found = updated(Descent([parameter()], 0.1, weight_decay=0.5), VALUES, GRADIENTS)
    wanted = list(VALUES)
    for row in GRADIENTS:
        wanted = [p - 0.1 * (g + 0.5 * p) for p, g in zip(wanted, row, strict=True)]
    assert found == pytest.approx(wanted, rel=1e-14)


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_rmsprop_adds_epsilon_under_the_root(decay):
    found = updated(RMSProp([parameter()], 0.1, weight_decay=decay), VALUES, GRADIENTS)
    wanted, means = list(VALUES), [0.0] * 3
    for row, i in itertools.product(GRADIENTS, range(3)):
        g = row[i] + decay * wanted[i]
        means[i] = 0.9 * means[i] + 0.1 * g * g
        wanted[i] -= 0.1 * g / math.sqrt(means[i] + 1e-6)
    assert found == pytest.approx(wanted, rel=1e-13)


@pytest.mark.parametrize(("eps", "first", "decay"), [(1e-10, 0.1, 0.0), (1e-3, 0.0, 0.5)])
def test_adagrad(eps, first, decay):
    optimizer = AdaGrad([parameter()], 0.1, eps, first, decay)
    torchs = torch.optim.Adagrad(
        [parameter()], 0.1, weight_decay=decay, initial_accumulator_value=first, eps=eps
    )
    found = updated(optimizer, VALUES, GRADIENTS)
    assert found == pytest.approx(updated(torchs, VALUES, GRADIENTS), rel=1e-13)
    # as if nothing had happened before
    optimizer.reset()
    fresh = AdaGrad([parameter()], 0.1, eps, first, decay)
    assert updated(optimizer, VALUES, GRADIENTS) == updated(fresh, VALUES, GRADIENTS)


def test_adadelta_takes_narrow_matrices_with_many_rows_for_word_vectors():
    shapes = (4096, 512), (4095, 512), (4096, 513), (4096,)
    parameters = [nn.Parameter(torch.empty(shape, device="meta")) for shape in shapes]
    optimizer = Adadelta(parameters, 1.0)
    optimizer.make_state(parameters)
    assert ["last" in optimizer.state[p] for p in parameters] == [True, False, False, False]


def sparse_gradients(steps, start=0):
    """Return gradients of a matrix and a vector, of which a third of the rows are zero."""
    generator = torch.Generator().manual_seed(start)
    found = []
    for _ in range(steps):
        matrix = torch.randn(5, 2, generator=generator, dtype=torch.float64)
        matrix *= torch.rand(5, 1, generator=generator) < 0.67
        found.append([matrix, torch.randn(3, generator=generator, dtype=torch.float64)])
    return found


def apply(optimizer, gradients):
    """Return the parameters after a step with each set of gradients."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for step in gradients:
        for p, gradient in zip(parameters, step, strict=True):
            p.grad = gradient.clone()
        optimizer.step()
    return [p.detach().clone() for p in parameters]


def matrix_and_vector():
    torch.manual_seed(3)
    return [nn.Parameter(torch.randn(size, dtype=torch.float64)) for size in ((5, 2), (3,))]


@pytest.mark.parametrize("rows", [4, 6])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_adadelta_equals_torch(rows, decay, monkeypatch):
    monkeypatch.setattr("gumbeltree.training.optimizers.MANY", rows)
    calls = []
    monkeypatch.setattr(
        "gumbeltree.training.optimizers.update_rows",
        lambda *x: (calls.append(len(x[0].weight)), update_rows(*x)),
    )
    ours = Adadelta(matrix_and_vector(), 0.5, 1e-4, 0.8, decay)
    torchs = torch.optim.Adadelta(matrix_and_vector(), 0.5, 0.8, 1e-4, decay)
    gradients = sparse_gradients(20)
    torch.testing.assert_close(
        apply(ours, gradients), apply(torchs, gradients), rtol=1e-11, atol=1e-11
    )
    assert calls == ([5] * 20 if rows == 4 and not decay else [])
    # continues from a state of its own with the same bits, and from one of torch
    copies = []
    for state in (ours.state_dict(), torchs.state_dict()):
        copy = Adadelta(
            [p.detach().clone().requires_grad_() for p in ours.param_groups[0]["params"]], 1.0
        )
        copy.load_state_dict(deepcopy(state))
        copies.append(apply(copy, sparse_gradients(5, 1)))
    straight = apply(ours, sparse_gradients(5, 1))
    assert all(map(torch.equal, straight, copies[0]))
    torch.testing.assert_close(copies[1], straight, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("captured", [False, True])
def test_adadelta_reads_no_values_on_the_host(captured, monkeypatch):
    monkeypatch.setattr("gumbeltree.training.optimizers.MANY", 4)
    devices = []
    monkeypatch.setattr(
        "gumbeltree.training.optimizers.update_rows",
        lambda rows, scalars, *x: (
            devices.extend(str(x.device) for x in (*rows, *scalars)),
            update_rows(rows, scalars, *x),
        ),
    )
    # the meta device has no values
    parameters = [nn.Parameter(x.detach().to("meta")) for x in matrix_and_vector()]
    optimizer = Adadelta(parameters, 0.5)
    optimizer.register_step_pre_hook(_decay(parameters[:1], 0.5))
    if captured:
        optimizer.param_groups[0]["lr"] = torch.empty((), device="meta")
        optimizer.grad_scale = torch.empty((), device="meta")
    for p in parameters:
        p.grad = torch.empty_like(p)
    optimizer.step()
    assert devices == ["meta"] * 8


def test_decay_leaves_absent_words_alone_even_if_the_norm_is_infinite():
    words = nn.Parameter(torch.ones(2, 3))
    words.grad = torch.tensor([[1.0] * 3, [0.0] * 3])
    optimizer = Adadelta([words], 0.5)
    optimizer.grad_scale = torch.tensor(torch.inf)
    _decay([words], 0.5)(optimizer)
    assert words.grad[1].tolist() == [0.0] * 3


def test_a_factor_of_the_gradients_of_adagrad_equals_a_larger_first_sum():
    scaled = AdaGrad([parameter()], 0.05, 0.0, 0.1)
    larger = AdaGrad([parameter()], 0.05, 0.0, 10.0)
    tenth = [[0.1 * g for g in row] for row in GRADIENTS]
    found = updated(larger, VALUES, GRADIENTS)
    assert found == pytest.approx(updated(scaled, VALUES, tenth), rel=1e-13)
    assert found != pytest.approx(
        updated(AdaGrad([parameter()], 0.05, 0.0, 0.1), VALUES, GRADIENTS)
    )


def config(optimizer):
    settings = {"accumulator": 0.1} if optimizer == "adagrad" else {}
    return TrainingConfig(optimizer=optimizer, weight_decay=0.1, learning_rate=0.25, **settings)


def several(optimizer, model):
    return Several(
        [
            new_optimizer(config(optimizer), model[0], CPU),
            new_optimizer(config("adagrad"), model[1], CPU),
        ]
    )


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_rate_on_the_device_and_state_made_before_change_nothing(optimizer, together):
    """As a captured step does it."""
    weights = []
    for ahead in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
        new = (
            several(optimizer, model) if together else new_optimizer(config(optimizer), model, CPU)
        )
        parameters = list(model.parameters())
        for _ in range(3):
            if ahead:
                before = [p.clone() for p in parameters]
                make_state(new, parameters)
                assert all(map(torch.equal, parameters, before))
                kept = [x.data_ptr() for x in tensors(new.state_dict()["state"])]
                # torch's own reject a tensor here, unless they are capturable
                for group in new.param_groups:
                    if "capturable" not in group:
                        group["lr"] = torch.tensor(0.25)
            model(torch.ones(4, 3)).square().sum().backward()
            new.step()
            new.zero_grad()
            if ahead:
                assert [x.data_ptr() for x in tensors(new.state_dict()["state"])] == kept
        weights.append([p.detach().clone() for p in parameters])
    assert all(map(torch.equal, *weights))
    assert not torch.equal(weights[0][0], before[0])


def tensors(tree):
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


# groups


class Model(nn.Module):
    def __init__(self, tuned=True):
        super().__init__()
        self.embedding = nn.Embedding(3, 2)
        self.embedding.weight.requires_grad_(tuned)
        self.head = nn.Linear(2, 2)


def test_word_vectors_with_a_rate_of_their_own():
    model = Model()
    settings = {"learning_rate": 0.5, "word_rate": 0.1, "weight_decay": 0.3}
    rest, words = new_optimizer(TrainingConfig(**settings), model, CPU).param_groups
    assert (rest["lr"], words["lr"]) == (0.5, 0.1)
    assert rest["weight_decay"] == words["weight_decay"] == 0.3
    assert [p is model.embedding.weight for p in words["params"]] == [True]
    assert len(rest["params"]) == 2
    # without settings for them, there is one group
    assert len(new_optimizer(TrainingConfig(), model, CPU).param_groups) == 1


def test_word_vectors_with_an_optimizer_of_their_own():
    model = Model()
    settings = {"learning_rate": 0.05, "word_rate": 0.1, "weight_decay": 0.3, "accumulator": 2.0}
    made = new_optimizer(
        TrainingConfig(optimizer="adagrad", word_optimizer="sgd", **settings), model, CPU
    )
    network, words = made.parts
    assert [type(network), type(words)] == [AdaGrad, Descent]
    rest, own = made.param_groups
    assert (rest["lr"], rest["weight_decay"], rest["accumulator"]) == (0.05, 0.3, 2.0)
    assert (own["lr"], own["weight_decay"]) == (0.1, 0.0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    model.head(model.embedding.weight).square().sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    made.step()
    after = dict(model.named_parameters())
    torch.testing.assert_close(
        after["embedding.weight"],
        before["embedding.weight"] - 0.1 * gradients["embedding.weight"],
    )
    g = gradients["head.weight"] + 0.3 * before["head.weight"]
    torch.testing.assert_close(
        after["head.weight"], before["head.weight"] - 0.05 * g / (2.0 + g * g).sqrt()
    )


def test_sums_of_word_vectors():
    config = TrainingConfig(optimizer="adagrad", accumulator=0.1, word_accumulator=10.0)
    rest, words = new_optimizer(config, Model(), CPU).param_groups
    assert (rest["accumulator"], words["accumulator"]) == (0.1, 10.0)


@pytest.mark.parametrize(
    ("settings", "present", "others"),
    [({"word_rate": 1.0}, 0.3, 0.3), ({"word_decay": 0.2}, 0.2, 0.0),
     ({"word_decay": 0.0}, 0.0, 0.0), ({"word_optimizer": "sgd"}, 0.0, 0.0),
     ({"word_optimizer": "sgd", "word_decay": 0.2}, 0.2, 0.0)],
)  # fmt: skip
def test_weight_decay_of_word_vectors(settings, present, others):
    model = Model()
    optimizer = new_optimizer(
        TrainingConfig(optimizer="sgd", learning_rate=1.0, weight_decay=0.3, **settings), model, CPU
    )
    weight, head = model.embedding.weight, model.head.weight
    before, before_head = weight.detach().clone(), head.detach().clone()
    weight.grad, head.grad = torch.zeros_like(weight), torch.zeros_like(head)
    # a word is present if any part of its gradient differs from 0
    weight.grad[1, -1] = 1.0
    expected = before * (1 - others)
    expected[1] = before[1] * (1 - present) - weight.grad[1]
    optimizer.step()
    torch.testing.assert_close(weight.detach(), expected)
    torch.testing.assert_close(head.detach(), before_head * 0.7)


@pytest.mark.parametrize("optimizer", [x for x in OPTIMIZERS if x != "sgd"])
def test_epsilon(optimizer):
    config = TrainingConfig(optimizer=optimizer, eps=0.125)
    assert new_optimizer(config, Model(), CPU).param_groups[0]["eps"] == 0.125
    assert (
        new_optimizer(TrainingConfig(optimizer=optimizer), Model(), CPU).param_groups[0]["eps"]
        == {"adam": 1e-8, "adadelta": 1e-6, "rmsprop": 1e-6, "adagrad": 1e-10}[optimizer]
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"accumulator": 0.1}, r"`training.accumulator` is 0.1, but .* 'adam' .*=adagrad, or"),
        ({"reset_every": 1, "optimizer": "rmsprop"}, r"`training.reset_every` is 1.*'rmsprop'"),
        ({"eps": 0.1, "optimizer": "sgd"}, r"`training.eps` is 0.1.*adam or adadelta or"),
        (
            {"word_accumulator": 0.1, "optimizer": "adagrad", "word_optimizer": "sgd"},
            r"`training.word_accumulator` is 0.1, but .* 'sgd' .*use word_optimizer=adagrad",
        ),
        ({"word_rate": 0.1}, r"`training.word_rate` is 0.1, but .* fixed; set embedding.tuned"),
        ({"word_optimizer": "sgd"}, r"`training.word_optimizer` is sgd, but .* fixed"),
        ({"word_decay": 0.1}, r"`training.word_decay` is 0.1, but .* fixed"),
    ],
)
def test_contradictory_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        new_optimizer(TrainingConfig(**settings), Model(tuned=False), CPU)


# resuming

RUNS = {
    "rmsprop": ("optimizer=rmsprop", "weight_decay=1e-4"),
    "adagrad": ("optimizer=adagrad", "accumulator=0.1", "reset_every=1"),
    "words": ("optimizer=adagrad", "word_optimizer=sgd", "word_rate=0.1", "embedding.tuned=true"),
}


@pytest.mark.parametrize("name", RUNS)
def test_resumes(demo, tmp_path, name):
    recipe = small(
        *RUNS[name], "batch_size=70", "epochs=2", "checkpoint_seconds=0", "evaluations=2"
    )

    def fail(step):
        if step == 3:
            # of four
            raise RuntimeError("failed")

    train(recipe, demo, tmp_path / "straight", test=False)
    with pytest.raises(RuntimeError, match="failed"):
        train(recipe, demo, tmp_path / "run", on_step=fail, test=False)
    train(recipe, demo, tmp_path / "run", resume=True, test=False)
    check_resumed(tmp_path, "model", "optimizer", "schedule")


def test_resets_the_sums_at_the_start_of_epochs(demo, tmp_path, monkeypatch):
    steps, counts = [], []
    reset = AdaGrad.reset
    monkeypatch.setattr(AdaGrad, "reset", lambda self: (counts.append(len(steps)), reset(self)))
    recipe = small("optimizer=adagrad", "reset_every=2", "batch_size=70", "epochs=5")
    train(recipe, demo, tmp_path / "run", on_step=steps.append, test=False)
    assert counts == [0, 4, 8]
