"""Kernels of `fused` for the gated recursive cell (`nn/cells/gated.py`).

A node has a single state, so rows of states and gradients have D numbers. W is the width of the
cell's hidden layer. A row of its record holds the inner states W1 [l; r] + b1 `[W]`, the activated
gates z, h, c, v `[4D]`, the normalised state `[D]`, the inverse deviation and unused columns.
"""


def record_width(W: int, D: int) -> int:
    """Return the width of a record, a multiple of four for aligned access."""
    return -(-(W + 5 * D + 1) // 4) * 4
