"""The kernels of the neural tree indexer against one call of `compose` per level."""

import os

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gumbeltree.layout import Layout, Sentences
from gumbeltree.nn.encoders import nti
from gumbeltree.nn.encoders.nti import NTIEncoder
from gumbeltree.ops.stack import fused
from gumbeltree.states import Draw, Keep, NodeState
from tests.nn.equations import encoder_of

BATCHES = [
    *(((1,), 0, 1), ((1, 1), 2, 4), ((2,), 0, 1), ((4,), 1, 4), ((3, 1, 2), 0, 1)),
    *(((1, 5), 0, 4), ((3, 1), 2, 16), ((1, 8, 4, 2, 7), 2, 1)),
]
"""Lengths of sentences, words that the longest lacks, and least number of leaves."""
E, D = 2, 3


class Dropped:
    """Dropout by given factors, the same for all merges at once as for one level after another."""

    def __init__(self, rows: int) -> None:
        keeps = 2.5 * (torch.rand(rows, 2, D) < 0.4)
        self.words, self.merges = 2.5 * (torch.rand(2 * rows, E) < 0.4), keeps
        self.reads = [0, 0]

    def __call__(self, x: Tensor, rate: float, training: bool = True) -> Tensor:
        if not training or not rate:
            return x
        if x.shape[-1] == E:
            return x * self.words[: len(x)].to(x)
        if x.shape[-1] == 2 * D:
            self.reads = [len(x)] * 2
            return x * self.merges[: len(x)].flatten(1).to(x)
        # of left children, then of right ones
        side = int(self.reads[0] > self.reads[1])
        first, n = self.reads[side], x[..., 0].numel()
        self.reads[side] += n
        return x * self.merges[first : first + n, side].view(x.shape).to(x)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Run kernels in the interpreter, two programs per merge, the second with a spare column."""
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("on a CPU, kernels run in Triton's interpreter")
    monkeypatch.setattr(nti, "why_not", lambda weight: None)
    monkeypatch.setattr(fused, "BD", 2)
    return monkeypatch


def encoder(rate: float = 0.0, **settings: int) -> NTIEncoder:
    sizes = {"embedding_dim": E, "hidden_dim": D, **settings}
    part: NTIEncoder = encoder_of("nti", dropout=rate, **sizes).train(rate > 0)
    return part


def batch(lengths: tuple[int, ...], spare: int, units: int = E) -> tuple[Tensor, Tensor]:
    """Return packed words `[cap, E]`, those past the end being noise, and lengths `[B]`."""
    return torch.randn(sum(lengths) + 3 * spare, units).double(), torch.tensor(lengths)


def layout_of(lengths: Tensor) -> Layout:
    return Sentences.padded(lengths.new_zeros(len(lengths), int(lengths.max())), lengths).layout


def vectors(part: NTIEncoder, words: Tensor, lengths: Tensor, spare: int) -> Tensor:
    """Encode sentences as inside a graph."""
    known = layout_of(lengths)
    start = F.pad(known.start[None], (0, spare), mode="replicate")[0]
    layout = Layout(len(words), start, known.lengths, known.sentence, known.rank)
    return part.encode(Sentences(words, layout), Draw(), Keep()).vector


@pytest.mark.parametrize("rate", [0.0, 0.6])
@pytest.mark.parametrize(("lengths", "spare", "least"), BATCHES)
def test_values_and_gradients(
    lengths: tuple[int, ...], spare: int, least: int, rate: float, kernels: pytest.MonkeyPatch
) -> None:
    part = encoder(rate, least_leaves=least)
    words, counts = batch(lengths, spare)
    inputs = [words.requires_grad_(), *part.parameters()]
    leaves = max(least, 1 << (max(lengths) + spare - 1).bit_length())
    drop = Dropped(leaves * len(lengths))
    kernels.setattr(F, "dropout", drop)
    results = []
    # whatever the other one needs is missing
    for missing in (
        "gumbeltree.nn.encoders.nti.NTIEncoder.compose",
        "gumbeltree.ops.stack.fused.compose_full",
    ):
        with kernels.context() as m:
            m.setattr(missing, None)
            if results:
                m.setattr(nti, "why_not", lambda weight: "none here")
            drop.reads = [0, 0]
            with torch.no_grad():
                without = vectors(part, words, counts, spare)
            assert drop.reads == [(leaves - 1) * len(lengths) if rate else 0] * 2
            drop.reads = [0, 0]
            found = vectors(part, words, counts, spare)
        assert torch.equal(without, found)
        torch.manual_seed(1)
        outside = torch.randn_like(found)
        gradients = torch.autograd.grad(found, inputs, outside, materialize_grads=True)
        results.append([found, *gradients])
    if not rate:
        # the host knows these sentences
        found = part.encode(Sentences(words, layout_of(counts)), Draw(), Keep()).vector
        gradients = torch.autograd.grad(found, inputs, outside, materialize_grads=True)
        results.append([found, *gradients])
    for one, *others in zip(*results, strict=True):
        for other in others:
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_dropout_is_drawn_in_training_only(kernels: pytest.MonkeyPatch) -> None:
    part, compose, drawn = encoder(0.25), fused.compose_full, []
    kernels.setattr(
        fused, "compose_full", lambda *given: (drawn.append(given[1]), compose(*given))[1]
    )
    words, lengths = batch((16, 5), 0)
    first, second = (vectors(part, words, lengths, 0) for _ in range(2))
    assert not torch.equal(first, second)
    for kept in drawn:
        assert kept.shape == (2 * 15, 2 * D)
        assert set(kept.unique().tolist()) == {0.0, 1 / 0.75}
        assert 0.1 < (kept == 0).double().mean() < 0.4
    part.eval()
    first, second = (vectors(part, words, lengths, 0) for _ in range(2))
    assert torch.equal(first, second)
    assert drawn[2:] == [None, None]


def test_kernels_are_used_only_where_they_can_run(kernels: pytest.MonkeyPatch) -> None:
    class Own(NTIEncoder):
        """Composes in another way."""

        def compose(self, left: NodeState, right: NodeState) -> NodeState:
            return left

    calls: list[int] = []
    compose = fused.compose_full
    kernels.setattr(fused, "compose_full", lambda *given: (calls.append(1), compose(*given))[1])
    part = encoder()
    words, lengths = batch((3, 2), 1)
    vectors(part, words, lengths, 1)
    assert len(calls) == 1
    part(torch.randn(2, 3, E).double(), lengths)
    part.__class__ = Own
    vectors(part, words, lengths, 1)
    part.__class__ = NTIEncoder
    kernels.setattr(nti, "why_not", lambda weight: "none here")
    vectors(part, words, lengths, 1)
    assert len(calls) == 1


def test_states_keep_their_precision_under_autocast(kernels: pytest.MonkeyPatch) -> None:
    part = encoder().float()
    words, lengths = batch((3, 1, 5), 1)
    exact = vectors(part, words.float(), lengths, 1)
    with torch.autocast("cpu", torch.bfloat16):
        found = vectors(part, words.float(), lengths, 1)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact, rtol=0.1, atol=0.05)
    found.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in part.parameters() if p.grad is not None)


@pytest.mark.gpu
def test_gpu_kernels_equal_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    units, lengths = 300, (9, 5, 5, 1, 30)
    part = encoder(embedding_dim=units, hidden_dim=units)
    with torch.no_grad():
        for p in part.parameters():
            p.copy_(torch.randn_like(p) / units**0.5)
    words, counts = batch(lengths, 2, units)
    calls: list[int] = []
    compose = fused.compose_full
    monkeypatch.setattr(fused, "compose_full", lambda *given: (calls.append(1), compose(*given))[1])
    results: list[list[Tensor]] = []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
        part = part.to(device, dtype)
        x = words.to(device, dtype).requires_grad_()
        found = vectors(part, x, counts.to(device), 2)
        torch.manual_seed(1)
        outside = torch.randn(found.shape, dtype=torch.float64).to(found)
        gradients = torch.autograd.grad(found, [x, *part.parameters()], outside)
        results.append([y.detach().cpu().double() for y in (found, *gradients)])
    assert len(calls) == 1
    for exact, own in zip(*results, strict=True):
        assert float((own - exact).norm() / exact.norm()) < 1e-5
