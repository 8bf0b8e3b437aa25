"""Test the merge against results computed independently."""

import math

import numpy as np
import pytest
import torch

from gumbeltree import EncoderConfig, GumbelTreeEncoder
from gumbeltree.layout import Arrangement, Layout
from gumbeltree.nn.cells.treelstm import TreeLSTMCell
from gumbeltree.nn.estimators.st_gumbel import StraightThroughGumbel
from gumbeltree.ops.merge import IMPLEMENTATIONS, choose
from gumbeltree.ops.merge.problem import TreeProblem, TreeResult
from gumbeltree.states import Keep
from tests.models import IMPLS
from tests.oracle import follow, merge_orders, tree_lstm


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def build_tree(problem: TreeProblem, impl: str) -> TreeResult:
    return IMPLEMENTATIONS[impl].build_tree(problem)


def problem(
    states: list[tuple[float, float]], sample: bool = False, order: list[int] | None = None, **rest
) -> TreeProblem:
    """Return a sentence with D=1 and a cell with weights 0.1, 0.2, ... 1.0."""
    cell = TreeLSTMCell(1).double()
    with torch.no_grad():
        cell.weight.copy_(torch.arange(1, 11, dtype=torch.float64).view(5, 2) / 10)
        cell.bias.copy_(torch.tensor([0.0, -1.0, -0.5, 0.25, 0.5]))
    leaves = torch.tensor(states, dtype=torch.float64)
    return TreeProblem(
        leaves,
        Layout.of(Arrangement.of(np.array([len(states)]), len(states))),
        cell,
        query=torch.tensor([2.0], dtype=torch.float64),
        scale=1.0,
        estimator=StraightThroughGumbel(),
        temperature=1.0,
        sample=sample,
        order=None if order is None else torch.tensor([order]),
        **rest,
    )


def parent(left: tuple[float, float], right: tuple[float, float]) -> tuple[float, float]:
    """Return Eqs. 1-3 by hand for the cell of `problem`."""
    (h_l, c_l), (h_r, c_r) = left, right
    i = sigmoid(0.1 * h_l + 0.2 * h_r)
    f_l = sigmoid(0.3 * h_l + 0.4 * h_r - 1.0 + 1)
    f_r = sigmoid(0.5 * h_l + 0.6 * h_r - 0.5 + 1)
    g = math.tanh(0.7 * h_l + 0.8 * h_r + 0.25)
    o = sigmoid(0.9 * h_l + 1.0 * h_r + 0.5)
    c = f_l * c_l + f_r * c_r + i * g
    return o * math.tanh(c), c


A, B, C = (0.3, -0.2), (-0.5, 0.8), (0.9, 0.4)


@pytest.mark.parametrize("impl", IMPLS)
def test_three_words_by_hand(impl: str) -> None:
    ab, bc = parent(A, B), parent(B, C)
    assert bc[0] > ab[0], "the right pair must have the higher score"
    root = parent(A, bc)
    result = build_tree(problem([A, B, C], keep=Keep(True, True)), impl)
    assert result.order.tolist() == [[1, 0]]
    assert result.vector.item() == pytest.approx(root[0], abs=1e-14)
    assert result.nodes is not None
    assert result.nodes.h[0, :, 0].tolist() == pytest.approx([A[0], B[0], C[0], bc[0], root[0]])
    assert result.nodes.c[0, :, 0].tolist() == pytest.approx([A[1], B[1], C[1], bc[1], root[1]])
    assert result.scores is not None
    assert result.scores[0, 0].tolist() == pytest.approx([2 * ab[0], 2 * bc[0]])
    assert result.scores[0, 1].tolist() == pytest.approx([2 * root[0], -math.inf])


@pytest.mark.parametrize("impl", IMPLS)
def test_noise_applies_to_its_layer_and_position(impl: str) -> None:
    # the right pair has the higher score; noise at layer 0 and position 0 changes the choice
    for layer, position, order in [(0, 0, [0, 0]), (0, 1, [1, 0]), (1, 0, [1, 0]), (1, 1, [1, 0])]:
        noise = torch.zeros(1, 2, 2)
        noise[0, layer, position] = 5.0
        result = build_tree(problem([A, B, C], sample=True, noise=noise), impl)
        assert result.order.tolist() == [order]


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_straight_through_gradient_by_finite_differences(impl: str, temperature: float) -> None:
    """Check one-hot weights forward and the Jacobian of the softmax backward.

    dL/dy at the one-hot point comes from finite differences of the mixture of three words, then
    follow the Jacobian of the softmax and d score / d query = h.
    """
    noise = torch.tensor([[[0.4, -0.3], [0.1, 0.7]]], dtype=torch.float64)
    p = problem([A, B, C], sample=True, noise=noise)
    p = TreeProblem(**{**vars(p), "temperature": temperature, "query": p.query.requires_grad_()})
    build_tree(p, impl).vector.sum().backward()

    def mixture(y: tuple[float, float]) -> float:
        """Return h of the root for weights y of the first layer (Eqs. S1-S7)."""
        ab, bc = parent(A, B), parent(B, C)
        first = tuple((1 - y[0]) * a + y[0] * m for a, m in zip(A, ab, strict=True))
        total = y[0] + y[1]
        second = tuple(
            (1 - total) * b + y[0] * c + y[1] * m for b, c, m in zip(B, C, bc, strict=True)
        )
        return parent(first, second)[0]

    h = [parent(A, B)[0], parent(B, C)[0]]
    noisy = [2 * h[0] + 0.4, 2 * h[1] - 0.3]
    one_hot = (1.0, 0.0) if noisy[0] > noisy[1] else (0.0, 1.0)
    e = 1e-6
    dy = [
        (
            mixture((one_hot[0] + e * (i == 0), one_hot[1] + e * (i == 1)))
            - mixture((one_hot[0] - e * (i == 0), one_hot[1] - e * (i == 1)))
        )
        / (2 * e)
        for i in range(2)
    ]
    weight = [math.exp(s / temperature) for s in noisy]
    y = [w / sum(weight) for w in weight]
    mean = y[0] * dy[0] + y[1] * dy[1]
    ds = [y[i] * (dy[i] - mean) / temperature for i in range(2)]
    assert p.query.grad is not None
    assert p.query.grad.item() == pytest.approx(ds[0] * h[0] + ds[1] * h[1], rel=1e-7)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("words", [1, 2, 4, 5])
def test_every_order_of_short_sentences(impl: str, words: int) -> None:
    D = 3
    cell = TreeLSTMCell(D).double()
    torch.nn.init.normal_(cell.bias)
    query = torch.randn(D, dtype=torch.float64)
    h, c = torch.randn(2, words, D, dtype=torch.float64)
    orders = list(merge_orders(words))
    assert len(orders) == math.factorial(words - 1)
    batch = Layout.of(Arrangement.of(np.full(len(orders), words), words))
    repeat = torch.cat([h, c], dim=1).repeat_interleave(len(orders), 0)
    result: TreeResult = build_tree(
        TreeProblem(
            repeat,
            batch,
            cell,
            query,
            1.0,
            StraightThroughGumbel(),
            1.0,
            False,
            order=torch.tensor(orders).view(len(orders), words - 1),
        ),
        impl,
    )
    leaves = list(zip(h, c, strict=True))
    expected = [follow(leaves, order, cell.weight, cell.bias, query)[0] for order in orders]
    torch.testing.assert_close(result.vector, torch.stack(expected), rtol=0, atol=1e-13)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("temperature", [0.2, 7.0])
def test_trees_are_sampled_with_their_probabilities(impl: str, temperature: float) -> None:
    words, D, draws = 4, 3, 30_000
    encoder = GumbelTreeEncoder(
        EncoderConfig(D, D, leaf="affine", impl=impl, temperature=temperature)
    ).double()
    torch.nn.init.normal_(encoder.query, std=2.0)
    embedded = torch.randn(words, D, dtype=torch.float64)
    with torch.no_grad():
        h, c = (embedded @ encoder.leaf.weight.T + encoder.leaf.bias).chunk(2, dim=1)
        leaves = list(zip(h, c, strict=True))
        orders = list(merge_orders(words))
        cell = encoder.cell
        probability = [
            follow(leaves, order, cell.weight, cell.bias, encoder.query)[1] for order in orders
        ]
        assert sum(probability) == pytest.approx(1)
        assert max(probability) < 0.9, "the test needs several likely trees"
        batch = embedded.expand(draws, words, D)
        generator = torch.Generator().manual_seed(1)
        lengths = torch.full((draws,), words)
        drawn = encoder(batch, lengths, sample=True, generator=generator).order
    # independently of the temperature
    for order, p in zip(orders, probability, strict=True):
        share = (drawn == torch.tensor(order)).all(1).double().mean().item()
        assert abs(share - p) < 4 * math.sqrt(p * (1 - p) / draws) + 1e-9


@pytest.mark.parametrize("impl", IMPLS)
def test_greedy_choice_has_no_gradient(impl: str) -> None:
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4, impl=impl)).eval()
    encoder(torch.randn(3, 6, 3), torch.tensor([6, 2, 4])).vector.sum().backward()
    assert encoder.query.grad is None or not encoder.query.grad.any()
    assert encoder.cell.weight.grad.abs().max() > 0


def test_soft_estimator_by_finite_differences() -> None:
    encoder = GumbelTreeEncoder(EncoderConfig(2, 3, leaf="lstm", estimator="soft")).double()
    torch.nn.init.normal_(encoder.query)
    lengths, noise = torch.tensor([4, 2, 1]), torch.randn(3, 3, 3)
    words = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)

    def vector(words: torch.Tensor, query: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        parameters = {"query": query, "cell.weight": weight}
        encoding = torch.func.functional_call(
            encoder, parameters, (words, lengths), {"noise": noise, "sample": True}
        )
        return encoding.vector

    assert torch.autograd.gradcheck(vector, (words, encoder.query, encoder.cell.weight))


def test_soft_weights_approach_one_hot_at_low_temperature() -> None:
    config = EncoderConfig(3, 4, estimator="soft")
    encoder = GumbelTreeEncoder(config).double()
    torch.nn.init.normal_(encoder.query)
    words, lengths = torch.randn(4, 7, 3, dtype=torch.float64), torch.tensor([7, 5, 2, 1])
    noise = torch.randn(4, 6, 6)
    hard = GumbelTreeEncoder(EncoderConfig(3, 4)).double()
    hard.load_state_dict(encoder.state_dict())
    target = hard(words, lengths, noise=noise).vector
    gaps = []
    for encoder.temperature in (1.0, 0.1, 0.001):
        gaps.append((encoder(words, lengths, noise=noise).vector - target).abs().max().item())
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-6


def test_choice_of_an_implementation() -> None:
    cell, st = TreeLSTMCell(2), StraightThroughGumbel()
    name, reason = choose("auto", cell, st, True)
    assert name == "exact"
    assert "not 'fused'" in reason
    assert "cpu" in reason
    assert choose("reference", cell, st, True).name == "reference"
    soft = GumbelTreeEncoder(EncoderConfig(2, 2, estimator="soft"))
    name, reason = soft.explain(sample=True)
    assert name == "reference"
    assert "not 'exact'" in reason
    assert "the estimator SoftGumbel mixes candidates" in reason
    assert soft.explain(sample=False).name == "exact"
    with pytest.raises(NotImplementedError, match=r"impl='exact'.*mixes"):
        choose("exact", cell, soft.estimator, True)
    with pytest.raises(ValueError, match=r"unknown implementation 'exat'.*Did you mean 'exact'"):
        choose("exat", cell, st, True)


def test_oracle_equals_the_cell_by_hand() -> None:
    p = problem([A, B, C])
    left, right = ([torch.tensor([x], dtype=torch.float64) for x in state] for state in (A, B))
    h, c = tree_lstm(p.cell.weight, p.cell.bias, tuple(left), tuple(right))
    assert (h.item(), c.item()) == pytest.approx(parent(A, B))
