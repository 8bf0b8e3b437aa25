"""One update: captured == as it comes, in losses, norms and every weight.

On a CPU nothing is captured, and the kernels run in Triton's interpreter, in float64.
"""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from torch import nn

from gumbeltree import layout as layout_module
from gumbeltree.config import BagConfig, ModelConfig, TrainingConfig
from gumbeltree.data.split import Split
from gumbeltree.device.graphs import Graphs
from gumbeltree.model import SentenceModel
from gumbeltree.training.loop import new_optimizer
from gumbeltree.training.start import start_fabric
from gumbeltree.training.step import CapturedStep, Step, clip, make_state, why_not_captured
from tests.models import WORDS, tiny_model

pytest.importorskip("triton")

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")

LENGTHS = (1, 4, 2, 3, 1, 3, 1, 2)
"""Words of the sentences."""
RATE = 2.0**-5
"""Exact in float32, in which a captured step keeps it."""


def split_of(columns, lengths=LENGTHS, examples=8, seed=0):
    generator = np.random.default_rng(seed)
    return Split(
        generator.integers(2, len(WORDS) + 2, sum(lengths)).astype(np.uint16),
        np.cumsum([0, *lengths]),
        np.stack([generator.permutation(examples) % len(lengths) for _ in range(columns)], 1)
        .astype(np.int32),
        generator.integers(0, 2, examples),
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _few_spare_rows(monkeypatch):
    # an interpreted kernel costs a millisecond a row; some are there, and some steps too many
    if not torch.cuda.is_available():
        monkeypatch.setattr(layout_module, "rounded_cap", lambda words: words + 2)
        monkeypatch.setattr(layout_module, "rounded_T", lambda T: T + T % 2)


BATCHES = [np.array([0, 1, 2, 5]), np.array([7, 3, 6]), np.array([4, 2, 0, 1])]


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=RATE)


def adam(parameters):
    # gradients that are rounding errors stay small
    return torch.optim.Adam(parameters, lr=RATE, eps=1e-3, foreach=False)


def adadelta(parameters):
    return torch.optim.Adadelta(parameters, lr=RATE, foreach=False)


class Update:
    """A tiny model in float64 and what updates it."""

    def __init__(
        self, captured, kind="pair", optimizer=sgd, split=None, dropout=0.0, clip=0.0, **encoder
    ):
        impl = "fused" if captured else "exact"
        self.model = tiny_model(kind, impl=impl, **encoder).double().train()
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = dropout
        self.optimizer = optimizer([p for p in self.model.parameters() if p.requires_grad])
        split = split or split_of(2 if kind == "pair" else 1)
        config = TrainingConfig(seed=3, clip=clip)
        fabric = Fabric(accelerator="cpu", devices=1)
        module, wrapped = fabric.setup(self.model, self.optimizer)
        if captured:
            self.step = CapturedStep(fabric, module, self.model, self.optimizer, split, config)
        else:
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


def check_equal(eager, captured, tolerance=1e-8):
    """Compare losses and norms so far, and all that the model holds.

    Noise is float32, and its last bit depends on who takes the logarithm.
    """
    for name in ("loss", "norm"):
        one, other = (float(getattr(update.step, name)) for update in (eager, captured))
        assert other == pytest.approx(one, rel=tolerance), name
    found = captured.state
    for name, x in eager.state.items():
        torch.testing.assert_close(
            found[name], x, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: name + text
        )


def both(**settings):
    return Update(False, **settings), Update(True, **settings)


@interpreted
def test_the_loss_is_in_float32_where_products_are_not(monkeypatch):
    kinds = []
    real = nn.functional.cross_entropy

    def spy(scores, *args, **kwargs):
        kinds.append(scores.dtype)
        return real(scores, *args, **kwargs)

    update = Update(True, "single")
    update.model.float()
    update.step.parameters = [p for p in update.model.parameters() if p.requires_grad]
    real_head = update.model.head.forward
    monkeypatch.setattr(nn.functional, "cross_entropy", spy)
    monkeypatch.setattr(
        update.model.head, "forward", lambda *a: real_head(*a).bfloat16(), raising=False
    )
    update(BATCHES[0])
    assert kinds == [torch.float32]


@interpreted
@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "pair"},
        {"kind": "single", "leaf": "lstm"},
        {"kind": "pair", "leaf": "lstm", "attention": True},
        {"kind": "single", "leaf": "bilstm"},
        {"kind": "pair", "leaf": "bilstm", "attention": True, "score": "scaled_dot"},
        {"kind": "pair", "trees": "left"},
        {"kind": "single", "trees": "right", "leaf": "lstm"},
        {"kind": "pair", "trees": "balanced", "attention": True},
        {"kind": "single", "trees": "random"},
    ],
    ids=str,
)
def test_captured_equals_eager(settings):
    eager, captured = both(**settings)
    start = captured.state
    # pairs take twice the time
    for epoch, rows in enumerate(BATCHES[: 2 if settings["kind"] == "pair" else 3]):
        eager(rows, epoch)
        captured(rows, epoch)
        check_equal(eager, captured)
    moved = {name for name, x in captured.state.items() if not torch.equal(x, start[name])}
    assert start.keys() == moved
    assert all(p.grad is None for p in captured.model.parameters())


@interpreted
@pytest.mark.parametrize("leaf", ["lstm", "bilstm"])
def test_captured_equals_eager_with_adam(leaf):
    eager, captured = both(kind="single", optimizer=adam, leaf=leaf)
    for rows in BATCHES:
        eager(rows)
        captured(rows)
    # steps are rounded to float32, as the rate is
    check_equal(eager, captured, tolerance=1e-6)


@interpreted
@pytest.mark.parametrize(("optimizer", "leaf"), [(sgd, "lstm"), (adam, "lstm"), (sgd, "bilstm")])
def test_gradients_are_clipped_once(optimizer, leaf):
    # those of bias_ih and bias_hh are one tensor, which must not be scaled twice
    eager, captured = both(kind="single", optimizer=optimizer, clip=0.125, leaf=leaf)
    norms = []
    captured.optimizer.register_step_pre_hook(
        lambda *_: norms.append(
            float(torch.cat([p.grad.flatten() for p in captured.model.parameters()]).norm())
        )
    )
    for rows in BATCHES[:2]:
        eager(rows)
        captured(rows)
    check_equal(eager, captured, 1e-6 if optimizer is adam else 1e-8)
    assert captured.step.norm > 1
    # the first is of no gradient: it makes what the optimizer keeps
    assert norms == pytest.approx([0.0, 0.125, 0.125], rel=1e-5)


@interpreted
@pytest.mark.parametrize(("optimizer", "leaf"), [(sgd, "affine"), (adam, "lstm")])
def test_a_batch_of_single_words(optimizer, leaf):
    split = split_of(1, lengths=(1, 3, 2, 1, 1, 1, 1, 3))
    short = np.flatnonzero(split.lengths[:, 0] == 1)
    long = np.flatnonzero(split.lengths[:, 0] > 1)
    eager, captured = both(kind="single", optimizer=optimizer, leaf=leaf, split=split)
    for rows in (short, long, short):
        eager(rows)
        captured(rows)
    check_equal(eager, captured, 1e-6 if optimizer is adam else 1e-8)


@interpreted
def test_a_single_example_and_an_example_twice():
    # without batch normalisation, which cannot take one
    eager, captured = both(kind="single")
    for update in (eager, captured):
        update.model.head.batch_norm_in = update.model.head.batch_norm_out = nn.Identity()
    for rows in (np.array([3]), np.array([1, 1, 5])):
        eager(rows)
        captured(rows)
    for name in ("loss", "norm"):
        one, other = (float(getattr(update.step, name)) for update in (eager, captured))
        assert other == pytest.approx(one, rel=1e-8)
    torch.testing.assert_close(captured.model.encoder.query, eager.model.encoder.query)


@interpreted
def test_words_that_are_not_trained_stay():
    eager, captured = Update(False, kind="single"), Update(True, kind="single")
    updates = []
    for update in (eager, captured):
        update.model.embedding.weight.requires_grad_(False)
        update.optimizer.param_groups[0]["params"] = [
            p for p in update.model.parameters() if p.requires_grad
        ]
        before = update.model.embedding.weight.clone()
        if isinstance(update.step, CapturedStep):
            given = (update.step.fabric, update.model, update.model, update.optimizer, split_of(1))
            update.step = CapturedStep(*given, TrainingConfig(seed=3, clip=0.5))
        else:
            update.step.config = TrainingConfig(seed=3, clip=0.5)
        update(BATCHES[0])
        assert torch.equal(update.model.embedding.weight, before)
        updates.append(update)
    check_equal(*updates)


@interpreted
@pytest.mark.parametrize("clip", [0.05, 1e6])
def test_clipping_in_the_optimizer(clip):
    def fused(parameters):
        # so large that weights move by their gradients, whose size then counts
        return torch.optim.Adam(parameters, lr=RATE, eps=1.0, fused=True)

    eager, captured = both(kind="pair", optimizer=fused, clip=clip)
    for rows in BATCHES[:2]:
        eager(rows)
        captured(rows)
    check_equal(eager, captured, 1e-6)
    assert float(captured.step.norm) / 2 > 0.05
    assert captured.optimizer.grad_scale is None


@interpreted
@pytest.mark.parametrize("optimizer", [sgd, adam])
def test_the_learning_rate_takes_effect(optimizer):
    eager, captured = both(kind="single", optimizer=optimizer)
    states = []
    for rate in (RATE, 0.0, RATE / 4):
        for update in (eager, captured):
            update.optimizer.param_groups[0]["lr"] = rate
            update(BATCHES[1])
            # a number again, as checkpoints and schedules have it
            assert type(update.optimizer.param_groups[0]["lr"]) is float
            assert update.optimizer.param_groups[0]["lr"] == rate
        check_equal(eager, captured, 1e-6 if optimizer is adam else 1e-8)
        states.append(captured.state["encoder.cell.weight"])
    same = [torch.equal(a, b) for a, b in itertools.pairwise(states)]
    assert same == [True, False]


@interpreted
def test_the_temperature_takes_effect():
    eager, captured = both(kind="single")
    moves = []
    for temperature in (1.0, 0.25):
        before = captured.state["encoder.query"]
        for update in (eager, captured):
            update.model.encoder.temperature = temperature
            update(BATCHES[0])
        check_equal(eager, captured)
        moves.append(captured.state["encoder.query"] - before)
    # the lower, the larger the gradients
    assert moves[1].norm() > 1.5 * moves[0].norm()


@interpreted
def test_epochs_have_noise_of_their_own():
    eager, captured = both(kind="pair")
    for update in (eager, captured):
        update.optimizer.param_groups[0]["lr"] = 0.0
    norms = []
    for epoch in (1, 0, 1):
        for update in (eager, captured):
            update.step.norm.zero_()
            update(BATCHES[1], epoch)
        check_equal(eager, captured)
        norms.append(float(captured.step.norm))
    assert norms[0] == norms[2] != norms[1]


@interpreted
def test_dropout_follows_from_the_seed_and_the_step():
    def trained(first, draws):
        update = Update(True, kind="single", dropout=0.4, leaf="lstm", clip=0.5)
        update.count = first
        torch.rand(draws)
        losses = [update(rows)[0] for rows in (BATCHES[1], BATCHES[1][:2])]
        return losses, update.state

    (losses, state), (again, same), (others, _) = trained(0, 3), trained(0, 8), trained(1, 3)
    assert losses == again
    for name, x in state.items():
        assert torch.equal(x, same[name]), name
    assert losses[0] != others[0]


@pytest.mark.parametrize("kind", [sgd, adam, adadelta])
def test_what_an_optimizer_keeps_is_made_as_it_would_make_it(kind):
    torch.manual_seed(0)
    weights = [torch.randn(3, requires_grad=True) for _ in range(2)]
    gradients = [[torch.randn(3) for _ in weights] for _ in range(3)]
    found = []
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
            # the second parameter gets a gradient later
            for p, g in zip(parameters[: 1 + (number > 0)], step, strict=False):
                p.grad = g.clone()
            optimizer.step()
            for p in parameters:
                p.grad = None
        found.append(parameters)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@interpreted
def test_a_captured_step_makes_it_before(monkeypatch):
    update = Update(True, kind="single", optimizer=adam)
    assert update.step.graphs.at_once
    parameters = update.step.parameters
    there = []
    monkeypatch.setattr(
        type(update.step.graphs),
        "__call__",
        lambda *_: there.append(all(p in update.optimizer.state for p in parameters)),
    )
    update(BATCHES[0])
    assert there == [True]


@interpreted
def test_the_sums_can_be_set_back():
    update = Update(True, kind="single")
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


def test_why_a_step_is_not_captured():
    def reason(model, device="cuda", world=1):
        fabric = SimpleNamespace(device=torch.device(device), world_size=world)
        return why_not_captured(fabric, model)

    model = tiny_model(impl="exact")
    assert reason(model, "cpu") == "graphs exist on CUDA devices, this one is cpu"
    assert reason(model, world=2) == "2 processes train together"
    assert reason(model) == "it merges with 'exact'"
    bag = SentenceModel(ModelConfig(BagConfig(5, 5), model.config.head), model.tokenizer)
    assert reason(bag) == "BagEncoder does not declare itself capturable"
    if not torch.cuda.is_available():
        assert reason(tiny_model(impl="fused")) is None
    with torch.autograd.set_detect_anomaly(True):
        assert "anomaly detection" in reason(tiny_model(impl="fused"))


# on a CUDA device, where steps are captured


def cuda_split():
    lengths = np.random.default_rng(1).integers(1, 25, 200)
    return split_of(2, tuple(lengths.tolist()), examples=200)


def cuda_steps(captured, batches, dropout=0.0, optimizer="adam", **encoder):
    """Update a model on the device and return each step's loss, norm, and the weights."""
    fabric = start_fabric("cuda", "32")
    split = cuda_split()
    torch.manual_seed(0)
    sizes = {"embedding_dim": 20, "hidden_dim": 48, "leaf": "lstm", "impl": "fused"}
    model = tiny_model("pair", **sizes, **encoder).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    with torch.no_grad():
        for p in model.parameters():
            # tiny_model's weights are for 6 units
            p.mul_(0.3)
    rate = 0.005 if optimizer == "adam" else 2.0
    config = TrainingConfig(seed=3, clip=1.0, learning_rate=rate, optimizer=optimizer)
    plain = new_optimizer(config, model, fabric.device)
    module, wrapped = fabric.setup(model, plain)
    assert why_not_captured(fabric, model) is None
    if captured:
        step = CapturedStep(fabric, module, model, plain, split, config)
    else:
        step = Step(fabric, module, model, wrapped, split, config)
    sums = []
    for number, rows in enumerate(batches):
        step.loss.zero_()
        step.norm.zero_()
        step(rows, number // 4, number)
        sums.append((float(step.loss), float(step.norm)))
    state = {name: x.cpu() for name, x in model.state_dict().items()}
    return np.array(sums), state, step


# batches of one shape: the first runs, the second is captured, the others replay it
GPU_BATCHES = [np.arange(64), np.arange(64)[::-1].copy(), np.arange(64)] * 2


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["adam", "adadelta"])
def test_gpu_captured_equals_eager(optimizer):
    eager, weights, _ = cuda_steps(False, GPU_BATCHES, optimizer=optimizer)
    captured, found, step = cuda_steps(True, GPU_BATCHES, optimizer=optimizer)
    assert len(step.graphs.captured) == 1
    np.testing.assert_allclose(captured[:, 0], eager[:, 0], rtol=1e-3)
    # a choice that falls otherwise changes a norm more than a loss
    np.testing.assert_allclose(captured[:, 1], eager[:, 1], rtol=2e-2)
    # losses move, so that all of this says something
    assert np.ptp(eager[:, 0]) > 5e-3 * eager[0, 0]
    for name, x in weights.items():
        if x.is_floating_point():
            assert float((found[name] - x).norm() / x.norm()) < 3e-2, name


@pytest.mark.gpu
def test_gpu_other_batches_of_the_same_shape_are_replayed():
    generator = np.random.default_rng(5)
    # so many sentences, and rarely another shape
    batches = [generator.permutation(200)[:160] for _ in range(8)]
    eager, _, _ = cuda_steps(False, batches)
    captured, _, step = cuda_steps(True, batches)
    assert len(step.graphs.seen) == 1
    assert 0 < len(step.graphs.captured) < len(batches)
    np.testing.assert_allclose(captured[:, 0], eager[:, 0], rtol=1e-3)


@pytest.mark.gpu
def test_gpu_captured_at_once_gives_the_same_bits(monkeypatch):
    # many shapes, whose kernels are first met in the middle of a capture
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
def test_gpu_a_table_of_trees_is_not_made_in_a_graph():
    split = cuda_split()
    order = np.argsort(split.lengths.max(axis=1))
    # longer and longer, so that a larger table is needed after the first batch
    batches = [order[start : start + 40] for start in (0, 80, 160)] * 2
    eager, _, _ = cuda_steps(False, batches, trees="balanced")
    captured, _, step = cuda_steps(True, batches, trees="balanced")
    assert step.graphs.captured
    np.testing.assert_allclose(captured[:, 0], eager[:, 0], rtol=1e-3)


@pytest.mark.gpu
def test_gpu_captured_twice_gives_the_same_bits():
    (one, state, _), (other, same, _) = (cuda_steps(True, GPU_BATCHES, 0.3) for _ in range(2))
    assert np.array_equal(one, other)
    for name, x in state.items():
        assert torch.equal(x, same[name]), name
    # dropout differs from step to step, also when a graph is replayed
    plain, _, _ = cuda_steps(True, GPU_BATCHES, 0.0)
    assert (abs(one[:, 0] - plain[:, 0]) > 1e-3).all()


@pytest.mark.gpu
def test_gpu_dropout_is_drawn_anew_in_every_replay():
    # steps 2 to 5 replay one graph; without an update they differ by dropout and noise alone
    _, _, step = cuda_steps(True, GPU_BATCHES[:3], 0.5)
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
