"""Straight-through Gumbel-softmax: one-hot forward, softmax backward (Eqs. 8, 9, S11)."""

import torch
from torch import Tensor


class StraightThroughGumbel:
    """The paper's estimator. Its forward pass is one-hot, so `exact` can run it."""

    one_hot = True

    def weights(self, scores: Tensor, choice: Tensor, temperature: float) -> Tensor:
        """Return y-bar of Eq. S11: the value is one-hot at `choice`, the gradient that of Eq. 8.

        Args:
            scores: noisy scores `[B, K]`, -inf where there is no candidate.
            choice: chosen position, int64 `[B]`.
            temperature: positive.
        """
        y = torch.softmax(scores / temperature, dim=-1)
        y_st = torch.zeros_like(y).scatter(-1, choice[:, None], 1.0)
        # detach(y_st - y) + y, written so that the value is exactly one-hot in floating point
        return y_st + (y - y.detach())

    @staticmethod
    def score_gradient(dy: Tensor, y: Tensor, temperature: float) -> Tensor:
        """Return dL/dscores `[B, K]` from dL/dy-bar, centred on the winner.

        y (dy - sum y dy) loses the winner's part to cancellation as y tends to one-hot; only
        differences of dy matter, so take them from the winner's. A forced choice need not win:
        what counts is the largest y.
        """
        u = dy - dy.gather(-1, y.argmax(-1, keepdim=True))
        return y * (u - (y * u).sum(-1, keepdim=True)) / temperature
