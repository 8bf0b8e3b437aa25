"""Test that the kernels of shift-reduce equal the thin stack: states, tracker and gradients.

Without CUDA the kernels run in Triton's interpreter, in float64. With CUDA the same tests run
compiled, in float32, against float64.
"""

import os

import pytest
import torch
from torch import Tensor

from gumbeltree.layout import Layout
from gumbeltree.nn.cells.treelstm import TreeLSTMCell
from gumbeltree.nn.spans import spans_of
from gumbeltree.ops.levels import levels_of
from gumbeltree.ops.stack import (
    StackProblem,
    StackTables,
    TrackerWeights,
    device_tables,
    follow,
    fused,
    machine,
)
from gumbeltree.ops.stack.tables import NO_PARENT
from tests.nn.equations import random_merges

pytest.importorskip("triton")
pytest.importorskip("gumbeltree.ops.stack.kernels")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
LENGTHS = [5, 1, 7, 2, 5, 3]


def problem_of(lengths: list[int], D: int, d: int, dtype: torch.dtype) -> StackProblem:
    """Return sentences inside a graph, with two steps more than the longest needs."""
    torch.manual_seed(4)
    numbers = torch.tensor(lengths).sort(descending=True, stable=True)
    B, T = len(lengths), max(lengths) + 2
    start = torch.arange(0, (T + 1) * B, B)
    rank = numbers.indices.argsort()
    places = (x.to(DEVICE) for x in (start, numbers.values, numbers.indices, rank))
    layout = Layout(B * T, *places, [B] * T, spare=True)

    def weight(*shape: int) -> Tensor:
        x = torch.randn(shape, dtype=torch.float64) / max(1, shape[-1] / 8) ** 0.5
        return x.to(DEVICE, dtype).requires_grad_()

    tracker = TrackerWeights(
        weight(4 * d, 3 * D), weight(4 * d, d), weight(4 * d), weight(5 * D, d)
    )
    return StackProblem(
        *(weight(B * T, 2 * D), layout, weight(5 * D, 2 * D), weight(5 * D)),
        *(TreeLSTMCell(D), weight(3, D), tracker if d else None),
    )


def values(problem: StackProblem, impl: str, lengths: list[int]) -> dict[str, Tensor]:
    """Return the states, and the gradients of a sum over all of them with random weights."""
    layout = problem.layout
    order = torch.nn.functional.pad(random_merges(lengths), (0, 2), value=-1).to(DEVICE)
    tables = device_tables(*spans_of(order), layout, problem.tracker is not None)
    if problem.tracker:
        problem = problem._replace(missing=problem.missing.detach())
    assert (fused.why_not_kernels(problem, impl) is None) == (impl == "fused")
    result = follow(problem, tables, impl)
    nodes = layout.unpack_nodes(result.states[: layout.nodes])[layout.node_mask()]
    found = {"nodes": nodes, "missing": result.states[layout.nodes :][:3]}
    if result.tracked is not None:
        step = torch.arange(2 * layout.T - 1, device=DEVICE)
        inside = (step[:, None] < 2 * layout.lengths - 1).view(-1)
        found["tracked"] = result.tracked[inside]
    torch.manual_seed(5)
    total = sum((torch.randn(x.shape, dtype=torch.float64).to(x) * x).sum() for x in found.values())
    inputs = {"leaves": problem.leaves, "weight": problem.weight, "bias": problem.bias}
    inputs |= problem.tracker._asdict() if problem.tracker else {"absent": problem.missing}
    gradients = torch.autograd.grad(total, list(inputs.values()))
    found |= dict(zip(inputs, gradients, strict=True))
    return {name: x.detach().double() for name, x in found.items()}


@pytest.mark.parametrize(("D", "d"), [(3, 0), (3, 2), (2, 9), (2, 130), (130, 0), (130, 140)])
@pytest.mark.parametrize("lengths", [LENGTHS, [1], [2]], ids=str)
def test_kernels_equal_the_thin_stack(lengths: list[int], D: int, d: int) -> None:
    if max(D, d) > 100 and lengths != [2] and INTERPRETED:
        pytest.skip("too slow in the interpreter")
    exact = values(problem_of(lengths, D, d, torch.float64), "exact", lengths)
    dtype = torch.float64 if INTERPRETED else torch.float32
    found = values(problem_of(lengths, D, d, dtype), "fused", lengths)
    tolerance = 1e-10 if INTERPRETED else 1e-3
    for name, value in exact.items():
        scale = float(value.abs().max()) + 1
        assert float((found[name] - value).abs().max()) <= tolerance * scale, name


@pytest.mark.parametrize("lengths", [LENGTHS, [1], [2], [1, 1], [30, 14, 14]], ids=str)
def test_rows_of_given_trees(lengths: list[int]) -> None:
    layout = problem_of(lengths, 2, 0, torch.float64 if INTERPRETED else torch.float32).layout
    B, T = layout.B, layout.T
    order = torch.nn.functional.pad(random_merges(lengths), (0, 2)).to(DEVICE)
    inside = torch.arange(T - 1, device=DEVICE) < layout.own_lengths()[:, None] - 1
    order = torch.where(inside, order, 99)
    rows = fused.merge_rows(order, layout).view(3, T - 1, B)
    exists = layout.valid(T - 1, shorter=1).t()
    expected = torch.stack([torch.stack(level) for level in levels_of(order, layout)], dim=1)
    assert torch.equal(rows[:, exists], expected[:, exists])
    # other merges read rows of their sentence, two different ones, and write to no node
    assert bool((rows[:2] % B == torch.arange(B, device=DEVICE)).all())
    assert bool(((rows[:2] >= 0) & (rows[:2] < layout.nodes)).all())
    assert bool((rows[0] != rows[1]).all())
    assert bool((rows[2, ~exists] == layout.nodes + NO_PARENT).all())


def test_kernels_are_used_only_where_they_can_run() -> None:
    problem = problem_of(LENGTHS, 3, 2, torch.float64 if INTERPRETED else torch.float32)
    assert "missing nodes" in str(fused.why_not_kernels(problem, "fused"))
    problem = problem._replace(missing=problem.missing.detach())
    assert fused.why_not_kernels(problem, "fused") is None
    assert "exact" in str(fused.why_not_kernels(problem, "exact"))
    known = Layout(*(getattr(problem.layout, x) for x in ("cap", "start", "lengths")),
                   problem.layout.sentence, problem.layout.rank, [len(LENGTHS)] * 9)  # fmt: skip
    assert "all steps" in str(fused.why_not_kernels(problem._replace(layout=known), "fused"))
    # the interpreter runs kernels only by name
    assert (fused.why_not_kernels(problem, "auto") is None) == (not INTERPRETED)
    half = problem._replace(weight=problem.weight.half())
    assert fused.why_not_kernels(half, "auto") is not None


def test_auto_uses_kernels_where_they_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, tables = small()
    for reason in (None, "none here"):
        monkeypatch.setattr(fused, "why_not", lambda weight, by_name, reason=reason: reason)
        called: list[str] = []
        monkeypatch.setattr(fused, "follow", lambda *_: called.append("kernels"))  # noqa: B023
        follow(problem, tables, "auto")
        assert called == (["kernels"] if reason is None else [])


def small() -> tuple[StackProblem, StackTables]:
    problem = problem_of([3], 3, 0, torch.float64 if INTERPRETED else torch.float32)
    order = torch.tensor([[0, 0, -1, -1]], device=DEVICE)
    return problem, device_tables(*spans_of(order), problem.layout, False)


@pytest.mark.parametrize("spare", [0, 3])
@pytest.mark.parametrize("longest", [1, 2, 16, 17])
def test_spans(longest: int, spare: int) -> None:
    lengths = [longest, 1, *torch.randint(1, longest + 1, (6,)).tolist()]
    order = torch.nn.functional.pad(random_merges(lengths), (0, spare), value=-1)
    # on a CPU, step by step
    found, wanted = fused.spans_of(order.to(DEVICE)), spans_of(order)
    for one, other in zip(found, wanted, strict=True):
        assert torch.equal(one.cpu(), other)


@pytest.mark.parametrize("frozen", [False, True])
def test_second_derivatives_are_refused(frozen: bool) -> None:
    problem, tables = small()
    if frozen:
        weights = problem.weight.detach(), problem.bias.detach(), problem.missing.detach()
        problem = problem._replace(weight=weights[0], bias=weights[1], missing=weights[2])
    states = follow(problem, tables, "fused").states
    (gradient,) = torch.autograd.grad(states.sum(), problem.leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        gradient.sum().backward()


def test_kernels_asked_for_by_name_are_not_replaced() -> None:
    problem, tables = small()
    problem = problem._replace(weight=problem.weight.half())
    with pytest.raises(NotImplementedError, match=r"got torch.float16; use impl='auto' or 'exact'"):
        follow(problem, tables, "fused")


def test_gradients_can_arrive_transposed() -> None:
    problem, tables = small()
    found = []
    for impl in ("exact", "fused"):
        states = follow(problem, tables, impl).states
        factors = torch.arange(states.numel(), device=DEVICE).view(states.shape[::-1])
        total = (states.t() * factors).sum()
        found.append(torch.autograd.grad(total, [problem.leaves, problem.weight]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


def test_gradients_that_arrive_are_left_alone() -> None:
    problem, tables = small()
    states = follow(problem, tables, "fused").states
    given = torch.ones_like(states)
    torch.autograd.grad(states, problem.leaves, given)
    assert bool((given == 1).all())


@pytest.mark.parametrize("lengths", [LENGTHS, [1], [2]], ids=str)
def test_a_machine_of_kernels_draws_the_same_trees(
    lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # several programs
    monkeypatch.setattr(fused, "BS", 4)
    dtype = torch.float64 if INTERPRETED else torch.float32
    problem = problem_of(lengths, 3, 0, dtype)
    policy = torch.randn(9, 2, dtype=torch.float64).to(DEVICE, dtype)
    keys = torch.arange(2 * len(lengths), device=DEVICE).view(-1, 2) * 7919

    def scores(view: Tensor, tracked: Tensor | None) -> Tensor:
        assert tracked is None
        return view @ policy

    def run(make: type[machine.Machine], keys: Tensor | None) -> machine.StackRun:
        choose = machine.greedy(scores)
        if keys is not None:
            choose = machine.sampled(scores, keys, problem)
        with torch.no_grad():
            return machine.run(problem, choose, make)

    assert fused.why_no_machine(problem, "fused") is None
    layout, found = problem.layout, list[Tensor]()
    for noise in (None, keys, keys + 1):
        plain, kernels = (run(make, noise) for make in (machine.Machine, fused.FusedMachine))
        assert torch.equal(plain.order, kernels.order)
        made = (layout.unpack_nodes(x.result.states[: layout.nodes]) for x in (plain, kernels))
        wanted, own = (x[layout.node_mask()] for x in made)
        torch.testing.assert_close(own, wanted, atol=1e-4, rtol=1e-4)
        found.append(plain.order)
    if len(lengths) > 1:
        # noise draws other trees
        assert not torch.equal(found[0], found[1])
        assert not torch.equal(found[1], found[2])


def test_a_machine_of_kernels_has_no_tracker() -> None:
    problem = problem_of([2], 3, 2, torch.float64 if INTERPRETED else torch.float32)
    assert "tracker" in str(fused.why_no_machine(problem, "fused"))
