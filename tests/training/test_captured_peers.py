"""Captured steps of encoders without kernels of their own: equal to eager ones, nothing waits.

On a CPU nothing is captured. Instead, operations that would wait for a CUDA device raise an error.
"""

import contextlib
import copy
import os
from unittest import mock

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from gumbeltree import layout as layout_module
from gumbeltree.config import TrainingConfig
from gumbeltree.data.device_split import DeviceSplit
from gumbeltree.data.split import Split
from gumbeltree.model import SentenceModel
from gumbeltree.nn.encoders import constituency, level_tree, nti
from gumbeltree.nn.encoders.tree_encoder import TreeEncoder
from gumbeltree.nn.leaves.lstm import BidirectionalLSTMLeaf
from gumbeltree.nn.spans import random_orders, span_table
from gumbeltree.noise import new_keys
from gumbeltree.ops.stack import thin
from gumbeltree.ops.stack.machine import Machine
from gumbeltree.parts import ENCODERS
from gumbeltree.states import Draw, Keep
from gumbeltree.training.optimizers import new_optimizer
from gumbeltree.training.start import start_fabric
from gumbeltree.training.step import CapturedStep, Step, why_not_captured
from tests.models import tiny_model
from tests.ops.test_memory import force_kernels
from tests.training.test_step import FEW_SPARE_ROWS, sgd, split_of, with_trees

SETTINGS = {
    "byte_mlstm": {"byte_dim": 3, "probe": False},
    "constituency_dropout": {"dropout": 0.0},
    "gated_attention": {"character_dim": 6},
    "level_tree": {"leaf": "bilstm"},
    "nse": {"hidden_dim": 5},
    "rntn": {"hidden_dim": 5},
    "nti": {"least_leaves": 4},
    "dmn": {"passes": 2},
    "spinn": {"tracker": 3},
    "spinn_parses": {"encoder": "spinn", "tracker": 3, "parses": True},
    "spinn_plain": {"encoder": "spinn", "tracker": 0},
    "latent_syntax": {"leaf": "lstm"},
    "latent_tracker": {"encoder": "latent_syntax", "tracker": 3, "impl": "reference"},
    "spinn_fused": {"encoder": "spinn", "tracker": 3, "impl": "fused"},
    "latent_fused": {"encoder": "latent_syntax", "impl": "fused"},
    "constituency_fused": {"encoder": "constituency"},
    "constituency_dropout_fused": {"encoder": "constituency_dropout", "dropout": 0.0},
    "nti_fused": {"encoder": "nti", "least_leaves": 4},
}
"""Settings of encoders, if not the defaults."""
OTHERS = [name for name in ENCODERS if not issubclass(ENCODERS[name], TreeEncoder)]
VARIANTS = [name for name in SETTINGS if name not in ENCODERS]
PEERS = [name for name in OTHERS if vars(ENCODERS[name]).get("capturable") and name != "lstm"]
PEERS += VARIANTS

WAITING = {
    "_local_scalar_dense",
    "bincount",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "unique_consecutive",
    "unique_dim",
    "_unique2",
}
"""Operations whose result or shape the host reads."""


class Waited(Exception):
    """Raised for an operation that waits for the device, or copies new data to it."""


class NoWaiting(TorchDispatchMode):
    """Raise an error for operations that a graph cannot contain."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in WAITING:
            raise Waited(name)
        if name in ("index", "index_put", "index_put_", "_index_put_impl_") and any(
            x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1]
        ):
            raise Waited(f"{name} with a mask")
        if "index_put" in name and args[2].dim() == 0:
            # torch copies the number to the device
            raise Waited(f"{name} of a number")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def no_waiting():
    """Raise an error where the host reads from the device or writes to it."""
    tensor = torch.tensor

    def on_host(*args, device=None, **kwargs):
        if device is not None:
            raise Waited("tensor of host data")
        return tensor(*args, **kwargs)

    def refuse(*_args, **_kwargs):
        raise Waited("transfer")

    with (
        mock.patch.object(torch, "tensor", on_host),
        mock.patch.object(torch, "from_numpy", refuse),
        mock.patch.object(Tensor, "new_tensor", refuse),
        mock.patch.object(Tensor, "cpu", refuse),
        mock.patch.object(Tensor, "numpy", refuse),
        mock.patch.object(Tensor, "tolist", refuse),
        NoWaiting(),
    ):
        yield


def allowed(function):
    """Return a function that may wait."""

    def call(*args, **kwargs):
        with _disable_current_modes():
            return function(*args, **kwargs)

    return call


@pytest.fixture(autouse=True)
def _few_spare_rows(monkeypatch):
    if not torch.cuda.is_available():
        for name, rounded in FEW_SPARE_ROWS.items():
            monkeypatch.setattr(layout_module, name, rounded)


def model_of(kind: str, head: str = "single", **settings: object) -> SentenceModel:
    """Return a model in training mode without dropout."""
    given = {"encoder": kind, **SETTINGS.get(kind, {}), **settings}
    model = tiny_model(head, **given).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def need_interpreter(kind: str, monkeypatch: pytest.MonkeyPatch | None = None) -> None:
    """Skip kernels on a CPU where there is a GPU, whose tests run them there; select them."""
    if kind.endswith("_fused") and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("on a CPU, kernels run in Triton's interpreter")
    if monkeypatch and kind.endswith("_fused"):
        for module in (constituency, nti):
            # there is no setting
            monkeypatch.setattr(module, "why_not", lambda weight: None)


def data_of(kind: str, columns: int, lengths: tuple[int, ...]) -> Split:
    """Return examples with trees, unless the encoder learns to draw them."""
    split = split_of(columns, lengths, examples=len(lengths))
    return split if kind.startswith("latent") else with_trees(split)


def batches_of(split, rows):
    """Return a batch as an eager step and as a captured step read it."""
    on_device = DeviceSplit(split, torch.device("cpu"))
    bounds, numbers = on_device.place(rows)
    return split.batch(rows), on_device.read(torch.from_numpy(numbers), bounds)


LENGTHS = (1, 6, 3, 5, 1, 2, 9, 2)
ROWS = (np.array([0, 1, 2, 3, 4]), np.array([5, 3]), np.array([6, 7, 0]))


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("kind", PEERS)
def test_a_captured_step_does_not_wait_for_the_device(kind, columns, monkeypatch):
    need_interpreter(kind, monkeypatch)
    if kind.endswith("_fused") and columns == 2:
        pytest.skip("slow in the interpreter, and pairs are two sentences")
    head = ("single", "pair")[columns - 1]
    split = data_of(kind, columns, LENGTHS)
    fabric, config = Fabric(accelerator="cpu", devices=1), TrainingConfig(seed=3, clip=1.0)
    states, sums = [], []
    for captured in (False, True):
        model = model_of(kind, head).double()
        optimizer = sgd(model.parameters())
        start = copy.deepcopy(model.state_dict())
        if captured:
            if kind.endswith("_fused"):
                # the kernels are all there is
                monkeypatch.delattr(thin, "follow")
                monkeypatch.delattr(Machine, "reduce")
                monkeypatch.delattr(level_tree, "levels_of")
                monkeypatch.delattr(nti.NTIEncoder, "compose")
            step = CapturedStep(fabric, model, optimizer, split, config)
            step._update = no_waiting()(step._update)
            # on a CPU, torch's optimizers read the learning rate
            optimizer.step = allowed(optimizer.step)
        else:
            module, wrapped = fabric.setup(model, optimizer)
            step = Step(fabric, module, model, wrapped, split, config)
        for number, rows in enumerate(ROWS):
            step(rows, 0, number)
        states.append(model.state_dict())
        sums.append((float(step.loss), float(step.norm)))
    assert sums[0] == pytest.approx(sums[1], rel=1e-8)
    for name, x in states[0].items():
        torch.testing.assert_close(states[1][name], x, rtol=1e-8, atol=1e-8, msg=name)
    changed = [name for name, x in states[1].items() if not torch.equal(x, start[name])]
    assert len(changed) > 3


def test_divided_charts_do_not_wait(monkeypatch):
    monkeypatch.setattr("gumbeltree.ops.chart.LIMIT", 200)
    test_a_captured_step_does_not_wait_for_the_device("cyk", 1, monkeypatch)


def test_kernels_of_attention_do_not_wait(monkeypatch):
    need_interpreter("dmn_fused")
    monkeypatch.setattr("gumbeltree.ops.attention_gru.why_not", lambda weight: None)
    for name in ("apply_exact", "exact_gradients"):
        monkeypatch.delattr(f"gumbeltree.ops.attention_gru.{name}")
    test_a_captured_step_does_not_wait_for_the_device("dmn", 1, monkeypatch)


def test_kernels_of_memories_do_not_wait(monkeypatch):
    force_kernels(monkeypatch)
    test_a_captured_step_does_not_wait_for_the_device("nse", 1, monkeypatch)


def test_kernels_of_charts_do_not_wait():
    """A captured batch, whose shorter sentences have all spans of the longest."""
    need_interpreter("cyk_fused")
    split = split_of(1, (3, 1, 2))
    model, other = (model_of("cyk", impl=impl).double() for impl in ("fused", "exact"))
    eager, captured = batches_of(split, np.arange(3))
    expected = other.encode_batch(eager.sentences, Draw()).vector
    with no_waiting():
        found = model.encode_batch(captured.sentences, Draw()).vector
        found.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        if q.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-8, atol=1e-8, msg=name)


def test_random_orders_do_not_wait():
    batch = with_trees(split_of(1, LENGTHS)).batch(np.arange(8))
    with no_waiting():
        drawn = random_orders(batch.sentences.order)
    assert torch.equal(span_table(drawn.order), span_table(batch.sentences.order))


def test_weights_that_are_used_twice_have_no_overlap(monkeypatch):
    seen = []
    forward = BidirectionalLSTMLeaf.forward

    def spy(leaf, words, layout, impl="auto"):
        seen.append(layout.overlap)
        return forward(leaf, words, layout, impl)

    monkeypatch.setattr(BidirectionalLSTMLeaf, "forward", spy)
    _, batch = batches_of(split_of(1, LENGTHS), ROWS[0])
    batch.sentences.layout.overlap = mock.Mock()
    # its gates use the weights once more
    model_of("gated_attention").encode_batch(batch.sentences, Draw())
    assert len(seen) == 3
    assert seen == [None] * len(seen)
    assert batch.sentences.layout.overlap is not None


@pytest.mark.parametrize(
    "read",
    [
        lambda sentences: sentences.layout.active,
        lambda sentences: sentences.words[sentences.words > 0],
        lambda sentences: sentences.words.tolist(),
        lambda sentences: sentences.layout.lengths.max().item(),
    ],
)
def test_waiting_is_seen(read):
    _, batch = batches_of(split_of(1, LENGTHS), ROWS[0])
    errors = (Waited, RuntimeError)
    with (
        pytest.raises(errors, match=r"inside a captured|nonzero|mask|transfer|scalar"),
        no_waiting(),
    ):
        read(batch.sentences)


def test_all_encoders_are_captured():
    assert [x for x in OTHERS if not vars(ENCODERS[x]).get("capturable")] == []


@pytest.mark.parametrize("kind", PEERS)
@pytest.mark.parametrize("given", [True, False])
def test_evaluation_agrees(kind, given, monkeypatch):
    need_interpreter(kind, monkeypatch)
    split = with_trees(split_of(1, LENGTHS)) if given else split_of(1, LENGTHS)
    model = model_of(kind).double().eval()
    if model.encoder.needs and not given:
        return
    trees = model.encoder.trees
    keep = Keep(nodes=bool(trees), scores=trees == "soft")
    with torch.inference_mode():
        for rows in (*ROWS, np.array([0, 4])):
            eager, captured = batches_of(split, rows)
            expected = model.encode_batch(eager.sentences, Draw(), keep)
            with no_waiting():
                found = model.encode_batch(captured.sentences, Draw(), keep)
            torch.testing.assert_close(found.vector, expected.vector, rtol=1e-9, atol=1e-9)
            if expected.order is not None:
                width = expected.order.shape[1]
                assert torch.equal(found.order[:, :width], expected.order)
                assert (found.order[:, width:] == -1).all()
                T, bound = width + 1, found.order.shape[1] + 1
                for one, other in zip(found.nodes, expected.nodes, strict=True):
                    near = torch.cat([one[:, :T], one[:, bound : bound + width]], dim=1)
                    torch.testing.assert_close(near, other, rtol=1e-9, atol=1e-9)
                    assert float(one.abs().sum()) == pytest.approx(float(near.abs().sum()))
            if expected.scores is not None:
                near = found.scores[:, :width, :width]
                torch.testing.assert_close(near, expected.scores)


@pytest.mark.parametrize("kind", PEERS)
def test_bfloat16(kind, monkeypatch):
    need_interpreter(kind, monkeypatch)
    _, batch = batches_of(data_of(kind, 1, LENGTHS), ROWS[0])
    model = model_of(kind)
    keys = new_keys(len(ROWS[0]))
    with torch.autocast("cpu"):
        found = model(batch.sentences, Draw(keys))
        loss = nn.functional.cross_entropy(found.output.float(), batch.targets)
    loss = loss + sum(x.float().sum() for x in found.losses.values())
    if found.log_prob is not None:
        loss = loss + found.log_prob.sum()
    loss.backward()
    for name, p in model.named_parameters():
        if p.grad is not None:
            assert p.grad.isfinite().all(), name
    assert sum(p.grad is not None for p in model.encoder.parameters()) > 1


def test_normalisation_of_one_word_and_of_several():
    # a batch of one word has no statistics of its own
    split = with_trees(split_of(1, (1, 3, 1, 5)))
    (single,) = np.flatnonzero(split.lengths[:, 0] == 1)[:1]
    models = [model_of("spinn_plain").double() for _ in range(2)]
    for rows in (np.array([single]), np.arange(4), np.array([single])):
        vectors = [
            model.encode_batch(batch.sentences, Draw()).vector
            for model, batch in zip(models, batches_of(split, rows), strict=True)
        ]
        torch.testing.assert_close(*vectors)
        one, other = (model.encoder.leaf.norm.state_dict() for model in models)
        for name, x in one.items():
            torch.testing.assert_close(other[name], x, msg=name)
    assert int(one["num_batches_tracked"]) == 1


def test_spare_rows_have_no_effect(monkeypatch):
    split = with_trees(split_of(1, LENGTHS))
    found = []
    for more in (1, 40):
        monkeypatch.setattr(layout_module, "rounded_cap", lambda words, more=more: words + more)
        monkeypatch.setattr(layout_module, "rounded_T", lambda T, more=more: T + more // 8)
        _, batch = batches_of(split, ROWS[0])
        for kind in PEERS:
            model = model_of(kind).double()
            with monkeypatch.context() as patch:
                need_interpreter(kind, patch)
                vector = model.encode_batch(batch.sentences, Draw()).vector
            weight = torch.linspace(-1, 1, vector.numel(), dtype=vector.dtype).view_as(vector)
            (vector * weight).sum().backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None]
            found.append((kind, [vector.detach(), *gradients]))
    half = len(found) // 2
    for (kind, few), (_, many) in zip(found[:half], found[half:], strict=True):
        for one, other in zip(few, many, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, msg=kind)


def cuda_steps(captured, kind, dropout=0.0, precision="32"):
    """Update a model on the device; return the loss and norm of each step, and the weights."""
    fabric = start_fabric("cuda", precision)
    lengths = np.random.default_rng(1).integers(1, 25, 200)
    split = data_of(kind, 2, tuple(lengths.tolist()))
    torch.manual_seed(0)
    sizes = {"hidden_dim": 48, "embedding_dim": 48}
    model = model_of(kind, "pair", **sizes)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    with torch.no_grad():
        for p in model.parameters():
            # tiny_model's weights are for 6 units; the tensor of RNTN has many more inputs
            p.mul_(0.3 if p.dim() < 3 else 0.02)
    # adam would turn rounding errors of small gradients into large steps
    config = TrainingConfig(seed=3, clip=1.0, learning_rate=0.05, optimizer="sgd")
    optimizer = new_optimizer(config, model.to(fabric.device), fabric.device)
    if captured:
        assert why_not_captured(fabric, model) is None
        step = CapturedStep(fabric, model, optimizer, split, config)
    else:
        module, wrapped = fabric.setup(model, optimizer)
        step = Step(fabric, module, model, wrapped, split, config)
    sums = []
    for number in range(6):
        step.loss.zero_()
        step.norm.zero_()
        step(np.arange(64) if number % 2 else np.arange(64)[::-1].copy(), 0, number)
        sums.append((float(step.loss), float(step.norm)))
    return np.array(sums), {name: x.cpu() for name, x in model.state_dict().items()}, step


@pytest.mark.gpu
@pytest.mark.parametrize("kind", PEERS)
def test_gpu_captured_equals_eager(kind, monkeypatch):
    # torch's LSTMs round to TF32 by default
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    eager, weights, _ = cuda_steps(False, kind)
    captured, found, step = cuda_steps(True, kind)
    assert len(step.graphs.captured) == 1
    # rounding can change an action, and later weights with it
    drawn = kind.startswith("latent")
    np.testing.assert_allclose(captured[:, 0], eager[:, 0], rtol=2e-2 if drawn else 2e-3)
    if drawn:
        return
    np.testing.assert_allclose(captured[:, 1], eager[:, 1], rtol=2e-2)
    # the losses do change
    assert np.ptp(eager[:, 0]) > 1e-3 * eager[0, 0]
    for name, x in weights.items():
        if x.is_floating_point() and float(x.norm()) > 0:
            assert float((found[name] - x).norm() / x.norm()) < 3e-2, name


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [*PEERS, "supervised_tree"])
def test_gpu_captured_in_bfloat16_with_dropout(kind):
    sums, weights, step = cuda_steps(True, kind, dropout=0.3, precision="bf16")
    assert len(step.graphs.captured) == 1
    assert np.isfinite(sums).all()
    assert all(x.isfinite().all() for x in weights.values() if x.is_floating_point())


@pytest.mark.gpu
@pytest.mark.parametrize("kind", PEERS)
def test_gpu_captured_encoding_equals_eager(kind, monkeypatch):
    model = model_of(kind).eval().cuda()
    if model.encoder.needs or model.encoder.trees == "sampled":
        pytest.skip("texts without trees are not encoded by graphs")
    texts = ["the dog that barked all night sleeps .", "not one cat", "the dog sleeps now ."]
    found = [model.encode(texts) for _ in range(3)]
    assert model._captured is not None
    monkeypatch.setattr(SentenceModel, "_is_captured", lambda model: False)
    expected = model.encode(texts)
    for x in found:
        np.testing.assert_allclose(x, expected, rtol=2e-3, atol=2e-3)
