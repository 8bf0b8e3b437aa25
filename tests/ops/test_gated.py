"""Test the kernels of the gated recursive cell against its torch operations."""

import pytest
import torch

from gumbeltree.nn.cells.gated import EPSILON, GatedCell
from gumbeltree.noise import dropped_units

pytest.importorskip("triton")
gated = pytest.importorskip("gumbeltree.ops.gated")


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")
@pytest.mark.parametrize("D", [5, 16])
@pytest.mark.parametrize(("with_dc", "scale"), [(True, 1.0), (False, 1.0), (True, 1.5)])
@torch.no_grad()
def test_kernels_equal_torch_operations(D, with_dc, scale):
    torch.manual_seed(D)
    n, cell = 7, GatedCell(D).double()
    for p in cell.parameters():
        torch.nn.init.normal_(p)
    record = torch.zeros(n, cell.record_width).double()
    record[:, : cell.width].normal_()
    other = record.clone()
    # columns of wider rows, as the merge passes them
    left, right = torch.randn(2, n, 2 * D).double()[..., D:]
    dh, dc = torch.randn(2, n, 3 * D).double()[..., D : 2 * D]
    parent = cell.activate(record, left, right, scale).h
    found = gated.complete(other, left, right, *cell.others(), EPSILON, scale)
    torch.testing.assert_close(found, parent)
    torch.testing.assert_close(other, record)
    dc = dc if with_dc else None
    expected = cell.activate_backward(dh, dc, record, parent, left, right, scale)
    gradients = gated.undo(dh, dc, record, left, right, cell.weight_out, cell.gain, scale)
    used = cell.record_width - 1
    torch.testing.assert_close(gradients[0][:, :used], expected[0][:, :used])
    torch.testing.assert_close(gradients[1:], expected[1:])


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")
@pytest.mark.parametrize("width", [5, 600])
def test_kernel_drops_the_same_units(width):
    codes = torch.randint(-(2**63), 2**63 - 1, (4,))
    record = torch.zeros(4, width + 3)
    gated.drop(record[:, :width], codes, 0.3, -1.0)
    expected = torch.zeros(4, width + 3, dtype=torch.bool)
    expected[:, :width] = dropped_units(codes, width, 0.3)
    assert torch.equal(record < 0, expected)
    assert bool(expected.any())


@pytest.mark.gpu
def test_gpu_kernel_drops_the_same_units():
    codes = torch.randint(-(2**63), 2**63 - 1, (100,), device="cuda")
    record = torch.zeros(100, 700, device="cuda")
    gated.drop(record[:, :512], codes, 0.3, -1.0)
    assert torch.equal(record[:, :512] < 0, dropped_units(codes, 512, 0.3))
    assert not record[:, 512:].any()
