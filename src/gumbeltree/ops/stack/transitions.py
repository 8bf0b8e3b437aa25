"""Conversion between merge orders and sequences of SHIFT and REDUCE."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

SHIFT, REDUCE = 0, 1


def to_transitions(order: Sequence[int]) -> list[int]:
    """Return the 2L - 1 actions that make the merges of a sentence of L words.

    Before a REDUCE, the present nodes are those of the stack, then the unread words. It therefore
    merges the position `len(stack) - 2`.

    Args:
        order: positions of the L - 1 merges, from left to right; see `left_to_right`.
    """
    transitions, stack = [SHIFT], 1
    for step, position in enumerate(order):
        if position + 2 < stack:
            raise ValueError(
                f"a stack merges from left to right, but `order[{step}]` is {position} after "
                f"{order[step - 1]}; reorder the merges with `left_to_right`"
            )
        transitions += [SHIFT] * (position + 2 - stack) + [REDUCE]
        stack = position + 1
    return transitions


def to_order(transitions: Iterable[int]) -> list[int]:
    """Return the positions of the merges that actions make; see `to_transitions`."""
    order, stack = [], 0
    for step, action in enumerate(transitions):
        if action == REDUCE:
            if stack < 2:
                raise ValueError(f"REDUCE needs two nodes, but step {step} finds {stack}")
            order.append(stack - 2)
        stack += 1 if action == SHIFT else -1
    if stack != 1:
        raise ValueError(f"the actions leave {stack} nodes on the stack; leave exactly one")
    return order


def left_to_right(order: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the merges of the same trees as a stack makes them, from left to right.

    Args:
        order: merges in any order, `[B, T-1]`; entries past the end of a sentence are ignored.
        lengths: words per sentence `[B]`.

    Returns:
        `[B, T-1]`, -1 past the end of a sentence. Merges from left to right stay as they are.
    """
    inside = np.arange(order.shape[1]) < (lengths - 1)[:, None]
    found = np.where(inside, order, -1)
    # after a merge at p, the stack has p + 1 nodes, so the next one is at p - 1 or later
    other = ((found[:, 1:] < found[:, :-1] - 1) & inside[:, 1:]).any(axis=1)
    for b in np.flatnonzero(other):
        present = [(i, i + 1) for i in range(int(lengths[b]))]
        nodes = []
        for position in found[b, : lengths[b] - 1].tolist():
            (start, _), (_, end) = present[position : position + 2]
            present[position : position + 2] = [(start, end)]
            nodes.append((end, -start))
        # with n merges done, node n joins the last two of the nodes that end at its end
        found[b, : len(nodes)] = [end - 2 - n for n, (end, _) in enumerate(sorted(nodes))]
    return found
