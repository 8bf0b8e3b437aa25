"""The gated recursive cell (Shen et al. 2019), forward and backward."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.config import GatedConfig
from gumbeltree.device.triton_support import why_not
from gumbeltree.noise import dropped_units
from gumbeltree.ops import gated
from gumbeltree.states import NodeState

EPSILON = 1e-5
"""Added to the variance in the layer normalisation."""
OFF = -1e4
"""Input at which GELU and its derivative are zero, which drops a hidden unit."""


class GatedCell(nn.Module):
    """Compose two adjacent nodes by gates of a two-layer perceptron, then normalise.

    With u = GELU(W1 [l; r] + b1) and [z; h; c; v] = W2 u + b2, the parent is
    LayerNorm(sigmoid(z) l + sigmoid(h) r + sigmoid(c) v). A node has a single state: c repeats h.

    In training, a share `dropout` of u is dropped, and the rest is divided by 1 - dropout. The code
    of a candidate determines the units to drop; see `ops.merge.dropout`.

    Args:
        hidden_dim: state width D.
        config: width and dropout of the hidden layer.
    """

    Config = GatedConfig
    single_state = True
    kernels = "gated"
    capturable = True
    epsilon = EPSILON
    off = OFF

    def __init__(self, hidden_dim: int, config: GatedConfig | None = None) -> None:
        super().__init__()
        D = self.D = hidden_dim
        config = config or GatedConfig()
        self.width, self.drop_rate = config.expansion * D, config.dropout
        self.left_offset = config.left_offset
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
        with torch.no_grad():
            self.bias_out[: self.D] += self.left_offset
            self.bias_out[self.D : 2 * self.D] -= self.left_offset
        nn.init.ones_(self.gain)
        nn.init.zeros_(self.shift)

    def forward(self, left: NodeState, right: NodeState, codes: Tensor | None = None) -> NodeState:
        """Return the parent of `left` and `right`, each `[..., D]`; their c is not read.

        Args:
            left: left children.
            right: right children.
            codes: codes of the parents for dropout, int64 `[...]`; None for no dropout.
        """
        inner = F.linear(torch.cat([left.h, right.h], dim=-1), self.weight, self.bias)
        if codes is not None:
            inner = inner.masked_fill(dropped_units(codes, self.width, self.drop_rate), OFF)
        hidden = F.gelu(inner)
        if codes is not None:
            hidden = hidden / (1 - self.drop_rate)
        z, h, c, v = F.linear(hidden, self.weight_out, self.bias_out).chunk(4, dim=-1)
        mixed = z.sigmoid() * left.h + h.sigmoid() * right.h + c.sigmoid() * v
        parent = F.layer_norm(mixed, (self.D,), self.gain, self.shift, EPSILON)
        return NodeState(parent, parent)

    # The rest lets `exact` run this cell; `fused` has kernels of its own. A row of its record holds
    # W1 [l; r] + b1, the activated [z; h; c; v], the normalised state and the inverse deviation.

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

    def drop(self, inner: Tensor, codes: Tensor) -> None:
        """Drop hidden units of the summed products `[n, width]` in place, given codes `[n]`."""
        if why_not(inner) is None:
            gated.drop(inner, codes, self.drop_rate, OFF)
        else:
            inner.masked_fill_(dropped_units(codes, self.width, self.drop_rate), OFF)

    def activate(
        self, record: Tensor, left: Tensor, right: Tensor, scale: float = 1.0
    ) -> NodeState:
        """Complete records that start with the summed products; return the states `[n, D]`.

        `scale` is a factor of the hidden units.
        """
        D = self.D
        inner, gates, normal, inverse = self._parts(record)
        weight_out, bias_out, gain, shift = (x.to(record.dtype) for x in self.others())
        if why_not(record) is None:
            weights = weight_out, bias_out, gain, shift
            parent = gated.complete(record, left, right, *weights, EPSILON, scale)
            return NodeState(parent, parent)
        gates.copy_(torch.addmm(bias_out, F.gelu(inner), weight_out.t(), alpha=scale))
        gates[:, : 3 * D].sigmoid_()
        z, h, c, v = gates.chunk(4, dim=-1)
        mixed = (z * left).addcmul_(h, right).addcmul_(c, v)
        mixed -= mixed.mean(-1, keepdim=True)
        inverse.copy_((mixed.square().mean(-1, keepdim=True) + EPSILON).rsqrt())
        normal.copy_(mixed * inverse)
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
        scale: float = 1.0,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of the record `[n, record_width]`, of `left` and of `right`.

        The columns of the normalised state hold the gradient of the parent.
        """
        if why_not(record) is None:
            weight_out, gain = self.weight_out.to(record.dtype), self.gain.to(record.dtype)
            return gated.undo(dh, dc, record, left, right, weight_out, gain, scale)
        inner, gates, normal, inverse = self._parts(record)
        drecord = torch.zeros_like(record)
        dinner, dgates, dparent, _ = self._parts(drecord)
        dparent.copy_(dh if dc is None else dh + dc)
        dnormal = dparent * self.gain.to(record.dtype)
        dmixed = dnormal - dnormal.mean(-1, keepdim=True)
        dmixed -= normal * (dnormal * normal).mean(-1, keepdim=True)
        dmixed *= inverse
        z, h, c, v = gates.chunk(4, dim=-1)
        for part, y, factor in zip(dgates.chunk(4, -1), (z, h, c), (left, right, v), strict=False):
            part.copy_(dmixed * factor * y * (1 - y))
        dgates[:, 3 * self.D :] = dmixed * c
        # derivative of GELU: the normal distribution function plus x times its density
        slope = 0.5 * (1 + torch.erf(inner * math.sqrt(0.5)))
        slope += inner * torch.exp(-0.5 * inner * inner) / math.sqrt(2 * math.pi)
        dinner.copy_((dgates @ self.weight_out.to(record.dtype)) * slope.mul_(scale))
        return drecord, dmixed * z, dmixed * h

    def other_gradients(
        self, drecord: Tensor, record: Tensor, scale: float = 1.0
    ) -> tuple[Tensor, ...]:
        """Return the gradients of `others()`, given the gradients of all records."""
        inner, _, normal, _ = self._parts(record)
        _, dgates, dparent, _ = self._parts(drecord)
        return (
            (dgates.t() @ F.gelu(inner)).mul_(scale),
            dgates.sum(0),
            (dparent * normal).sum(0),
            dparent.sum(0),
        )
