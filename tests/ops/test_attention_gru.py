"""ops.attention_gru against a plain recurrence with autograd, word by word."""

import pytest
import torch
from torch import Tensor

from gumbeltree.layout import Layout, Sentences
from gumbeltree.ops.attention_gru import apply_fused, attention_gru, fused_gradients

D = 5
LENGTHS = [(1,), (5,), (1, 1, 1), (3, 1, 2), (7, 7), (1, 9, 4, 2, 2)]


def plain(inputs: Tensor, gates: Tensor, weight: Tensor, layout: Layout) -> Tensor:
    active, ended = list(layout.active), []
    e = inputs.new_zeros(layout.B, weight.shape[1])
    for n, x, g in zip(active, inputs.split(active), gates.split(active), strict=True):
        ended.append(e[n:])
        e = e[:n]
        (x_r, x_z, x_n), (e_r, e_z, e_n) = x.chunk(3, dim=1), (e @ weight.t()).chunk(3, dim=1)
        z = (x_z + e_z).sigmoid()
        new = (1 - z) * (x_n + (x_r + e_r).sigmoid() * e_n).tanh() + z * e
        e = g * new + (1 - g) * e
    return torch.cat([e, *reversed(ended)])


def layout_of(lengths: tuple[int, ...], spare: int = 0, device: str = "cpu") -> Layout:
    arrange = Sentences.full if spare else Sentences.padded
    padded = torch.zeros(len(lengths), max(lengths) + spare, dtype=torch.int64, device=device)
    layout = arrange(padded, torch.tensor(lengths, device=device)).layout
    # with spare rows, all sentences have as many rows as the longest may have words
    assert layout.rows == (padded.numel() if spare else sum(lengths))
    return layout


def given_of(layout: Layout, units: int) -> list[Tensor]:
    """Return inputs, gates and a weight; gates of spare rows are zero."""
    torch.manual_seed(0)
    # in memory, columns come before rows
    inputs = torch.randn(3 * units, layout.rows, dtype=torch.float64).t()
    gates = torch.rand(layout.rows, 2, dtype=torch.float64)[:, :1]
    if layout.spare:
        gates *= layout.valid(layout.T).t().reshape(-1, 1)
    return [inputs, gates, torch.randn(3 * units, units, dtype=torch.float64) / units**0.5]


@pytest.fixture(params=["operations", "kernels"])
def _path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "kernels":
        pytest.importorskip("triton")
        monkeypatch.setattr("gumbeltree.ops.attention_gru.why_not", lambda weight: None)
        for name in ("apply_exact", "exact_gradients"):
            monkeypatch.setattr(f"gumbeltree.ops.attention_gru.{name}", None)


@pytest.mark.usefixtures("_path")
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("spare", [0, 2])
def test_values_and_gradients(lengths: tuple[int, ...], spare: int) -> None:
    layout = layout_of(lengths, spare)
    given = [x.requires_grad_() for x in given_of(layout, D)]
    found, expected = attention_gru(*given, layout), plain(*given, layout)
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        # shares rows between words
        assert torch.equal(attention_gru(*given, layout), found)
    # neither contiguous nor for us to change
    outside = torch.randn(D, layout.B, dtype=torch.float64).t()
    before = outside.clone()
    # twice: the tape is not for us to change either
    gradients = [
        torch.autograd.grad(x, given, outside, retain_graph=True) for x in (found, found, expected)
    ]
    for one, other, plainly in zip(*gradients, strict=True):
        assert torch.equal(one, other)
        torch.testing.assert_close(one, plainly)
    assert torch.equal(outside, before)


@pytest.mark.usefixtures("_path")
def test_spare_rows_have_no_effect() -> None:
    lengths, outside = (4, 3, 1), torch.randn(3, D, dtype=torch.float64)
    given = [x.requires_grad_() for x in given_of(layout_of(lengths, 2), D)]
    last = attention_gru(*given, layout_of(lengths, 2))
    inside = layout_of(lengths, 2).valid(6).t().flatten()
    few = [given[0][inside], given[1][inside], given[2]]
    packed = attention_gru(*few, layout_of(lengths))
    torch.testing.assert_close(last, packed)
    wide = torch.autograd.grad(last, given, outside)
    # no gradient of inputs where the gate is closed
    assert not wide[0][~inside].any()
    for one, other in zip(wide, torch.autograd.grad(packed, given, outside), strict=True):
        rows = slice(None) if len(one) == 3 * D else inside
        torch.testing.assert_close(one[rows], other[rows])


@pytest.mark.usefixtures("_path")
def test_products_in_bfloat16() -> None:
    layout = layout_of((9, 5, 5, 1))
    given = [x.float().requires_grad_() for x in given_of(layout, D)]
    outside = torch.randn(layout.B, D)
    found = []
    for enabled in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled):
            last = attention_gru(*given, layout)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled):
            assert torch.equal(attention_gru(*given, layout), last)
        found.append([last.detach(), *torch.autograd.grad(last, given, outside)])
    for half, single in zip(*found, strict=True):
        assert half.dtype == torch.float32
        assert 1e-5 < float((half - single).norm() / single.norm()) < 2e-2


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_wants_only_some_gradients(wanted: int) -> None:
    layout = layout_of((3, 1, 2))
    given = given_of(layout, D)
    given[wanted].requires_grad_()
    found, expected = (
        torch.autograd.grad(f(*given, layout).sum(), given[wanted]) for f in (attention_gru, plain)
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.gpu
def test_gpu_kernels_equal_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    units, lengths = 300, (9, 5, 5, 1)
    given, outside = given_of(layout_of(lengths), units), torch.randn(4, units).double()
    calls = []
    for name, function in (("apply_fused", apply_fused), ("fused_gradients", fused_gradients)):
        monkeypatch.setattr(
            f"gumbeltree.ops.attention_gru.{name}",
            lambda *x, function=function: (calls.append(x), function(*x)),
        )
    found = []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
        inputs = [x.detach().to(device, dtype).requires_grad_() for x in given]
        last = attention_gru(*inputs, layout_of(lengths, device=device))
        gradients = torch.autograd.grad(last, inputs, outside.to(device, dtype))
        found.append([x.detach().cpu().double() for x in (last, *gradients)])
    assert len(calls) == 2 * 9
    for exact, fused in zip(*found, strict=True):
        assert float((fused - exact).norm() / exact.norm()) < 1e-5
