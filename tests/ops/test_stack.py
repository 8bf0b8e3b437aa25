"""Test shift-reduce: transitions, tables, and both implementations against a list."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gumbeltree.config import TreeLSTMConfig
from gumbeltree.layout import Sentences
from gumbeltree.nn.cells.treelstm import TreeLSTMCell
from gumbeltree.ops.stack import StackProblem, TrackerWeights, follow, machine, stack_tables
from gumbeltree.ops.stack.transitions import (
    REDUCE,
    SHIFT,
    left_to_right,
    to_order,
    to_transitions,
)
from gumbeltree.tree import Tree

LENGTHS = [5, 1, 7, 2, 5, 3]
D, WIDTH = 3, 2


@st.composite
def merge_orders(draw: st.DrawFn) -> list[int]:
    words = draw(st.integers(1, 12))
    return [draw(st.integers(0, last)) for last in range(words - 2, -1, -1)]


def named(count: int) -> list[str]:
    return [str(i) for i in range(count)]


@settings(max_examples=60)
@given(merge_orders())
def test_transitions_and_orders_are_inverse(order: list[int]) -> None:
    words = named(len(order) + 1)
    tree = Tree(words, order)
    (row,) = left_to_right(np.array([order], dtype=np.int64), np.array([len(words)])).tolist()
    assert Tree(words, row) == tree
    transitions = to_transitions(row)
    assert transitions.count(SHIFT) == len(words)
    assert transitions.count(REDUCE) == len(words) - 1
    assert to_order(transitions) == row
    assert to_transitions(to_order(transitions)) == transitions
    # reading the brackets from left to right gives the same actions
    written = [SHIFT if piece != ")" else REDUCE for piece in str(tree).split() if piece != "("]
    assert transitions == written
    again = left_to_right(np.array([row], dtype=np.int64), np.array([len(words)]))
    assert again.tolist() == [row]


def test_transitions_that_no_stack_makes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`order\[1\]` is 0 after 3"):
        to_transitions([3, 0, 0, 0])
    with pytest.raises(ValueError, match="step 1 finds 1"):
        to_order([SHIFT, REDUCE])
    with pytest.raises(ValueError, match="leave 2 nodes"):
        to_order([SHIFT, SHIFT])


def random_orders(seed: int, lengths: list[int]) -> Tensor:
    T = max(lengths)
    order = torch.full((len(lengths), T - 1), -1)
    for b, length in enumerate(lengths):
        tree = Tree.random(named(length), seed + b)
        order[b, : length - 1] = torch.tensor(tree.order, dtype=torch.int64)
    return order


def problem_of(tracked: bool, lengths: list[int]) -> StackProblem:
    torch.manual_seed(4)
    cell = TreeLSTMCell(D, TreeLSTMConfig()).double()
    words = torch.randn(len(lengths), max(lengths), 2 * D, dtype=torch.float64)
    sentences = Sentences.padded(words, torch.tensor(lengths))

    def weight(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64).requires_grad_()

    tracker = TrackerWeights(
        weight(4 * WIDTH, 3 * D), weight(4 * WIDTH, WIDTH), weight(4 * WIDTH), weight(5 * D, WIDTH)
    )
    return StackProblem(
        sentences.words.detach().requires_grad_(),
        sentences.layout,
        weight(5 * D, 2 * D),
        weight(5 * D),
        cell,
        weight(3, D),
        tracker if tracked else None,
    )


def inputs_of(problem: StackProblem) -> list[Tensor]:
    own = [problem.leaves, problem.weight, problem.bias, problem.missing]
    return [*own, *(problem.tracker or ())]


def by_list(
    problem: StackProblem, words: Tensor, transitions: list[int]
) -> tuple[list[Tensor], list[Tensor]]:
    """Run one sentence `[L, 2D]` with a list as the stack; return nodes and tracker states."""
    stack, queue, made, tracked = [], list(words), [], []
    e = m = torch.zeros(WIDTH, dtype=torch.float64)
    for action in transitions:
        top = stack[-1][:D] if stack else problem.missing[0]
        second = stack[-2][:D] if len(stack) > 1 else problem.missing[1]
        word = queue[0][:D] if queue else problem.missing[2]
        if problem.tracker:
            w_ih, w_hh, b, _ = problem.tracker
            i, f, g, o = (w_ih @ torch.cat([top, second, word]) + w_hh @ e + b).split(WIDTH)
            m = torch.sigmoid(f) * m + torch.sigmoid(i) * torch.tanh(g)
            e = torch.sigmoid(o) * torch.tanh(m)
            tracked.append(torch.cat([e, m]))
        if action == SHIFT:
            stack.append(queue.pop(0))
            continue
        right, left = stack.pop(), stack.pop()
        gates = problem.weight @ torch.cat([left[:D], right[:D]]) + problem.bias
        if problem.tracker:
            gates = gates + problem.tracker.to_cell @ e
        i, f_l, f_r, g, o = gates.split(D)
        c = torch.sigmoid(f_l) * left[D:] + torch.sigmoid(f_r) * right[D:]
        c = c + torch.sigmoid(i) * torch.tanh(g)
        stack.append(torch.cat([torch.sigmoid(o) * torch.tanh(c), c]))
        made.append(stack[-1])
    assert len(stack) == 1
    return [*words, *made], tracked


@pytest.mark.parametrize("impl", ["thin", "machine"])
@pytest.mark.parametrize("tracked", [False, True], ids=["bare", "tracked"])
@pytest.mark.parametrize("lengths", [LENGTHS, [1], [1, 1], [2]], ids=str)
def test_both_implementations_equal_a_list(impl: str, tracked: bool, lengths: list[int]) -> None:
    problem, given_order = problem_of(tracked, lengths), random_orders(3, lengths)
    layout = problem.layout
    tables = stack_tables(given_order, layout, tracked)
    assert tables.order.shape == given_order.shape
    if impl == "thin":
        result = follow(problem, tables)
    else:
        result, order = machine.run(problem, machine.along(tables.order, problem))
        assert torch.equal(order, tables.order)
    padded = layout.unpack(problem.leaves)
    nodes = layout.unpack_nodes(result.states[: layout.nodes])
    T = layout.T
    loss = expected = torch.zeros((), dtype=torch.float64)
    step = 0
    by_sentence: list[list[Tensor]] = [[] for _ in lengths]
    if result.tracked is not None:
        # rows are ordered by step, then by rank
        for row, rank in zip(result.tracked, tables.rank.tolist(), strict=True):
            by_sentence[int(layout.sentence[rank])].append(row)
    for b, length in enumerate(lengths):
        merges = tables.order[b, : length - 1].tolist()
        assert Tree(named(length), merges) == Tree.random(named(length), 3 + b)
        wanted, tracked_rows = by_list(problem, padded[b, :length], to_transitions(merges))
        found = [*nodes[b, :length], *nodes[b, T : T + length - 1], *by_sentence[b]]
        assert len(found) == 2 * length - 1 + tracked * (2 * length - 1)
        for x, y in zip(found, [*wanted, *tracked_rows], strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=1e-12)
            weight = torch.linspace(-1, 1.5, len(x), dtype=torch.float64) * (1 + step % 5)
            loss, expected, step = (
                loss + (weight * x).sum(),
                expected + (weight * y).sum(),
                step + 1,
            )
    inputs = inputs_of(problem)
    gradients = [
        torch.autograd.grad(x, inputs, allow_unused=True, materialize_grads=True)
        for x in (loss, expected)
    ]
    for x, y in zip(*gradients, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-11, atol=1e-11)


def test_second_derivatives_of_the_thin_stack_are_refused() -> None:
    problem = problem_of(True, [3])
    tables = stack_tables(random_orders(1, [3]), problem.layout, True)
    states = follow(problem, tables).states
    (gradient,) = torch.autograd.grad(states.square().sum(), problem.leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        gradient.sum().backward()


def test_tables_tell_where_there_is_a_choice() -> None:
    problem = problem_of(True, [3, 2])
    tables = stack_tables(torch.tensor([[1, 0], [0, -1]]), problem.layout, True)
    # steps of the first sentence: S S S R R; of the second: S S R
    assert tables.active == [2, 2, 2, 1, 1]
    assert tables.rank.tolist() == [0, 1, 0, 1, 0, 1, 0, 0]
    assert tables.reduces.tolist() == [False] * 5 + [True] * 3
    assert tables.free.tolist() == [False] * 4 + [True] + [False] * 3


@pytest.mark.parametrize("tracked", [False, True], ids=["bare", "tracked"])
def test_memory_of_the_thin_stack_is_linear(tracked: bool) -> None:
    def kept(T: int) -> int:
        """Count the numbers that the backward pass of one sentence of T words keeps."""
        problem, order = problem_of(tracked, [T]), random_orders(0, [T])
        sizes = []

        def note(x: Tensor) -> Tensor:
            sizes.append(x.numel())
            return x

        with torch.autograd.graph.saved_tensors_hooks(note, note):
            follow(problem, stack_tables(order, problem.layout, tracked))
        return sum(sizes)

    assert kept(20) < kept(40) < 2 * kept(20)
