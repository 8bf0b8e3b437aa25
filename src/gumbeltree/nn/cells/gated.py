"""The gated recursive cell (Shen et al. 2019), forward and backward."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.config import GatedConfig
from gumbeltree.states import NodeState

EPSILON = 1e-5
"""Added to the variance in the layer normalisation."""


class GatedCell(nn.Module):
    """Compose two adjacent nodes by gates of a two-layer perceptron, then normalise.

    With u = GELU(W1 [l; r] + b1) and [z; h; c; v] = W2 u + b2, the parent is
    LayerNorm(sigmoid(z) l + sigmoid(h) r + sigmoid(c) v). A node has a single state: c repeats h.

    Args:
        hidden_dim: state width D.
        config: width of the hidden layer.
    """

    Config = GatedConfig
    single_state = True

    def __init__(self, hidden_dim: int, config: GatedConfig | None = None) -> None:
        super().__init__()
        D = self.D = hidden_dim
        self.width = (config or GatedConfig()).expansion * D
        self.weight = nn.Parameter(torch.empty(self.width, 2 * D))
        self.bias = nn.Parameter(torch.empty(self.width))
        self.weight_out = nn.Parameter(torch.empty(4 * D, self.width))
        self.bias_out = nn.Parameter(torch.empty(4 * D))
        self.gain = nn.Parameter(torch.empty(D))
        self.shift = nn.Parameter(torch.empty(D))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weights as `torch.nn.Linear` and `torch.nn.LayerNorm` do."""
        for weight, bias in ((self.weight, self.bias), (self.weight_out, self.bias_out)):
            limit = 1 / math.sqrt(weight.shape[1])
            nn.init.uniform_(weight, -limit, limit)
            nn.init.uniform_(bias, -limit, limit)
        nn.init.ones_(self.gain)
        nn.init.zeros_(self.shift)

    def forward(self, left: NodeState, right: NodeState) -> NodeState:
        """Return the parent of `left` and `right`, each `[..., D]`; their c is not read."""
        hidden = F.gelu(F.linear(torch.cat([left.h, right.h], dim=-1), self.weight, self.bias))
        z, h, c, v = F.linear(hidden, self.weight_out, self.bias_out).chunk(4, dim=-1)
        mixed = z.sigmoid() * left.h + h.sigmoid() * right.h + c.sigmoid() * v
        parent = F.layer_norm(mixed, (self.D,), self.gain, self.shift, EPSILON)
        return NodeState(parent, parent)

    # The rest lets `exact` run this cell. A row of its record holds W1 [l; r] + b1, the activated
    # [z; h; c; v], the normalised state and the inverse deviation.

    @property
    def record_width(self) -> int:
        """Numbers to record per candidate."""
        return self.width + 5 * self.D + 1

    def gate_bias(self) -> Tensor:
        """Return the bias of the summed products of the children, `[width]`."""
        return self.bias

    def others(self) -> tuple[Tensor, ...]:
        """Return the parameters besides `weight` and `bias`."""
        return self.weight_out, self.bias_out, self.gain, self.shift

    def _parts(self, record: Tensor) -> tuple[Tensor, ...]:
        """Split a record `[n, record_width]`; inner states, gates, normalised state, deviation."""
        parts: tuple[Tensor, ...] = record.split([self.width, 4 * self.D, self.D, 1], dim=-1)
        return parts

    def activate(self, record: Tensor, left: Tensor, right: Tensor) -> NodeState:
        """Complete records that start with the summed products; return the states `[n, D]`."""
        D = self.D
        inner, gates, normal, scale = self._parts(record)
        weight_out, bias_out, gain, shift = (x.to(record.dtype) for x in self.others())
        gates.copy_(torch.addmm(bias_out, F.gelu(inner), weight_out.t()))
        gates[:, : 3 * D].sigmoid_()
        z, h, c, v = gates.chunk(4, dim=-1)
        mixed = (z * left).addcmul_(h, right).addcmul_(c, v)
        mixed -= mixed.mean(-1, keepdim=True)
        scale.copy_((mixed.square().mean(-1, keepdim=True) + EPSILON).rsqrt())
        normal.copy_(mixed * scale)
        parent = normal * gain + shift
        return NodeState(parent, parent)

    def activate_backward(
        self,
        dh: Tensor,
        dc: Tensor | None,
        record: Tensor,
        state: Tensor,
        left: Tensor,
        right: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of the record `[n, record_width]`, of `left` and of `right`.

        The columns of the normalised state hold the gradient of the parent.
        """
        inner, gates, normal, scale = self._parts(record)
        drecord = torch.zeros_like(record)
        dinner, dgates, dparent, _ = self._parts(drecord)
        dparent.copy_(dh if dc is None else dh + dc)
        dnormal = dparent * self.gain.to(record.dtype)
        dmixed = dnormal - dnormal.mean(-1, keepdim=True)
        dmixed -= normal * (dnormal * normal).mean(-1, keepdim=True)
        dmixed *= scale
        z, h, c, v = gates.chunk(4, dim=-1)
        for part, y, factor in zip(dgates.chunk(4, -1), (z, h, c), (left, right, v), strict=False):
            part.copy_(dmixed * factor * y * (1 - y))
        dgates[:, 3 * self.D :] = dmixed * c
        # derivative of GELU: the normal distribution function plus x times its density
        slope = 0.5 * (1 + torch.erf(inner * math.sqrt(0.5)))
        slope += inner * torch.exp(-0.5 * inner * inner) / math.sqrt(2 * math.pi)
        dinner.copy_((dgates @ self.weight_out.to(record.dtype)) * slope)
        return drecord, dmixed * z, dmixed * h

    def other_gradients(self, drecord: Tensor, record: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of `others()`, given the gradients of all records."""
        inner, _, normal, _ = self._parts(record)
        _, dgates, dparent, _ = self._parts(drecord)
        return (
            dgates.t() @ F.gelu(inner),
            dgates.sum(0),
            (dparent * normal).sum(0),
            dparent.sum(0),
        )
