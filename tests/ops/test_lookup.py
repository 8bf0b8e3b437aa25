"""Rows of a table: values and gradients equal those of torch; the same bits on a CUDA device."""

import pytest
import torch
from torch.nn import functional as F

from gumbeltree.ops import lookup as lookup_module
from gumbeltree.ops.lookup import Lookup, lookup

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("entries", [1, 40, 2**22])
def test_values_and_gradients_equal_those_of_torch(
    monkeypatch: pytest.MonkeyPatch, entries: int
) -> None:
    monkeypatch.setattr(lookup_module, "ENTRIES", entries)
    torch.manual_seed(0)
    table = torch.randn(5, 3, dtype=torch.float64, device=DEVICE, requires_grad=True)
    # row 4 is not used
    rows = torch.randint(0, 4, (101,), device=DEVICE)
    outside = torch.randn(101, 3, dtype=torch.float64, device=DEVICE)
    found, expected = Lookup.apply(table, rows), F.embedding(rows, table)
    assert torch.equal(found, expected)
    (one,) = torch.autograd.grad((found * outside).sum(), table)
    (other,) = torch.autograd.grad((expected * outside).sum(), table)
    torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)
    assert (one[4] == 0).all()


def test_second_derivatives() -> None:
    table = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    rows = torch.tensor([0, 3, 3, 1, 3])
    assert torch.autograd.gradgradcheck(lambda x: Lookup.apply(x.tanh(), rows).square(), table)


def test_any_shape_of_rows() -> None:
    table = torch.randn(2, 3, device=DEVICE)
    for shape in ((), (0,), (7,), (40, 2)):
        rows = torch.randint(0, 2, shape, device=DEVICE)
        assert torch.equal(lookup(table, rows), table[rows])


@pytest.mark.gpu
def test_gpu_gives_the_same_bits() -> None:
    torch.manual_seed(0)
    table = torch.randn(17, 128, device="cuda", requires_grad=True)
    rows = torch.randint(0, 17, (12_800,), device="cuda")
    outside = torch.randn(12_800, 128, device="cuda")
    first, *others = (
        torch.autograd.grad((lookup(table, rows) * outside).sum(), table)[0] for _ in range(20)
    )
    assert all(torch.equal(x, first) for x in others)
    exact = F.embedding(rows, table.double())
    (expected,) = torch.autograd.grad((exact * outside.double()).sum(), table)
    torch.testing.assert_close(first, expected, rtol=1e-4, atol=1e-4)
