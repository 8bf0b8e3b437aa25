"""An LSTM over packed words with PyTorch operations."""

import torch
from torch import Tensor
from torch.nn import functional as F

from gumbeltree.layout import Layout


def lstm(inputs: Tensor, weight_hh: Tensor, layout: Layout, reverse: bool) -> Tensor:
    """Return h and c of each word `[N, 2D]`; see `ops.lstm.lstm`."""
    if not layout.known:
        # spare rows are zero, which keeps the state zero up to the last word if read from the end
        return layout.gather(lstm(layout.spread(inputs), weight_hh, layout.full(), reverse))
    # even under autocast, the cell state keeps the precision of the weights
    h = c = weight_hh.new_zeros((layout.B, weight_hh.shape[1]))
    hs: list[Tensor] = []
    cs: list[Tensor] = []
    steps = list(zip(layout.active, inputs.split(list(layout.active)), strict=True))
    for n, gates in reversed(steps) if reverse else steps:
        i, f, g, o = (gates + F.linear(h[:n], weight_hh)).chunk(4, dim=-1)
        new_c = f.sigmoid() * c[:n] + i.sigmoid() * g.tanh()
        new_h = o.sigmoid() * new_c.tanh()
        hs.append(new_h)
        cs.append(new_c)
        h, c = new_h, new_c
        if reverse:
            # more sentences start at the next step, from a zero state
            h, c = F.pad(h, (0, 0, 0, layout.B - n)), F.pad(c, (0, 0, 0, layout.B - n))
    if reverse:
        hs, cs = hs[::-1], cs[::-1]
    return torch.cat([torch.cat(hs), torch.cat(cs)], dim=-1)
