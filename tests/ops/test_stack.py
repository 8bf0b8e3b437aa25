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
from tests.nn.equations import check_same, random_merges
from tests.nn.shift_reduce import by_list

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


@pytest.mark.parametrize("impl", ["thin", "machine"])
@pytest.mark.parametrize("tracked", [False, True], ids=["bare", "tracked"])
@pytest.mark.parametrize("lengths", [LENGTHS, [1], [1, 1], [2]], ids=str)
def test_both_implementations_equal_a_list(impl: str, tracked: bool, lengths: list[int]) -> None:
    problem, given_order = problem_of(tracked, lengths), random_merges(lengths)
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
    by_sentence: list[list[Tensor]] = [[] for _ in lengths]
    if result.tracked is not None:
        # rows are ordered by step, then by rank
        for row, rank in zip(result.tracked, tables.rank.tolist(), strict=True):
            by_sentence[int(layout.sentence[rank])].append(row)
    weights = problem.weight, problem.bias, problem.missing, problem.tracker
    found, wanted = list[Tensor](), list[Tensor]()
    for b, length in enumerate(lengths):
        merges = tables.order[b, : length - 1].tolist()
        given_merges = given_order[b, : length - 1].tolist()
        assert Tree(named(length), merges) == Tree(named(length), given_merges)
        run = by_list(padded[b, :length], *weights, to_transitions(merges))
        found += [*nodes[b, :length], *nodes[b, layout.T :][: length - 1], *by_sentence[b]]
        wanted += run.nodes + run.tracked
    of_tracker = problem.tracker._asdict() if tracked else {}
    of_cell = {"cell": problem.weight, "cell bias": problem.bias, "missing": problem.missing}
    unused = set() if tracked else {"missing"}
    if max(lengths) == 1:
        unused |= {"cell", "cell bias", "to_cell", "weight_hh"}
    check_same(found, wanted, {"leaves": problem.leaves, **of_cell, **of_tracker}, unused)


def test_second_derivatives_of_the_thin_stack_are_refused() -> None:
    problem = problem_of(True, [3])
    tables = stack_tables(random_merges([3]), problem.layout, True)
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
        problem, order = problem_of(tracked, [T]), random_merges([T])
        sizes = []

        def note(x: Tensor) -> Tensor:
            sizes.append(x.numel())
            return x

        with torch.autograd.graph.saved_tensors_hooks(note, note):
            follow(problem, stack_tables(order, problem.layout, tracked))
        return sum(sizes)

    assert kept(20) < kept(40) < 2 * kept(20)
