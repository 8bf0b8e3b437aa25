"""One update: a captured step equals an eager one in losses, norms and all weights.

On a CPU nothing is captured, and the kernels run in Triton's interpreter, in float64.
"""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from torch import nn

from gumbeltree import layout as layout_module
from gumbeltree.config import TrainingConfig
from gumbeltree.data.device_split import DeviceSplit
from gumbeltree.data.split import Split
from gumbeltree.device.graphs import Graphs
from gumbeltree.nn.encoders.baselines import LSTMEncoder
from gumbeltree.parts import HEADS
from gumbeltree.registry import own
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
from gumbeltree.training.start import start_fabric
from gumbeltree.training.step import CapturedStep, Step, clip, why_not_captured
from tests.models import WORDS, tiny_model
from tests.ops.test_fused_estimators import SETTINGS as ESTIMATORS

pytest.importorskip("triton")

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")

LENGTHS = (1, 3, 2, 3, 1, 2, 1, 2)
"""Words per sentence."""
RATE = 2.0**-5
"""Exact in float32, the type of the learning rate in a captured step."""
BATCHES = [np.array([0, 1, 2]), np.array([7, 3]), np.array([4, 2, 0, 1])]
FEW_SPARE_ROWS = {"rounded_cap": lambda words: words + 2, "rounded_T": lambda T: T + T % 2}


def split_of(columns, lengths=LENGTHS, examples=8, seed=0):
    generator = np.random.default_rng(seed)
    return Split(
        generator.integers(2, len(WORDS) + 2, sum(lengths)).astype(np.uint16),
        np.cumsum([0, *lengths]),
        np.stack([generator.permutation(examples) % len(lengths) for _ in range(columns)], 1)
        .astype(np.int32),
        generator.integers(0, 2, examples),
    )  # fmt: skip


def with_targets(split, kind):
    """Return a split with the targets of a head."""
    generator, shape = np.random.default_rng(1), (len(split), 3)
    targets = {
        "number": generator.normal(2, 3, len(split)),
        "bins": generator.uniform(0, 6, len(split)),
        "tags": generator.integers(0, 2, shape).astype(np.uint8),
    }
    return dataclasses.replace(split, labels=targets.get(kind.partition("_")[2], split.labels))


@pytest.fixture(autouse=True)
def _few_spare_rows(monkeypatch):
    # an interpreted kernel takes a millisecond per row; keep a few spare rows and steps
    if not torch.cuda.is_available():
        for name, rounded in FEW_SPARE_ROWS.items():
            monkeypatch.setattr(layout_module, name, rounded)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=RATE)


def adam(parameters):
    # a large eps keeps updates by rounding errors small
    return torch.optim.Adam(parameters, lr=RATE, eps=1e-3, foreach=False)


def fused_adam(parameters):
    # with this eps the updates depend on the size of the gradients
    return torch.optim.Adam(parameters, lr=RATE, eps=1.0, fused=True)


def rmsprop(parameters):
    return RMSProp(parameters, lr=RATE, eps=1e-3)


def several(parameters):
    words, *rest = parameters
    return Several([AdaGrad(rest, RATE, eps=1e-3, accumulator=0.5), Descent([words], RATE / 2)])


def adadelta(parameters):
    return Adadelta(parameters, RATE, eps=1e-3)


class Update:
    """A tiny model in float64 with its update."""

    def __init__(
        self,
        captured,
        kind="single",
        optimizer=sgd,
        split=None,
        dropout=0.0,
        clip=0.0,
        frozen=False,
        batch_norm=True,
        class_weights=None,
        fabric=None,
        **encoder,
    ):
        impl = "fused" if captured else "exact"
        self.model = tiny_model(kind, impl=impl, **encoder).double().train()
        if class_weights is not None:
            self.model.head.class_weights = torch.tensor(class_weights, dtype=torch.float64)
        self.model.embedding.weight.requires_grad_(not frozen)
        if not batch_norm:
            self.model.head.batch_norm_in = self.model.head.batch_norm_out = nn.Identity()
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = dropout
        self.optimizer = optimizer([p for p in self.model.parameters() if p.requires_grad])
        split = split or with_targets(split_of(2 if kind.startswith("pair") else 1), kind)
        config = TrainingConfig(seed=3, clip=clip)
        fabric = fabric or Fabric(accelerator="cpu", devices=1)
        if captured:
            self.step = CapturedStep(fabric, self.model, self.optimizer, split, config)
        else:
            module, wrapped = fabric.setup(self.model, self.optimizer)
            self.step = Step(fabric, module, self.model, wrapped, split, config)
        self.count = 0

    def __call__(self, rows, epoch=0):
        self.step(rows, epoch, self.count)
        self.count += 1
        return float(self.step.loss), float(self.step.norm)

    @property
    def state(self):
        """All weights and running statistics."""
        return {name: x.clone() for name, x in self.model.state_dict().items()}


class Both:
    """The eager and the captured update of equal models."""

    def __init__(self, **settings):
        self.eager, self.captured = Update(False, **settings), Update(True, **settings)
        # optimizers other than SGD round to float32, as the learning rate does
        self.tolerance = 1e-8 if settings.get("optimizer", sgd) is sgd else 1e-6

    def __call__(self, rows, epoch=0):
        """Update both models and compare sums, weights and statistics."""
        for update in (self.eager, self.captured):
            update(rows, epoch)
        for name in ("loss", "norm"):
            one, other = (float(getattr(x.step, name)) for x in (self.eager, self.captured))
            assert other == pytest.approx(one, rel=self.tolerance), name
        state = self.captured.state
        for name, x in self.eager.state.items():
            torch.testing.assert_close(
                state[name],
                x,
                rtol=self.tolerance,
                atol=self.tolerance,
                msg=lambda text, name=name: f"{name}: {text}",
            )


@interpreted
def test_computes_the_loss_in_float32_under_autocast(monkeypatch):
    kinds = []
    cross_entropy = nn.functional.cross_entropy

    def spy(scores, *args, **kwargs):
        kinds.append(scores.dtype)
        return cross_entropy(scores, *args, **kwargs)

    update = Update(True)
    update.model.float()
    update.step.parameters = [p for p in update.model.parameters() if p.requires_grad]
    forward = update.model.head.forward
    monkeypatch.setattr(nn.functional, "cross_entropy", spy)
    monkeypatch.setattr(
        update.model.head, "forward", lambda *a: forward(*a).bfloat16(), raising=False
    )
    update(BATCHES[1])
    assert kinds == [torch.float32]


@interpreted
@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "single", "leaf": "lstm"},
        {"kind": "pair", "leaf": "bilstm", "attention": True, "score": "scaled_dot"},
        {"kind": "single", "trees": "random"},
        {"kind": "pair", "trees": "balanced", "attention": True},
        {"kind": "single", "pooling": "max"},
        {"kind": "single", "leaf": "norm", "cell": "gated"},
        *(
            pytest.param(settings, marks=pytest.mark.slow)
            for settings in (
                {"kind": "pair"},
                {"kind": "pair", "leaf": "lstm", "attention": True},
                {"kind": "single", "leaf": "bilstm"},
                {"kind": "pair", "trees": "left"},
                {"kind": "single", "trees": "right", "leaf": "lstm"},
                {"kind": "single", "leaf": "lstm", "optimizer": adam},
                {"kind": "single", "leaf": "bilstm", "optimizer": adam},
            )
        ),
    ],
    ids=lambda settings: "-".join(getattr(x, "__name__", str(x)) for x in settings.values()),
)
def test_captured_equals_eager(settings):
    both = Both(**settings)
    start = both.captured.state
    for epoch, rows in enumerate(BATCHES[:2]):
        both(rows, epoch)
    unchanged = {name for name, x in both.captured.state.items() if torch.equal(x, start[name])}
    assert not unchanged
    assert all(p.grad is None for p in both.captured.model.parameters())


def with_trees(split, seed=5):
    """Return a split whose sentences have random trees."""
    generator = np.random.default_rng(seed)
    merges = [
        generator.integers(left) for n in np.diff(split.starts) for left in range(n - 1, 0, -1)
    ]
    return dataclasses.replace(split, orders=np.array(merges, np.uint16))


@interpreted
@pytest.mark.parametrize(
    ("trees", "cell"), [("gold", "treelstm"), *((x, "gated") for x in ("gold", "left", "random"))]
)
def test_captured_equals_eager_for_trees_that_are_not_learned(trees, cell):
    leaf = "norm" if cell == "gated" else "affine"
    split = split_of(1, lengths=(4, 3, 1, 5, 1, 2, 1, 2))
    followed = with_trees(split) if trees == "gold" else split
    both = Both(split=followed, trees=trees, leaf=leaf, cell=cell)
    short, long = (np.flatnonzero((split.lengths[:, 0] > 2) == x) for x in (False, True))
    both(long[:2])
    both(short[:3])
    if trees == "gold":
        # the trees matter
        other = Update(True, split=with_trees(split, seed=6), trees="gold", leaf=leaf, cell=cell)
        other(long[:2])
        assert float(other.step.loss) != pytest.approx(float(both.eager.step.loss), rel=1e-3)


@interpreted
def test_captured_equals_eager_for_supervised_trees():
    # random orders of the merges depend on the padded length, which is even in both
    split = with_trees(split_of(1, lengths=(4, 3, 1, 4, 1, 2, 1, 2)))
    both = Both(split=split, encoder="supervised_tree", leaf="affine")
    both(np.flatnonzero(split.lengths[:, 0] == 4)[:2])
    both(np.flatnonzero(split.lengths[:, 0] < 3)[:3])


def test_a_batch_on_the_device_has_the_trees_of_the_split():
    split = with_trees(split_of(2, lengths=(4, 3, 1, 5, 1, 2, 1, 2)))
    on_device = DeviceSplit(split, torch.device("cpu"))
    for rows in (np.array([0, 3, 1]), np.arange(8), np.flatnonzero(split.lengths.max(1) == 1)):
        if len(rows):
            bounds, numbers = on_device.place(rows)
            order = on_device.read(torch.from_numpy(numbers), bounds).sentences.order
            expected = split.batch(rows).sentences.order
            width = expected.shape[1]
            assert torch.equal(order[:, :width], expected)
            assert bool((order[:, width:] == -1).all())
    words = dataclasses.replace(split_of(1, (1, 1)), orders=np.empty(0, np.uint16))
    on_device = DeviceSplit(words, torch.device("cpu"))
    bounds, numbers = on_device.place(np.array([0, 1]))
    order = on_device.read(torch.from_numpy(numbers), bounds).sentences.order
    assert order.tolist() == [[-1] * (bounds.T - 1)] * 2


@interpreted
@pytest.mark.parametrize(
    ("kind", "encoder", "baseline"),
    [
        ("single", "gumbel_tree", "self_critical"),
        pytest.param("pair", "parser_composer", "nvil", marks=pytest.mark.slow),
        pytest.param("pair", "gumbel_tree", "rloo", marks=pytest.mark.slow),
        pytest.param("single", "parser_composer", "running", marks=pytest.mark.slow),
    ],
)
def test_captured_equals_eager_for_policies(kind, encoder, baseline):
    settings = {"kind": "ppo", "baseline": baseline, "updates": 2, "samples": 2, "critic_dim": 4}
    both = Both(kind=kind, encoder=encoder, estimator=settings, leaf="affine")
    for rows in (BATCHES[1], BATCHES[1]):
        both(rows)
    one, other = (update.step.policy for update in (both.eager, both.captured))
    torch.testing.assert_close(one.sums, other.sums)
    assert one.sums[0] == pytest.approx(1 - 0.9**2)
    if baseline == "nvil":
        for name, x in one.critic.state_dict().items():
            torch.testing.assert_close(other.critic.state_dict()[name], x, rtol=1e-6, atol=1e-8)


@interpreted
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("gumbel_rao", "ce") else pytest.param(name, marks=pytest.mark.slow)
        for name in ESTIMATORS
    ],
)
def test_captured_equals_eager_for_every_estimator(name):
    split = split_of(1, lengths=(1, 4, 2, 3, 1, 2, 1, 2))
    both = Both(split=split, leaf="affine", estimator=ESTIMATORS[name])
    before = both.captured.state["encoder.query"]
    both(np.flatnonzero(split.lengths[:, 0] > 1)[:3])
    assert not torch.equal(both.captured.state["encoder.query"], before)


@interpreted
@pytest.mark.parametrize("kind", [*(name for name in HEADS if "_" in name), "weighted"])
def test_captured_equals_eager_for_every_head(kind):
    weights = {"class_weights": [3.0, 0.25]} if kind == "weighted" else {}
    both = Both(kind="single" if weights else kind, trees="balanced", leaf="affine", **weights)
    both(BATCHES[0])
    assert both.captured.step.loss > 0
    assert own(both.captured.model.head, "capturable")


@interpreted
@pytest.mark.parametrize(
    ("optimizer", "leaf"),
    [(sgd, "bilstm"), pytest.param(adam, "lstm", marks=pytest.mark.slow)],
)
def test_clips_each_gradient_once(optimizer, leaf):
    # bias_ih and bias_hh share one gradient tensor
    both = Both(optimizer=optimizer, clip=0.125, leaf=leaf, trees="left")
    norms = []
    both.captured.optimizer.register_step_pre_hook(
        lambda *_: norms.append(
            float(torch.cat([p.grad.flatten() for p in both.captured.model.parameters()]).norm())
        )
    )
    both(BATCHES[0])
    both(BATCHES[1])
    assert both.captured.step.norm > 1
    # the first one creates the optimizer's state, without a gradient
    assert norms == pytest.approx([0.0, 0.125, 0.125], rel=1e-5)


def decayed(optimizer):
    """Return an optimizer that decays the word vectors of a batch."""

    def new(parameters):
        made = optimizer(parameters)
        made.register_step_pre_hook(_decay(parameters[:1], 0.5))
        return made

    return new


@interpreted
@pytest.mark.parametrize(
    ("optimizer", "clip", "rows"),
    [(fused_adam, 0.05, 4096), (fused_adam, 1e6, 4096), (adadelta, 0.05, 4096), (adadelta, 0.05, 4),
     (decayed(fused_adam), 0.05, 4096), (decayed(adadelta), 0.05, 4)],
)  # fmt: skip
def test_clips_in_the_optimizer(optimizer, clip, rows, monkeypatch):
    monkeypatch.setattr("gumbeltree.training.optimizers.MANY", rows)
    both = Both(optimizer=optimizer, clip=clip, trees="left")
    scales = []
    both.captured.optimizer.register_step_pre_hook(
        lambda x, *_: scales.append(getattr(x, "grad_scale", None))
    )
    both(BATCHES[0])
    both(BATCHES[1])
    assert float(both.captured.step.norm) / 2 > 0.05
    # the state of fused optimizers of torch takes a step of its own
    assert [bool(x > 1) for x in scales if x is not None] == [clip < 1] * 2
    assert both.captured.optimizer.grad_scale is None


@interpreted
@pytest.mark.parametrize("optimizer", [rmsprop, several, adadelta])
def test_captured_equals_eager_for_own_optimizers(optimizer, monkeypatch):
    # Adadelta updates all matrices by row
    monkeypatch.setattr("gumbeltree.training.optimizers.MANY", 1)
    both = Both(optimizer=optimizer, clip=0.5, leaf="affine", trees="left")
    for number, rows in enumerate(BATCHES[:2]):
        for update in (both.eager, both.captured):
            for group in update.optimizer.param_groups:
                # schedules change the rates between the steps
                group["lr"] = RATE / 2**number
        both(rows)


@interpreted
@pytest.mark.parametrize(
    ("optimizer", "leaf"),
    [(sgd, "affine"), pytest.param(adam, "lstm", marks=pytest.mark.slow)],
)
def test_a_batch_of_single_words(optimizer, leaf):
    split = split_of(1, lengths=(1, 3, 1, 1, 1, 1, 1, 2))
    short = np.flatnonzero(split.lengths[:, 0] == 1)[:3]
    long = np.flatnonzero(split.lengths[:, 0] > 1)
    both = Both(optimizer=optimizer, leaf=leaf, split=split)
    for rows in (short, long, short):
        both(rows)


@interpreted
def test_a_single_example_and_an_example_twice():
    # batch normalisation needs two examples
    both = Both(batch_norm=False, trees="left")
    both(np.array([3]))
    both(np.array([1, 1]))


@interpreted
def test_word_vectors_stay_unless_tuned():
    both = Both(frozen=True, clip=0.5, trees="left")
    before = both.captured.state["embedding.weight"]
    both(BATCHES[1])
    assert torch.equal(both.captured.state["embedding.weight"], before)


@interpreted
def test_the_learning_rate_takes_effect():
    both = Both(trees="left")
    states = []
    for rate in (RATE, 0.0, RATE / 4):
        for update in (both.eager, both.captured):
            update.optimizer.param_groups[0]["lr"] = rate
        both(BATCHES[1])
        # checkpoints and schedules expect a float
        assert type(both.captured.optimizer.param_groups[0]["lr"]) is float
        assert both.captured.optimizer.param_groups[0]["lr"] == rate
        states.append(both.captured.state["encoder.cell.weight"])
    same = [torch.equal(a, b) for a, b in itertools.pairwise(states)]
    assert same == [True, False]


@interpreted
def test_the_temperature_takes_effect():
    both = Both()
    moves = []
    for temperature in (1.0, 0.25):
        before = both.captured.state["encoder.query"]
        for update in (both.eager, both.captured):
            update.model.encoder.temperature = temperature
        both(BATCHES[0])
        moves.append(both.captured.state["encoder.query"] - before)
    # a lower temperature makes the gradients larger
    assert moves[1].norm() > 1.5 * moves[0].norm()


@interpreted
def test_epochs_have_different_noise():
    both = Both()
    for update in (both.eager, both.captured):
        update.optimizer.param_groups[0]["lr"] = 0.0
    norms = []
    for epoch in (1, 0, 1):
        for update in (both.eager, both.captured):
            update.step.norm.zero_()
        both(BATCHES[0], epoch)
        norms.append(float(both.captured.step.norm))
    assert norms[0] == norms[2] != norms[1]


DROPPING = {"leaf": "norm", "cell": {"kind": "gated", "dropout": 0.4}}
"""An encoder with dropout inside its cell."""


@interpreted
def test_drops_the_same_units_inside_the_cell():
    both = Both(**DROPPING)
    for rows in BATCHES[:2]:
        both(rows)


@interpreted
@pytest.mark.parametrize("settings", [{"dropout": 0.4, "trees": "left"}, DROPPING])
def test_dropout_depends_on_seed_and_step_alone(settings):
    def trained(first, draws):
        update = Update(True, clip=0.5, **settings)
        update.count = first
        torch.rand(draws)
        return update(BATCHES[1])[0], update.state

    (loss, state), (again, same), (other, _) = trained(0, 3), trained(0, 8), trained(1, 3)
    assert loss == again != other
    for name, x in state.items():
        assert torch.equal(x, same[name]), name


@pytest.mark.parametrize("kind", [sgd, adam, adadelta])
def test_make_state_equals_the_state_of_the_first_update(kind):
    torch.manual_seed(0)
    weights = [torch.randn(3, requires_grad=True) for _ in range(2)]
    gradients = [[torch.randn(3) for _ in weights] for _ in range(3)]
    trained = []
    for made in (False, True):
        parameters = [w.detach().clone().requires_grad_() for w in weights]
        optimizer = kind(parameters)
        for number, step in enumerate(gradients):
            if made:
                before = [p.detach().clone() for p in parameters]
                make_state(optimizer, parameters)
                assert all(p in optimizer.state for p in parameters)
                assert all(map(torch.equal, parameters, before))
                assert all(p.grad is None for p in parameters)
                assert optimizer.param_groups[0]["lr"] == RATE
            # the second parameter gets its first gradient later
            for p, g in zip(parameters[: 1 + (number > 0)], step, strict=False):
                p.grad = g.clone()
            optimizer.step()
            for p in parameters:
                p.grad = None
        trained.append(parameters)
    assert all(map(torch.equal, *trained))


@interpreted
def test_makes_the_state_before_capture(monkeypatch):
    update = Update(True, optimizer=adam)
    assert update.step.graphs.at_once
    parameters = update.step.parameters
    made = []
    monkeypatch.setattr(
        type(update.step.graphs),
        "__call__",
        lambda *_: made.append(all(p in update.optimizer.state for p in parameters)),
    )
    update(BATCHES[0])
    assert made == [True]


@interpreted
def test_the_largest_batch_is_captured_first(monkeypatch):
    update = Update(True, trees="left")
    called = []
    graphs = type(update.step.graphs)
    run = graphs.__call__
    monkeypatch.setattr(
        graphs, "__call__", lambda *args: called.append(("run", args[1])) or run(*args)
    )
    monkeypatch.setattr(graphs, "reserve", lambda *args: called.append(("reserve", args[1])))
    longest = update.step.split.lengths.max(axis=1)
    order = longest.argsort()
    short, long = order[:2], order[-2:]
    assert longest[short].max() < longest[long].max()
    update.step.reserve([short, long, short[:1]])
    before = update.state
    for rows in (short, short, long):
        update(rows)
    # the first batch compiles kernels
    assert [name for name, _ in called] == ["run", "reserve", "run", "run"]
    (_, first), (_, largest), _, (_, last) = called
    assert largest == last != first
    other = Update(True, trees="left")
    assert all(torch.equal(x, before[name]) for name, x in other.state.items())
    for rows in (short, short, long):
        other(rows)
    assert all(torch.equal(x, update.state[name]) for name, x in other.state.items())


@interpreted
def test_the_sums_can_be_set_to_zero():
    update = Update(True, trees="left")
    update.optimizer.param_groups[0]["lr"] = 0.0
    once, twice = update(BATCHES[1]), update(BATCHES[1])
    assert twice == pytest.approx(tuple(2 * x for x in once), rel=1e-12)
    update.step.loss.zero_()
    update.step.norm.zero_()
    assert update(BATCHES[1]) == once
    assert update.step.loss.dtype == update.step.norm.dtype == torch.float64


@pytest.mark.parametrize(("limit", "scale"), [(0.0, 1.0), (2.5, 0.5), (50.0, 1.0)])
def test_clip(limit, scale):
    model = nn.Linear(2, 2)
    model.weight.grad = torch.tensor([[3.0, 0.0], [0.0, 0.0]])
    model.bias.grad = torch.tensor([0.0, 4.0])
    assert clip(model, limit) == 5
    assert model.weight.grad[0, 0] == pytest.approx(3 * scale, rel=1e-6)
    assert model.bias.grad[1] == pytest.approx(4 * scale, rel=1e-6)
    model.bias.grad = None
    assert clip(model, limit) == pytest.approx(3 * scale)


def test_why_not_captured():
    def reason(model, device="cuda"):
        return why_not_captured(SimpleNamespace(device=torch.device(device)), model)

    model = tiny_model(impl="exact")
    assert "cpu" in reason(model, "cpu")
    assert "'exact'" in reason(model)
    # an inherited value does not count
    model.encoder.__class__ = type("Undeclared", (LSTMEncoder,), {})
    assert "Undeclared does not declare itself" in reason(model)
    if not torch.cuda.is_available():
        assert reason(tiny_model(impl="fused")) is None
    with torch.autograd.set_detect_anomaly(True):
        assert "anomaly detection" in reason(tiny_model(impl="fused"))


# captured on a CUDA device


def cuda_split():
    lengths = np.random.default_rng(1).integers(1, 25, 200)
    return split_of(2, tuple(lengths.tolist()), examples=200)


def cuda_steps(captured, batches, dropout=0.0, optimizer="adam", batch_norm=True, **encoder):
    """Update a model on the device; return the loss and norm of each step, and the weights."""
    fabric = start_fabric("cuda", "32")
    split = cuda_split()
    if encoder.get("trees") == "gold":
        split = with_trees(split)
    torch.manual_seed(0)
    sizes = {"embedding_dim": 20, "hidden_dim": 48, "leaf": "lstm", "impl": "fused"}
    model = tiny_model("pair", **{**sizes, **encoder}).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    if not batch_norm:
        model.head.batch_norm_in = model.head.batch_norm_out = nn.Identity()
    with torch.no_grad():
        for p in model.parameters():
            # tiny_model's weights are for 6 units
            p.mul_(0.3)
    rates = {"adadelta": 2.0, "sgd": 0.5, "adagrad": 0.05}
    rate = rates.get(optimizer, 0.005)
    config = TrainingConfig(seed=3, clip=1.0, learning_rate=rate, optimizer=optimizer)
    plain = new_optimizer(config, model.to(fabric.device), fabric.device)
    if captured:
        assert why_not_captured(fabric, model) is None
        step = CapturedStep(fabric, model, plain, split, config)
    else:
        module, wrapped = fabric.setup(model, plain)
        step = Step(fabric, module, model, wrapped, split, config)
    sums = []
    for number, rows in enumerate(batches):
        step.loss.zero_()
        step.norm.zero_()
        step(rows, number // 4, number)
        sums.append((float(step.loss), float(step.norm)))
    state = {name: x.cpu() for name, x in model.state_dict().items()}
    return np.array(sums), state, step


# batches of one shape: the first runs eagerly, the second is captured, the others replay it
GPU_BATCHES = [np.arange(64), np.arange(64)[::-1].copy(), np.arange(64)] * 2


@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "adam"},
        {"optimizer": "adadelta"},
        {"optimizer": "rmsprop"},
        {"optimizer": "sgd"},
        {"optimizer": "adagrad"},
        {"optimizer": "adam", "cell": "gated", "leaf": "norm"},
        {"optimizer": "adam", "trees": "gold", "cell": "gated", "leaf": "norm"},
    ],
    ids=lambda settings: "-".join(settings.values()),
)
def test_gpu_captured_equals_eager(settings, monkeypatch):
    # Adadelta updates all matrices by row
    monkeypatch.setattr("gumbeltree.training.optimizers.MANY", 1)
    eager, weights, _ = cuda_steps(False, GPU_BATCHES, **settings)
    captured, found, step = cuda_steps(True, GPU_BATCHES, **settings)
    assert len(step.graphs.captured) == 1
    np.testing.assert_allclose(captured[:, 0], eager[:, 0], rtol=1e-3)
    # a different merge changes the norm more than the loss
    np.testing.assert_allclose(captured[:, 1], eager[:, 1], rtol=2e-2)
    # the losses do change
    assert np.ptp(eager[:, 0]) > 5e-3 * eager[0, 0]
    for name, x in weights.items():
        if x.is_floating_point():
            assert float((found[name] - x).norm() / x.norm()) < 3e-2, name


@pytest.mark.gpu
@pytest.mark.parametrize("encoder", ["gumbel_tree", "parser_composer"])
@pytest.mark.parametrize("baseline", ["self_critical", "rloo", "nvil"])
def test_gpu_captured_equals_eager_for_policies(encoder, baseline):
    settings = {"kind": "ppo", "baseline": baseline, "updates": 3, "samples": 2}
    sums = []
    for captured in (False, True):
        losses, _, step = cuda_steps(captured, GPU_BATCHES, encoder=encoder, estimator=settings)
        sums.append((losses[:, 0], step.policy.sums.cpu().numpy()))
    assert len(step.graphs.captured) == 1
    for eager, captured in zip(*sums, strict=True):
        # rounding can change a merge, and later weights with it
        np.testing.assert_allclose(captured, eager, rtol=1e-2, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ESTIMATORS)
def test_gpu_captured_equals_eager_for_every_estimator(name):
    settings = {"estimator": ESTIMATORS[name]}
    eager, weights, _ = cuda_steps(False, GPU_BATCHES[:3], **settings)
    captured, found, step = cuda_steps(True, GPU_BATCHES[:3], **settings)
    assert len(step.graphs.captured) == 1
    np.testing.assert_allclose(captured[:, 0], eager[:, 0], rtol=1e-3)
    np.testing.assert_allclose(captured[:, 1], eager[:, 1], rtol=2e-2)
    for key, x in weights.items():
        if x.is_floating_point():
            assert float((found[key] - x).norm() / x.norm()) < 3e-2, key
    # the first step runs eagerly, and is that of `exact`
    exact, _, _ = cuda_steps(False, GPU_BATCHES[:1], impl="exact", **settings)
    np.testing.assert_allclose(captured[:1, 0], exact[:, 0], rtol=1e-3)
    np.testing.assert_allclose(captured[:1, 1], exact[:, 1], rtol=2e-2)


@pytest.mark.gpu
def test_gpu_replays_other_batches_of_the_same_shape():
    generator = np.random.default_rng(5)
    # large enough that the shape rarely changes
    batches = [generator.permutation(200)[:160] for _ in range(8)]
    eager, _, _ = cuda_steps(False, batches)
    captured, _, step = cuda_steps(True, batches)
    assert len(step.graphs.seen) == 1
    assert 0 < len(step.graphs.captured) < len(batches)
    np.testing.assert_allclose(captured[:, 0], eager[:, 0], rtol=1e-3)


@pytest.mark.gpu
def test_gpu_capture_at_once_gives_the_same_bits(monkeypatch):
    # many shapes, whose kernels are first compiled during a capture
    batches = [np.arange(start, start + size) for size in (40, 9, 3, 25) for start in (0, 30, 60)]
    now, state, step = cuda_steps(True, batches * 2, 0.3)
    assert len(step.graphs.seen) == 1
    assert len(step.graphs.captured) > 4
    monkeypatch.setattr("gumbeltree.training.step.Graphs", lambda device, at_once: Graphs(device))
    later, same, step = cuda_steps(True, batches * 2, 0.3)
    assert len(step.graphs.seen) > 4
    assert np.array_equal(now, later)
    for name, x in state.items():
        assert torch.equal(x, same[name]), name


@pytest.mark.gpu
def test_gpu_creates_tables_of_trees_outside_the_graph():
    split = cuda_split()
    order = np.argsort(split.lengths.max(axis=1))
    # sentences get longer, so that later batches need a larger table
    batches = [order[start : start + 40] for start in (0, 80, 160)] * 2
    eager, _, _ = cuda_steps(False, batches, trees="balanced")
    captured, _, step = cuda_steps(True, batches, trees="balanced")
    assert step.graphs.captured
    np.testing.assert_allclose(captured[:, 0], eager[:, 0], rtol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("cell", ["treelstm", "gated"])
def test_gpu_captured_twice_gives_the_same_bits(cell):
    (one, state, _), (other, same, _) = (
        cuda_steps(True, GPU_BATCHES, 0.3, cell=cell) for _ in range(2)
    )
    assert np.array_equal(one, other)
    for name, x in state.items():
        assert torch.equal(x, same[name]), name
    # dropout differs from step to step, in replays as well
    plain, _, _ = cuda_steps(True, GPU_BATCHES, 0.0, cell=cell)
    assert (abs(one[:, 0] - plain[:, 0]) > 1e-3).all()


@pytest.mark.gpu
def test_gpu_captured_with_dropout_inside_the_cell():
    (one, state, step), (other, same, _) = (
        cuda_steps(True, GPU_BATCHES, **DROPPING) for _ in range(2)
    )
    assert step.graphs.captured
    assert np.array_equal(one, other)
    for name, x in state.items():
        assert torch.equal(x, same[name]), name


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [{"dropout": 0.5}, DROPPING])
def test_gpu_dropout_differs_between_replays(settings):
    # without an update, replays differ by dropout and noise alone
    _, _, step = cuda_steps(True, GPU_BATCHES[:3], **settings)
    step.optimizer.param_groups[0]["lr"] = 0.0
    losses = []
    for number in (3, 4, 5, 3):
        step.loss.zero_()
        step(GPU_BATCHES[0], 0, number)
        losses.append(float(step.loss))
    assert len(set(losses[:3])) == 3
    assert losses[3] == losses[0]


@pytest.mark.gpu
def test_gpu_rate_and_temperature_reach_a_captured_step():
    *_, step = cuda_steps(True, GPU_BATCHES)
    step.optimizer.param_groups[0]["lr"] = 0.0
    before = {name: p.detach().clone() for name, p in step.model.named_parameters()}
    norms = []
    for step.model.encoder.temperature in (1.0, 0.25):
        step.norm.zero_()
        step(GPU_BATCHES[0], 0, 6)
        norms.append(float(step.norm))
    for name, p in step.model.named_parameters():
        assert torch.equal(p, before[name]), name
    assert norms[0] != norms[1]
    step.optimizer.param_groups[0]["lr"] = 0.01
    step(GPU_BATCHES[0], 0, 7)
    assert not torch.equal(step.model.encoder.query, before["encoder.query"])


@pytest.mark.parametrize("grouped", [False, True])
def test_processes_share_groups_only_at_their_borders(monkeypatch, grouped):
    found = []
    monkeypatch.setattr(Step, "_update", lambda self, batch, *_: found.append(batch.own[:4]))
    split = Split(
        np.arange(1, 9, dtype=np.uint16),
        np.arange(9),
        np.stack([np.arange(8) // 2, np.arange(8)], 1).astype(np.int32),
        np.zeros(8, dtype=np.int64),
    )
    step = object.__new__(Step)
    step.split, step.columns, step.samples, step.config = split, 2, 1, SimpleNamespace(seed=0)
    encoder = SimpleNamespace(vector_dim=4)
    step.model = SimpleNamespace(head=SimpleNamespace(grouped=grouped), encoder=encoder)
    for rank in range(2):
        step.fabric = SimpleNamespace(global_rank=rank, world_size=2, device=torch.device("cpu"))
        step(np.arange(8), 0, 0)
    shares = [[0, 1, 2, 3], [4, 5, 6, 7]] if grouped else [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert [own.tolist() for own in found] == shares
