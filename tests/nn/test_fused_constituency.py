"""The kernels of the constituency Tree-LSTMs against one call of `compose` per merge."""

import os

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gumbeltree.layout import Sentences
from gumbeltree.nn.encoders import constituency
from gumbeltree.nn.encoders.constituency import ConstituencyEncoder
from gumbeltree.nn.encoders.level_tree import GoldTreeEncoder
from gumbeltree.ops.stack import fused
from gumbeltree.states import Draw, Encoding, Keep, NodeState
from tests.nn.equations import encoder_of, random_merges

KINDS = ["constituency", "constituency_dropout"]
BATCHES = [
    *(((1,), 0), ((1, 1), 2), ((4,), 0), ((5,), 1)),
    *(((3, 1, 2), 0), ((5, 5), 2), ((1, 6, 4, 2, 2), 2)),
]
"""Lengths of sentences, and words that the longest lacks."""
E, D = 2, 3


class Dropped:
    """Dropout by given factors, the same for all merges at once as for one after another."""

    def __init__(self, rows: int) -> None:
        self.factors, self.at = 2.5 * (torch.rand(rows, D) < 0.4).double(), 0

    def __call__(self, x: Tensor, rate: float, training: bool = True) -> Tensor:
        if not training or not rate:
            return x
        self.at += len(x)
        return x * self.factors[self.at - len(x) : self.at].to(x)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Run kernels in the interpreter, two programs per sentence, the second with a spare column."""
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("on a CPU, kernels run in Triton's interpreter")
    monkeypatch.setattr(constituency, "why_not", lambda weight: None)
    monkeypatch.setattr(fused, "BD", 2)
    return monkeypatch


def encoder(kind: str, rate: float = 0.0) -> GoldTreeEncoder:
    settings = {"dropout": rate} if kind == "constituency_dropout" else {}
    return encoder_of(kind, embedding_dim=E, hidden_dim=D, **settings).train(rate > 0)


def batch(lengths: tuple[int, ...], spare: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return words `[B, T, E]`, lengths `[B]` and merges `[B, T-1]`, with noise as padding."""
    T, counts = max(lengths) + spare, torch.tensor(lengths)
    words = torch.randn(len(lengths), T, E, dtype=torch.float64)
    order = F.pad(random_merges(list(lengths)), (0, spare))
    return words, counts, torch.where(torch.arange(T - 1) < counts[:, None] - 1, order, 99)


def encode(part: GoldTreeEncoder, words: Tensor, lengths: Tensor, order: Tensor) -> Encoding:
    """Encode sentences as inside a graph."""
    sentences = Sentences.full(words, lengths).with_order(order)
    assert sentences.layout.spare
    return part.encode(sentences, Draw(), Keep(nodes=True))


def outputs(found: Encoding, wanted: str) -> list[Tensor]:
    assert found.nodes is not None
    return {"root": [found.vector], "nodes": [found.vector, *found.nodes]}[wanted]


@pytest.mark.parametrize(("kind", "rate"), [*((kind, 0.0) for kind in KINDS), (KINDS[1], 0.6)])
@pytest.mark.parametrize(
    ("lengths", "spare", "wanted"), [(*x, "nodes") for x in BATCHES] + [(*BATCHES[-1], "root")]
)
def test_values_and_gradients(
    kind: str,
    rate: float,
    lengths: tuple[int, ...],
    spare: int,
    wanted: str,
    kernels: pytest.MonkeyPatch,
) -> None:
    part = encoder(kind, rate)
    words, counts, order = batch(lengths, spare)
    inputs = [words.requires_grad_(), *part.parameters()]
    drop = Dropped((2 * words.shape[1] - 1) * len(lengths))
    kernels.setattr(F, "dropout", drop)
    results = []
    # whatever the other one needs is missing
    for missing in (
        "gumbeltree.nn.encoders.level_tree.levels_of",
        "gumbeltree.ops.stack.fused.compose",
    ):
        with kernels.context() as m:
            m.setattr(missing, None)
            if results:
                m.setattr(constituency, "why_not", lambda weight: "none here")
            with torch.no_grad():
                without = encode(part, words, counts, order)
            drop.at = 0
            found = encode(part, words, counts, order)
        assert drop.at == (len(drop.factors) if rate else 0)
        drop.at = 0
        made = outputs(found, wanted)
        assert all(map(torch.equal, outputs(without, wanted), made))
        torch.manual_seed(1)
        outside = [torch.randn_like(x) for x in made]
        before = [x.clone() for x in outside]
        gradients = torch.autograd.grad(made, inputs, outside, materialize_grads=True)
        # they belong to the caller
        assert all(map(torch.equal, outside, before))
        results.append([*made, *gradients])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_dropout_is_drawn_in_training_only(kernels: pytest.MonkeyPatch) -> None:
    part, compose, drawn = encoder("constituency_dropout", 0.25), fused.compose, []
    kernels.setattr(fused, "compose", lambda *given: (drawn.append(given[2]), compose(*given))[1])
    words, lengths, order = batch((12, 5), 0)
    first, second = (encode(part, words, lengths, order).vector for _ in range(2))
    assert not torch.equal(first, second)
    for kept in drawn:
        assert kept.shape == (2 * 11, D)
        assert set(kept.unique().tolist()) == {0.0, 1 / 0.75}
        assert 0.1 < (kept == 0).double().mean() < 0.4
    part.eval()
    first, second = (encode(part, words, lengths, order).vector for _ in range(2))
    assert torch.equal(first, second)
    assert drawn[2:] == [None, None]


def test_kernels_are_used_only_where_they_can_run(kernels: pytest.MonkeyPatch) -> None:
    class Own(ConstituencyEncoder):
        """Composes in another way."""

        def compose(self, left: NodeState, right: NodeState) -> NodeState:
            return left

    calls: list[int] = []
    compose = fused.compose
    kernels.setattr(fused, "compose", lambda *given: (calls.append(1), compose(*given))[1])
    part = encoder("constituency")
    words, lengths, order = batch((3, 2), 1)
    encode(part, words, lengths, order)
    assert len(calls) == 1
    known = Sentences.padded(words, lengths).with_order(order[:, :2])
    part.encode(known, Draw(), Keep())
    part.__class__ = Own
    encode(part, words, lengths, order)
    part.__class__ = ConstituencyEncoder
    kernels.setattr(constituency, "why_not", lambda weight: "none here")
    encode(part, words, lengths, order)
    assert len(calls) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_states_keep_their_precision_under_autocast(kind: str, kernels: pytest.MonkeyPatch) -> None:
    part = encoder(kind).float()
    words, lengths, order = batch((3, 1, 5), 1)
    exact = encode(part, words.float(), lengths, order)
    with torch.autocast("cpu", torch.bfloat16):
        found = encode(part, words.float(), lengths, order)
    for one, other in zip(outputs(found, "nodes"), outputs(exact, "nodes"), strict=True):
        assert one.dtype == torch.float32
        torch.testing.assert_close(one, other, rtol=0.1, atol=0.05)
    found.vector.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in part.parameters() if p.grad is not None)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_gpu_kernels_equal_operations(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    units, lengths = 300, (9, 5, 5, 1, 30)
    part = encoder_of(kind, embedding_dim=units, hidden_dim=units)
    with torch.no_grad():
        for p in part.parameters():
            p.copy_(torch.randn_like(p) / units**0.5)
    _, counts, order = batch(lengths, 2)
    words = torch.randn(len(lengths), max(lengths) + 2, units, dtype=torch.float64)
    calls: list[int] = []
    compose = fused.compose
    monkeypatch.setattr(fused, "compose", lambda *given: (calls.append(1), compose(*given))[1])
    results: list[list[Tensor]] = []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
        part = part.to(device, dtype)
        x = words.to(device, dtype).requires_grad_()
        found = outputs(encode(part, x, counts.to(device), order.to(device)), "nodes")
        torch.manual_seed(1)
        outside = [torch.randn(y.shape, dtype=torch.float64).to(y) for y in found]
        gradients = torch.autograd.grad(found, [x, *part.parameters()], outside)
        results.append([y.detach().cpu().double() for y in (*found, *gradients)])
    assert len(calls) == 1
    for exact, own in zip(*results, strict=True):
        assert float((own - exact).norm() / exact.norm()) < 1e-5
