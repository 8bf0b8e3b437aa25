"""Rows of a table: values and gradients equal those of torch; the same bits on a CUDA device."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from gumbeltree.ops import lookup as lookup_module
from gumbeltree.ops.lookup import Lookup, lookup

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("entries", [5, 40, 2**22])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_values_and_gradients_equal_those_of_torch(
    monkeypatch: pytest.MonkeyPatch, entries: int, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(lookup_module, "ENTRIES", entries)
    torch.manual_seed(0)
    table = torch.randn(5, 3, device=DEVICE).to(dtype).requires_grad_()
    # row 4 is not used
    rows = torch.randint(0, 4, (101,), device=DEVICE)
    outside = torch.randn(101, 3, device=DEVICE).to(dtype)
    found = Lookup.apply(table, rows)
    assert torch.equal(found, F.embedding(rows, table))
    (one,) = torch.autograd.grad((found * outside).sum(), table)
    assert one.dtype == dtype
    wide = table.detach().double().requires_grad_()
    expected = F.embedding(rows, wide)
    (other,) = torch.autograd.grad((expected * outside.double()).sum(), wide)
    error = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(one.double(), other, rtol=error, atol=error)
    assert (one[4] == 0).all()


def test_autocast_does_not_narrow_sums() -> None:
    table = torch.randn(4, 3, requires_grad=True)
    rows = torch.randint(0, 4, (200,))
    outside = torch.randn(200, 3)
    (expected,) = torch.autograd.grad((F.embedding(rows, table) * outside).sum(), table)
    with torch.autocast("cpu", torch.bfloat16):
        (found,) = torch.autograd.grad((Lookup.apply(table, rows) * outside).sum(), table)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_second_derivatives(dtype: torch.dtype) -> None:
    rows = torch.tensor([0, 3, 3, 1, 3])
    found = []
    for function in (Lookup.apply, lambda table, rows: F.embedding(rows, table)):
        torch.manual_seed(0)
        table = torch.randn(4, 2, dtype=dtype, requires_grad=True)
        (one,) = torch.autograd.grad(function(table, rows).pow(3).sum(), table, create_graph=True)
        found.append(torch.autograd.grad(one.square().sum(), table)[0])
    torch.testing.assert_close(*found)


def test_functional_derivatives() -> None:
    table, rows = torch.randn(3, 2), torch.tensor([0, 2, 2])
    found = torch.func.grad(lambda x: Lookup.apply(x, rows).square().sum())(table)
    torch.testing.assert_close(found, 2 * table * torch.tensor([[1.0], [0.0], [2.0]]))


def test_any_shape_of_rows() -> None:
    table = nn.Embedding(2, 3, device=DEVICE)
    for shape in ((), (0,), (7,), (40, 2)):
        rows = torch.randint(0, 2, shape, device=DEVICE)
        assert torch.equal(lookup(table.weight, rows), table.weight[rows])


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_gpu_gives_the_same_bits(precision: str) -> None:
    torch.manual_seed(0)
    table = nn.Embedding(17, 128, device="cuda")
    rows = torch.randint(0, 17, (128, 100), device="cuda")
    outside = torch.randn(128, 100, 128, device="cuda")
    wide = table.weight.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad((F.embedding(rows, wide) * outside.double()).sum(), wide)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        first, *others = (
            torch.autograd.grad((lookup(table.weight, rows) * outside).sum(), table.weight)[0]
            for _ in range(20)
        )
    finally:
        torch.set_float32_matmul_precision(before)
    assert all(torch.equal(x, first) for x in others)
    assert (first.double() - expected).norm() < 1e-6 * expected.norm()
