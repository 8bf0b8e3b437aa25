"""Test every registered cell."""

import math

import pytest
import torch

from gumbeltree import EncoderConfig, GumbelTreeEncoder, NodeState
from gumbeltree.config import GatedConfig, TreeLSTMConfig
from gumbeltree.layout import Sentences
from gumbeltree.nn.cells.gated import GatedCell
from gumbeltree.nn.cells.treelstm import TreeLSTMCell
from gumbeltree.nn.encoders.beam_tree import BeamTreeEncoder
from gumbeltree.nn.encoders.fixed_tree import FixedTreeEncoder
from gumbeltree.nn.estimators.st_gumbel import StraightThroughGumbel
from gumbeltree.noise import dropped_units, gumbel_noise, new_keys
from gumbeltree.ops.merge import exact
from gumbeltree.ops.merge.dropout import parent_codes, word_codes
from gumbeltree.parts import CELLS
from gumbeltree.settings import settings_of
from gumbeltree.states import Draw


def made(name: str, hidden_dim: int) -> torch.nn.Module:
    """Return a registered cell with its default settings, in float64."""
    return CELLS[name](hidden_dim, settings_of(CELLS, name)()).double()


@pytest.mark.parametrize("name", CELLS)
def test_gradients_by_finite_differences(name: str) -> None:
    cell = made(name, 3)
    states = [torch.randn(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(4)]

    def parent(h_l, c_l, h_r, c_r):
        if getattr(cell, "single_state", False):
            # a sum, so that all inputs are used
            h_l, h_r = h_l + c_l, h_r + c_r
        return tuple(cell(NodeState(h_l, c_l), NodeState(h_r, c_r)))

    assert torch.autograd.gradcheck(parent, states)


@pytest.mark.parametrize("name", CELLS)
def test_activate_and_its_backward_pass_equal_the_cell(name: str) -> None:
    cell = made(name, 5)
    reason = exact.unsupported(cell, StraightThroughGumbel(), sample=True)
    if reason is not None or getattr(cell, "single_state", False):
        pytest.skip(reason or "see test_exact_equals_reference_with_every_cell")
    torch.nn.init.normal_(cell.bias)
    left, right = cell.weight.detach().split(5, dim=1)
    # one pair at a time, so that the gradient of the bias is that of the gates
    for dc in (torch.randn(1, 5, dtype=torch.float64), None):
        h_l, c_l, h_r, c_r = torch.randn(4, 1, 5, dtype=torch.float64)
        c_l.requires_grad_()
        c_r.requires_grad_()
        expected = cell(NodeState(h_l, c_l), NodeState(h_r, c_r))
        gates = (h_l @ left.T + h_r @ right.T + cell.gate_bias()).detach()
        h, c = cell.activate(gates, c_l.detach(), c_r.detach())
        torch.testing.assert_close(h, expected.h)
        torch.testing.assert_close(c, expected.c)
        dh = torch.randn_like(h)
        cotangents = [dh, torch.zeros_like(c) if dc is None else dc]
        truth = torch.autograd.grad(list(expected), [cell.bias, c_l, c_r], cotangents)
        gradients = cell.activate_backward(dh, dc, gates, c, c_l.detach(), c_r.detach())
        for x, y in zip(truth, gradients, strict=True):
            torch.testing.assert_close(x.view_as(y), y)


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("sample", [True, False])
def test_exact_equals_reference_with_every_cell(name: str, sample: bool) -> None:
    # sentences for `Ledger`, then for `Direct`
    for lengths in ([24, 17, 2, 1], [7, 6, 3, 1]):
        T = lengths[0]
        x = torch.randn(4, T, 3, dtype=torch.float64)
        noise = gumbel_noise((4, T - 1, T - 1)).double()
        results = []
        for impl in ("exact", "reference"):
            torch.manual_seed(1)
            config = EncoderConfig(3, 4, cell=name, impl=impl, pooling="mean_max")
            encoder = GumbelTreeEncoder(config).double()
            for p in encoder.parameters():
                torch.nn.init.normal_(p)
            words = x.clone().requires_grad_()
            out = encoder(words, torch.tensor(lengths), noise=noise, sample=sample, details=True)
            scores = out.scores[out.scores > -torch.inf]
            total = (out.vector * torch.linspace(-1, 1, 4)).sum() + scores.sin().sum()
            (total + out.nodes.h.cos().sum()).backward()
            results.append([out.order, out.vector, words.grad])
            results[-1] += [p.grad for p in encoder.parameters()]
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


# dropout inside the gated cell


def dropping(impl: str, rate: float = 0.4, encoder=GumbelTreeEncoder, **settings):
    """Return an encoder in float64 with dropout inside its cell."""
    cell = {"kind": "gated", "dropout": rate}
    made = encoder(encoder.Config(3, 4, cell=cell, leaf="norm", impl=impl, **settings)).double()
    torch.manual_seed(1)
    for p in made.parameters():
        torch.nn.init.normal_(p)
    return made


@pytest.mark.parametrize("sample", [True, False])
def test_exact_equals_reference_with_dropout(sample: bool) -> None:
    # sentences for `Ledger`, then for `Direct`
    for lengths in ([24, 17, 2, 1], [7, 6, 3, 1]):
        T = lengths[0]
        x = torch.randn(4, T, 3, dtype=torch.float64)
        noise = gumbel_noise((4, T - 1, T - 1)).double()
        results = []
        for impl in ("exact", "reference"):
            encoder = dropping(impl, pooling="mean_max")
            words = x.clone().requires_grad_()
            torch.manual_seed(7)
            out = encoder(words, torch.tensor(lengths), noise=noise, sample=sample, details=True)
            scores = out.scores[out.scores > -torch.inf]
            total = (out.vector * torch.linspace(-1, 1, 4)).sum() + scores.sin().sum()
            # the mode matters in the forward pass alone
            encoder.eval()
            (total + out.nodes.h.cos().sum()).backward()
            results.append([out.order, out.vector, words.grad])
            results[-1] += [p.grad for p in encoder.parameters()]
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
        # another draw in every pass, none in evaluation mode
        torch.manual_seed(8)
        inputs = x, torch.tensor(lengths)
        assert not torch.equal(encoder.train()(*inputs, noise=noise).vector, out.vector)
        plain = dropping(impl, rate=0.0, pooling="mean_max").eval()
        assert torch.equal(encoder.eval()(*inputs).vector, plain(*inputs).vector)


def test_dropped_units_by_hand() -> None:
    D, rate = 3, 0.25
    cell = GatedCell(D, GatedConfig(dropout=rate)).double()
    for p in cell.parameters():
        torch.nn.init.normal_(p)
    left, right = torch.randn(2, 5, D, dtype=torch.float64)
    codes = torch.randint(-(2**63), 2**63 - 1, (5,))
    parent = cell(NodeState(left, left), NodeState(right, right), codes)
    u = torch.nn.functional.gelu(torch.cat([left, right], 1) @ cell.weight.T + cell.bias)
    u = torch.where(dropped_units(codes, 4 * D, rate), 0.0, u / (1 - rate))
    z, h, c, v = (u @ cell.weight_out.T + cell.bias_out).chunk(4, dim=1)
    s = z.sigmoid() * left + h.sigmoid() * right + c.sigmoid() * v
    expected = torch.nn.functional.layer_norm(s, (D,), cell.gain, cell.shift)
    torch.testing.assert_close(parent.h, expected)


def test_a_share_of_the_units_is_dropped_independently() -> None:
    words = word_codes(50, new_keys(40, generator=torch.Generator().manual_seed(2)))
    codes = torch.stack([words[:, 1:], parent_codes(words[:, 1:], words[:, :-1])])
    assert len(codes.unique()) == codes.numel()
    dropped = dropped_units(codes, 64, 0.3).double()  # 250,880 draws
    assert dropped.mean().item() == pytest.approx(0.3, abs=0.005)
    for dim in range(4):
        # neither units, positions, sentences nor levels depend on each other
        first, second = (x - 0.3 for x in (dropped.narrow(dim, i, 1) for i in (0, 1)))
        assert abs((first * second).mean().item()) < 0.21 * 5 / math.sqrt(first.numel())
    assert not dropped_units(codes, 64, 0.0).any()


@pytest.mark.parametrize("trees", ["left", "random"])
def test_fixed_trees_with_dropout(trees: str) -> None:
    x, lengths = torch.randn(2, 6, 3, dtype=torch.float64), torch.tensor([6, 4])
    results = []
    for impl in ("exact", "reference"):
        encoder = dropping(impl, encoder=FixedTreeEncoder, trees=trees)
        torch.manual_seed(3)
        results.append(encoder(x, lengths, noise=gumbel_noise((2, 5, 5))).vector)
    torch.testing.assert_close(*results)


def test_one_beam_with_dropout_is_the_greedy_tree() -> None:
    x, lengths = torch.randn(3, 9, 3, dtype=torch.float64), torch.tensor([9, 1, 6])
    results = []
    for kind, settings in ((GumbelTreeEncoder, {}), (BeamTreeEncoder, {"beams": 1})):
        encoder = dropping("exact", encoder=kind, **settings)
        torch.manual_seed(3)
        embedded = Sentences.padded(x.clone().requires_grad_(), lengths)
        out = encoder(embedded, draw=Draw())
        out.vector.sin().sum().backward()
        gradients = [p.grad for name, p in encoder.named_parameters() if name != "query"]
        results.append([out.order, out.vector, *gradients])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")
def test_training_with_dropout_can_be_captured() -> None:
    pytest.importorskip("triton")
    encoder = dropping("fused")
    assert encoder.explain().name == "fused"
    assert encoder.why_not_captured(sample=True) is None


def test_gated_cell_by_hand() -> None:
    D = 3
    cell = GatedCell(D, GatedConfig(expansion=2)).double()
    for p in cell.parameters():
        torch.nn.init.normal_(p)
    left, right, other = torch.randn(3, D, dtype=torch.float64)
    parent = cell(NodeState(left, other), NodeState(right, other))
    assert torch.equal(parent.h, parent.c)
    x = cell.weight @ torch.cat([left, right]) + cell.bias
    assert x.shape == (2 * D,)
    u = x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    z, h, c, v = (cell.weight_out @ u + cell.bias_out).view(4, D)
    s = z.sigmoid() * left + h.sigmoid() * right + c.sigmoid() * v
    normal = (s - s.mean()) / (s.var(correction=0) + 1e-5).sqrt()
    torch.testing.assert_close(parent.h, normal * cell.gain + cell.shift)


@pytest.mark.parametrize("name", CELLS)
def test_encoder_trains_with_every_cell(name: str) -> None:
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4, cell=name))
    encoder(torch.randn(2, 6, 3), torch.tensor([6, 4])).vector.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in encoder.parameters())


def test_initial_weights_of_treelstm() -> None:
    D = 200
    he = TreeLSTMCell(D, TreeLSTMConfig("he"))
    assert he.weight.std().item() == pytest.approx(math.sqrt(2 / (2 * D)), rel=0.02)
    assert not he.bias.any()
    orthogonal = TreeLSTMCell(D, TreeLSTMConfig("orthogonal")).weight
    torch.testing.assert_close(orthogonal.T @ orthogonal, torch.eye(2 * D), atol=1e-4, rtol=0)
    torch.manual_seed(1)
    uniform = TreeLSTMCell(D, TreeLSTMConfig("uniform")).weight
    torch.manual_seed(1)
    torch.testing.assert_close(uniform, torch.nn.Linear(2 * D, 5 * D).weight)


def test_forget_offset() -> None:
    as_printed, as_coded = TreeLSTMCell(2, TreeLSTMConfig(forget_offset=0.0)), TreeLSTMCell(2)
    as_printed.load_state_dict(as_coded.state_dict())
    with torch.no_grad():
        as_printed.bias[2:6] = 1.0
    states = [NodeState(*torch.randn(2, 3, 2)) for _ in range(2)]
    torch.testing.assert_close(as_printed(*states), as_coded(*states))


def test_gated_cell_can_start_close_to_its_left_child() -> None:
    cells = []
    for offset in (0.0, 3.0):
        torch.manual_seed(0)
        cells.append(GatedCell(8, GatedConfig(left_offset=offset)))
    plain, leaning = (cell.bias_out.detach() for cell in cells)
    torch.testing.assert_close(leaning - plain, torch.tensor([3.0] * 8 + [-3.0] * 8 + [0.0] * 16))
    left, right = (NodeState(x, x) for x in torch.randn(2, 500, 8))
    near = [torch.cosine_similarity(cell(left, right).h, left.h).mean() for cell in cells]
    assert near[1] > 0.85 > near[0] + 0.05
