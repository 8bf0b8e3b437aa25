"""ops.mlstm against a plain recurrence with autograd, symbol by symbol."""

import pytest
import torch
from torch import Tensor

from gumbeltree.layout import Layout, Sentences
from gumbeltree.ops.mlstm import apply_fused, mlstm

D = 3
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTHS = [(1,), (5,), (1, 1, 1), (3, 1, 2), (7, 7), (1, 9, 4, 2, 2)]


def plain(
    factors: Tensor, inputs: Tensor, state_factor: Tensor, states: Tensor, layout: Layout
) -> tuple[Tensor, Tensor]:
    h = c = factors.new_zeros(layout.B, D)
    all_h, all_c = [], []
    active = list(layout.active)
    for n, factor, x in zip(active, factors.split(active), inputs.split(active), strict=True):
        m = factor * (h[:n] @ state_factor.t())
        i, f, o, u = (x + m @ states.t()).chunk(4, dim=1)
        c = f.sigmoid() * c[:n] + i.sigmoid() * u.tanh()
        h = o.sigmoid() * c.tanh()
        all_h.append(h)
        all_c.append(c)
    return torch.cat(all_h), torch.cat(all_c)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("spare", [0, 2])
@pytest.mark.parametrize("wanted", ["h", "c", "both"])
@pytest.mark.parametrize("fused", [False, True])
def test_values_and_gradients(
    lengths: tuple[int, ...], spare: int, wanted: str, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fused:
        pytest.importorskip("triton")
        # two programs per sentence, of which the second one has a spare unit
        monkeypatch.setattr("gumbeltree.ops.mlstm.BD", 2)
        monkeypatch.setattr("gumbeltree.ops.mlstm.why_not", lambda weight: None)
        for name in ("apply_exact", "exact_gradients"):
            monkeypatch.setattr(f"gumbeltree.ops.mlstm.{name}", None)
    torch.manual_seed(0)
    arrange = Sentences.full if spare else Sentences.padded
    padded = torch.zeros(len(lengths), max(lengths) + spare, dtype=torch.int64)
    layout = arrange(padded.to(DEVICE), torch.tensor(lengths, device=DEVICE)).layout
    # with spare rows, all sentences have as many rows as the longest may have words
    assert layout.rows == (padded.numel() if spare else sum(lengths))
    shapes = (layout.rows, D), (layout.rows, 4 * D), (D, D), (4 * D, D)
    kind = {"dtype": torch.float64, "device": DEVICE}
    # in memory, columns come before rows
    given = [torch.randn(n, m, **kind).t().requires_grad_() for m, n in shapes]
    found, expected = mlstm(*given, layout), plain(*given, layout)
    with torch.no_grad():
        # shares rows between steps
        without = mlstm(*given, layout)
    for one, other, same in zip(found, expected, without, strict=True):
        torch.testing.assert_close(one, other)
        assert torch.equal(one, same)
    outside = [torch.randn(D, layout.rows, **kind).t() for _ in range(2)]
    kept = {"h": [0], "c": [1], "both": [0, 1]}[wanted]
    before = [x.clone() for x in outside]
    gradients = [
        torch.autograd.grad(
            [pair[i] for i in kept], given, [outside[i] for i in kept], materialize_grads=True
        )
        for pair in (found, expected)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
    # they belong to the caller
    assert all(torch.equal(x, y) for x, y in zip(outside, before, strict=True))


@pytest.mark.gpu
def test_gpu_kernels_equal_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    units, lengths = 1024, torch.tensor([9, 5, 5, 1])
    layout = Sentences.padded(torch.zeros(4, 9, dtype=torch.int64), lengths).layout
    shapes = (layout.rows, units), (layout.rows, 4 * units), (units, units), (4 * units, units)
    given = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    given[2:] = [x / units**0.5 for x in given[2:]]
    outside = [torch.randn(layout.rows, units, dtype=torch.float64) for _ in range(2)]
    calls = []
    monkeypatch.setattr(
        "gumbeltree.ops.mlstm.apply_fused", lambda *x: (calls.append(x), apply_fused(*x))
    )
    found = []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
        inputs = [x.to(device, dtype).requires_grad_() for x in given]
        there = Sentences.padded(
            torch.zeros(4, 9, dtype=torch.int64, device=device), lengths.to(device)
        ).layout
        states = mlstm(*inputs, there)
        gradients = torch.autograd.grad(states, inputs, [x.to(device, dtype) for x in outside])
        found.append([x.detach().cpu().double() for x in (*states, *gradients)])
    assert len(calls) == 9
    for exact, fused in zip(*found, strict=True):
        assert float((fused - exact).norm() / exact.norm()) < 1e-5
