"""The binary Tree-LSTM cell (Eqs. 1-3), forward and backward."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.config import TreeLSTMConfig
from gumbeltree.nn.initial_weights import orthogonal_
from gumbeltree.states import NodeState


class TreeLSTMCell(nn.Module):
    """Compose two adjacent nodes into their parent.

    Gates are in the order i, f_l, f_r, g, o, as in the authors' code.

    Args:
        hidden_dim: state width D.
        config: initialisation of `weight`, and the offset of both forget gates.
    """

    Config = TreeLSTMConfig
    kernels = "treelstm"
    capturable = True

    def __init__(self, hidden_dim: int, config: TreeLSTMConfig | None = None) -> None:
        super().__init__()
        config = config or TreeLSTMConfig()
        self.init, self.forget_offset = config.init, config.forget_offset
        self.weight = nn.Parameter(torch.empty(5 * hidden_dim, 2 * hidden_dim))
        self.bias = nn.Parameter(torch.empty(5 * hidden_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weights; the bias is zero."""
        if self.init == "orthogonal":
            orthogonal_(self.weight)
        elif self.init == "uniform":
            limit = 1 / math.sqrt(self.weight.shape[1])
            nn.init.uniform_(self.weight, -limit, limit)
        else:
            nn.init.kaiming_normal_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, left: NodeState, right: NodeState) -> NodeState:
        """Return the parent of `left` and `right`, each `[..., D]`."""
        children = torch.cat([left.h, right.h], dim=-1)
        gates = F.linear(children, self.weight, self.bias)  # [..., 5D]
        i, f_l, f_r, g, o = gates.chunk(5, dim=-1)
        f_l, f_r = f_l + self.forget_offset, f_r + self.forget_offset
        # Eqs. 1 and 2
        c = f_l.sigmoid() * left.c + f_r.sigmoid() * right.c + i.sigmoid() * g.tanh()
        # Eq. 3
        return NodeState(o.sigmoid() * c.tanh(), c)

    # The methods below let `exact` run this cell: gates are a sum of one product per child,
    # followed by element-wise operations. A cell without these three methods runs with `reference`.

    def gate_bias(self) -> Tensor:
        """Return the bias of the summed gates `[5D]`, including the forget offset."""
        D = self.bias.shape[0] // 5
        offset = torch.zeros_like(self.bias)
        offset[D : 3 * D] = self.forget_offset
        # backward must not touch the gradient: `fused` may still be writing it on another stream
        return self.bias + offset

    @staticmethod
    def activate(gates: Tensor, c_left: Tensor, c_right: Tensor) -> NodeState:
        """Compute states from summed gates `[n, 5D]`, which are activated in place."""
        D = c_left.shape[-1]
        gates[:, : 3 * D].sigmoid_()
        gates[:, 3 * D : 4 * D].tanh_()
        gates[:, 4 * D :].sigmoid_()
        i, f_l, f_r, g, o = gates.chunk(5, dim=-1)
        c = (f_l * c_left).addcmul_(f_r, c_right).addcmul_(i, g)
        return NodeState(o * c.tanh(), c)

    @staticmethod
    def activate_backward(
        dh: Tensor, dc: Tensor | None, gates: Tensor, c: Tensor, c_left: Tensor, c_right: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of the summed gates `[n, 5D]`, of `c_left` and of `c_right`."""
        D = c.shape[-1]
        i, f_l, f_r, g, o = gates.chunk(5, dim=-1)
        tanh_c = c.tanh()
        dc_total = dh * o * (1 - tanh_c * tanh_c)
        if dc is not None:
            dc_total += dc
        # derivatives: s (1 - s) for the sigmoids, 1 - g^2 for tanh
        dgates = gates * (1 - gates)
        dgates[:, 3 * D : 4 * D] = 1 - g * g
        d_i, d_fl, d_fr, d_g, d_o = dgates.chunk(5, dim=-1)
        d_i *= dc_total * g
        d_fl *= dc_total * c_left
        d_fr *= dc_total * c_right
        d_g *= dc_total * i
        d_o *= dh * tanh_c
        return dgates, dc_total * f_l, dc_total * f_r
