"""Shift-reduce with a list as the stack, one sentence at a time."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.nn.equations import step


class Run(NamedTuple):
    """What happened to one sentence."""

    nodes: list[Tensor]
    """[h; c] of the words, then of the merges; the root is the last."""
    tracked: list[Tensor]
    """[h; c] of the tracker at each step."""
    log_prob: Tensor
    """Log-probability of the actions where there was a choice."""
    entropy: Tensor
    """Sum of the entropies of these choices."""
    actions: list[int]
    """0 for SHIFT and 1 for REDUCE."""
    loss: Tensor
    """Mean cross-entropy of all actions, also where there was no choice."""


def by_list(
    words: Tensor,
    weight: Tensor,
    bias: Tensor,
    missing: Tensor,
    tracker: Any = None,
    transitions: Sequence[int] | None = None,
    scores: Callable[..., Tensor] | None = None,
) -> Run:
    """Shift and reduce one sentence.

    Args:
        words: [h; c] of the words `[T, 2D]`.
        weight: weight of the gates i, f_l, f_r, g and o `[5D, 2D]`.
        bias: their bias `[5D]`.
        missing: h of a missing top node, second node and next word `[3, D]`.
        tracker: has the weights of the tracker, if there is one.
        transitions: actions to follow; by default, the possible action with the higher score.
        scores: returns the scores of both actions `[2]` from h of top node, second node and next
            word, and h and c of the tracker.
    """
    D, nodes = missing.shape[1], list(words)
    stack: list[Tensor] = []
    queue, tracked, actions = list(words), list[Tensor](), list[int]()
    log_prob = entropy = loss = words.new_zeros(())
    h = c = words.new_zeros(0 if tracker is None else tracker.weight_hh.shape[1])
    for t in range(2 * len(words) - 1):
        view = [
            stack[-1][:D] if stack else missing[0],
            stack[-2][:D] if len(stack) > 1 else missing[1],
            queue[0][:D] if queue else missing[2],
        ]
        if tracker is not None:
            h, c = step(tracker, torch.cat(view), h, c)
            tracked.append(torch.cat([h, c]))
        action = 0 if queue else 1
        logs = None if scores is None else scores(*view, h, c).log_softmax(0)
        if queue and len(stack) > 1:
            action = int(logs.argmax()) if transitions is None else transitions[t]
            if logs is not None:
                log_prob, entropy = log_prob + logs[action], entropy - (logs.exp() * logs).sum()
        if logs is not None:
            loss = loss - logs[action] / (2 * len(words) - 1)
        actions.append(action)
        if action == 0:
            stack.append(queue.pop(0))
            continue
        right, left = stack.pop(), stack.pop()
        gates = weight @ torch.cat([left[:D], right[:D]]) + bias
        if tracker is not None:
            gates = gates + tracker.to_cell @ h
        i, f_l, f_r, g, o = gates.split(D)
        cell = f_l.sigmoid() * left[D:] + f_r.sigmoid() * right[D:] + i.sigmoid() * g.tanh()
        stack.append(torch.cat([o.sigmoid() * cell.tanh(), cell]))
        nodes.append(stack[-1])
    assert len(stack) == 1
    assert transitions is None or actions == list(transitions)
    return Run(nodes, tracked, log_prob, entropy, actions, loss)
