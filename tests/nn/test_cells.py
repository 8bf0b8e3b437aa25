"""Test every registered cell."""

import math

import pytest
import torch

from gumbeltree import EncoderConfig, GumbelTreeEncoder, NodeState
from gumbeltree.config import TreeLSTMConfig
from gumbeltree.nn.cells.treelstm import TreeLSTMCell
from gumbeltree.nn.estimators.st_gumbel import StraightThroughGumbel
from gumbeltree.ops.merge import exact
from gumbeltree.parts import CELLS
from gumbeltree.settings import settings_of


def made(name: str, hidden_dim: int) -> torch.nn.Module:
    """Return a registered cell with its default settings, in float64."""
    return CELLS[name](hidden_dim, settings_of(CELLS, name)()).double()


@pytest.mark.parametrize("name", CELLS)
def test_gradients_by_finite_differences(name: str) -> None:
    cell = made(name, 3)
    states = [torch.randn(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(4)]

    def parent(h_l, c_l, h_r, c_r):
        return tuple(cell(NodeState(h_l, c_l), NodeState(h_r, c_r)))

    assert torch.autograd.gradcheck(parent, states)


@pytest.mark.parametrize("name", CELLS)
def test_activate_and_its_backward_pass_equal_the_cell(name: str) -> None:
    cell = made(name, 5)
    reason = exact.unsupported(cell, StraightThroughGumbel(), sample=True)
    if reason is not None:
        pytest.skip(reason)
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
