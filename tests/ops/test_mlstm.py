"""ops.mlstm against a plain recurrence with autograd, symbol by symbol."""

import pytest
import torch
from torch import Tensor

from gumbeltree.layout import Layout, Sentences
from gumbeltree.ops.mlstm import mlstm

D = 4
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
def test_values_and_gradients(lengths: tuple[int, ...], spare: int, wanted: str) -> None:
    torch.manual_seed(0)
    arrange = Sentences.full if spare else Sentences.padded
    padded = torch.zeros(len(lengths), max(lengths) + spare, dtype=torch.int64)
    layout = arrange(padded, torch.tensor(lengths)).layout
    # with spare rows, all sentences have as many rows as the longest may have words
    assert layout.rows == (padded.numel() if spare else sum(lengths))
    shapes = (layout.rows, D), (layout.rows, 4 * D), (D, D), (4 * D, D)
    given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    found, expected = mlstm(*given, layout), plain(*given, layout)
    with torch.no_grad():
        # shares rows between steps
        without = mlstm(*given, layout)
    for one, other, same in zip(found, expected, without, strict=True):
        torch.testing.assert_close(one, other)
        assert torch.equal(one, same)
    outside = [torch.randn(layout.rows, D, dtype=torch.float64) for _ in range(2)]
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
