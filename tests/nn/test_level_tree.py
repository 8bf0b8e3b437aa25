"""Test encoders of gold trees against plain recursions over one sentence at a time."""

import pytest
import torch
from torch import Tensor, sigmoid

from gumbeltree import Sentences
from gumbeltree.config import FixedTreeConfig, load_recipe
from gumbeltree.describe import count_parameters
from gumbeltree.nn.cells.treelstm import TreeLSTMCell
from gumbeltree.nn.encoders.level_tree import GoldTreeEncoder
from gumbeltree.ops.levels import compose_levels, levels_of
from gumbeltree.parts import ENCODERS
from gumbeltree.peers import DropoutConstituencyConfig, LevelTreeConfig, RNTNConfig
from gumbeltree.states import NodeState
from tests.models import tiny_model
from tests.nn.equations import check_company, check_same, encoder_of, random_merges, words_of

LENGTHS = [5, 1, 9, 2, 1, 9, 3]
KINDS = ["constituency", "constituency_dropout", "rntn"]
E, D = 3, 4


def make(kind: str, **settings: object) -> GoldTreeEncoder:
    width = D if kind == "rntn" else E
    return encoder_of(kind, embedding_dim=width, hidden_dim=D, **settings)


def constituency(w: dict[str, Tensor], x: Tensor | None, pair: list[NodeState]) -> NodeState:
    if x is not None:
        W, b = w["leaf.weight"], w["leaf.bias"]
        c = W[:D] @ x + b[:D]
        return NodeState(sigmoid(W[D:] @ x + b[D:]) * c.tanh(), c)
    left, right = pair

    def gate(number: int) -> Tensor:
        rows = slice(number * D, (number + 1) * D)
        of_left = w["cell.0.weight"][rows] @ left.h + w["cell.0.bias"][rows]
        return of_left + w["cell.1.weight"][rows] @ right.h + w["cell.1.bias"][rows]

    i, f_l, f_r, o, u = (gate(number) for number in range(5))
    c = sigmoid(i) * u.tanh() + sigmoid(f_l) * left.c + sigmoid(f_r) * right.c
    return NodeState(sigmoid(o) * c.tanh(), c)


def constituency_dropout(
    w: dict[str, Tensor], x: Tensor | None, pair: list[NodeState]
) -> NodeState:
    zero = torch.zeros(D, dtype=torch.float64)
    if x is not None:
        pair = [NodeState(zero, zero)] * 2
    left, right = pair
    weight = torch.cat([w["leaf.weight"], w["cell.weight"]], dim=1)
    word = torch.zeros(E, dtype=torch.float64) if x is None else x
    i, j, f_l, f_r, o = (weight @ torch.cat([word, left.h, right.h]) + w["cell.bias"]).split(D)
    c = left.c * sigmoid(f_l + 1) + right.c * sigmoid(f_r + 1) + sigmoid(i) * j.tanh()
    return NodeState(sigmoid(o) * c.tanh(), c)


def rntn(w: dict[str, Tensor], x: Tensor | None, pair: list[NodeState]) -> NodeState:
    if x is not None:
        return NodeState(x.tanh(), x.tanh())
    both = torch.cat([pair[0].h, pair[1].h])
    rows = [both @ w["tensor"][k] @ both for k in range(D)]
    h = (torch.stack(rows) + w["cell.weight"] @ both + w["cell.bias"]).tanh()
    return NodeState(h, h)


PLAIN = {
    "constituency": constituency,
    "constituency_dropout": constituency_dropout,
    "rntn": rntn,
}


def plain_nodes(
    kind: str, weights: dict[str, Tensor], words: Tensor, lengths: Tensor, order: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the roots `[B, D]` and h of all nodes `[B, 2T-1, D]`, node by node."""
    B, T = words.shape[:2]
    nodes: list[list[Tensor]] = [[torch.zeros(D).double()] * (2 * T - 1) for _ in range(B)]
    roots = []
    for b in range(B):
        opened = [PLAIN[kind](weights, words[b, i], []) for i in range(lengths[b])]
        nodes[b][: len(opened)] = [node.h for node in opened]
        for t in range(int(lengths[b]) - 1):
            place = int(order[b, t])
            node = PLAIN[kind](weights, None, opened[place : place + 2])
            opened[place : place + 2] = [node]
            nodes[b][T + t] = node.h
        roots.append(opened[0].h)
    return torch.stack(roots), torch.stack([torch.stack(row) for row in nodes])


@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_a_plain_recursion(kind: str) -> None:
    encoder = make(kind)
    words, lengths = words_of(LENGTHS, encoder.config.embedding_dim)
    words.requires_grad_()
    order = random_merges(LENGTHS)
    weights = dict(encoder.named_parameters())
    roots, nodes = plain_nodes(kind, weights, words, lengths, order)
    found = encoder(words, lengths, order=order, details=True)
    check_same([found.vector, found.nodes.h], [roots, nodes], {"words": words, **weights})
    assert torch.equal(found.order, order)
    assert torch.equal(found.mask, (nodes != 0).any(-1))


@pytest.mark.parametrize(("leaf", "cell"), [("lstm", "treelstm"), ("affine", "gated")])
def test_levels_agree_with_merges_one_by_one(leaf: str, cell: str) -> None:
    encoder = make("level_tree", leaf=leaf, cell=cell)
    config = FixedTreeConfig(E, D, leaf, cell, trees="gold", impl="reference")
    steps = ENCODERS["fixed_tree"](config).double().eval()
    steps.leaf, steps.cell = encoder.leaf, encoder.cell
    words, lengths = words_of(LENGTHS, E)
    words.requires_grad_()
    found, wanted = (
        x(words, lengths, order=random_merges(LENGTHS), details=True) for x in (encoder, steps)
    )
    inputs = {"words": words, **dict(encoder.named_parameters())}
    check_same([found.vector, *found.nodes], [wanted.vector, *wanted.nodes], inputs)


def test_levels_are_heights() -> None:
    order = random_merges(LENGTHS)
    layout = Sentences.of([[0] * n for n in LENGTHS]).layout
    levels = levels_of(order, layout)
    height = dict.fromkeys(range(layout.N), 0)
    for number, level in enumerate(levels, start=1):
        for left, right, node in zip(*(x.tolist() for x in level), strict=True):
            # children come first, and one of them is on the level below
            assert max(height[left], height[right]) == number - 1
            height[node] = number
    assert len(height) == layout.nodes
    assert levels_of(order[:1, :0], Sentences.of([[0]]).layout) == []


@pytest.mark.parametrize("kind", [*KINDS, "level_tree"])
def test_neither_padding_nor_company_matters(kind: str) -> None:
    check_company(make(kind), LENGTHS, order=random_merges(LENGTHS))


@pytest.mark.parametrize("kind", KINDS)
def test_only_words_without_merges(kind: str) -> None:
    encoder = make(kind)
    words, lengths = words_of([1, 1], encoder.config.embedding_dim)
    found = encoder(words, lengths, order=torch.empty(2, 0, dtype=torch.int64), details=True)
    assert found.order.shape == (2, 0)
    torch.testing.assert_close(found.nodes.h[:, 0], found.vector)
    found.vector.sum().backward()


def test_rntn_without_a_tensor_is_a_plain_recursive_network() -> None:
    encoder = make("rntn")
    torch.nn.init.zeros_(encoder.tensor)
    words, lengths = words_of([2], D)
    found = encoder(words, lengths, order=torch.tensor([[0]])).vector[0]
    torch.testing.assert_close(found, encoder.cell(words[0].tanh().flatten()).tanh())


def test_initial_values_of_rntn() -> None:
    torch.manual_seed(0)
    encoder = ENCODERS["rntn"](RNTNConfig(25, 25))
    assert encoder.tensor.abs().max() <= 1 / 100
    assert encoder.tensor.std().item() == pytest.approx(1 / 100 / 3**0.5, rel=0.05)
    rest = encoder.cell.weight - torch.eye(25).repeat(1, 2)
    assert rest.abs().max() <= 0.1
    assert rest.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.05)
    assert not encoder.cell.bias.any()


def test_parents_of_the_dropout_cell_are_those_of_the_treelstm() -> None:
    encoder = make("constituency_dropout", dropout=0.0).train()
    cell = make("level_tree", leaf="affine").cell
    # i, f_l, f_r, g, o from i, j, f_l, f_r, o
    places = [0, 2, 3, 1, 4]
    with torch.no_grad():
        for name in ("weight", "bias"):
            parts = getattr(encoder.cell, name).chunk(5)
            getattr(cell, name).copy_(torch.cat([parts[i] for i in places]))
    states = torch.randn(4, 6, D, dtype=torch.float64)
    left, right = NodeState(*states[:2]), NodeState(*states[2:])
    torch.testing.assert_close(encoder.compose(left, right), cell(left, right))


def test_only_the_candidate_is_dropped() -> None:
    encoder = make("constituency_dropout", dropout=0.5).train()
    states = torch.randn(4, 2000, D, dtype=torch.float64)
    left, right = NodeState(*states[:2]), NodeState(*states[2:])
    i, j, f_l, f_r, o = encoder.cell(torch.cat([left.h, right.h], dim=-1)).chunk(5, dim=-1)
    kept = sigmoid(f_l + 1) * left.c + sigmoid(f_r + 1) * right.c
    torch.manual_seed(0)
    h, c = encoder.compose(left, right)
    factor = (c - kept) / (sigmoid(i) * j.tanh())
    dropped = factor.abs() < 1e-6
    torch.testing.assert_close(factor[~dropped], torch.full_like(factor[~dropped], 2.0))
    assert 0.45 < dropped.double().mean() < 0.55
    torch.testing.assert_close(h, sigmoid(o) * c.tanh())


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("constituency-sst5", 316_800 + 755),
        # the head has an output for neutral nodes
        ("constituency-sst2", 316_800 + 453),
        ("constituency-dropout-sst5", 1_353_005),
        ("rntn-sst5", 63_905),
    ],
)
def test_counts_of_the_published_models(name: str, total: int) -> None:
    assert count_parameters(load_recipe(name).model)["total"] == total


def test_rejects_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match=r"embedding_dim.*30.*hidden_dim.*25"):
        ENCODERS["rntn"](RNTNConfig(30, 25))
    with pytest.raises(ValueError, match=r"cell\.dropout.*0\.5.*fixed_tree"):
        ENCODERS["level_tree"](LevelTreeConfig(E, D, cell={"kind": "gated", "dropout": 0.5}))
    words, lengths = words_of(LENGTHS, E)
    with pytest.raises(ValueError, match="gold trees"):
        make("constituency")(words, lengths)


def test_gradients_of_frozen_weights_are_not_computed() -> None:
    encoder = make("constituency")
    encoder.cell[0].weight.requires_grad_(False)
    words, lengths = words_of(LENGTHS, E)
    encoder(words, lengths, order=random_merges(LENGTHS)).vector.sum().backward()
    assert encoder.cell[0].weight.grad is None
    assert encoder.cell[1].weight.grad.any()
    with torch.no_grad():
        assert not encoder(words, lengths, order=random_merges(LENGTHS)).vector.requires_grad


@pytest.mark.parametrize(("nodes", "slope"), [(4, 16), (2, 8)])
def test_gradients_of_weights_that_only_some_levels_use(nodes: int, slope: int) -> None:
    factor = torch.tensor(2.0, requires_grad=True)
    layout = Sentences.padded(torch.zeros(2, 4, 1), torch.tensor([4, 4])).layout
    levels = levels_of(torch.tensor([[0, 1, 0], [0, 1, 0]]), layout)
    assert [len(level.node) for level in levels] == [4, 2]

    def compose(left: NodeState, right: NodeState) -> NodeState:
        h = left.h + right.h
        return NodeState(h * factor if len(h) == nodes else h, left.c)

    leaves = NodeState(torch.ones(8, 1), torch.zeros(8, 0))
    compose_levels(compose, levels, leaves, [factor]).h.sum().backward()
    assert factor.grad == slope


def test_states_keep_their_precision_under_autocast() -> None:
    encoder = make("constituency").float()
    words, lengths = words_of(LENGTHS, E)
    with torch.autocast("cpu", torch.bfloat16):
        found = encoder(words.float(), lengths, order=random_merges(LENGTHS))
    assert found.vector.dtype == torch.float32
    found.vector.sum().backward()
    exact = encoder(words.float(), lengths, order=random_merges(LENGTHS)).vector
    torch.testing.assert_close(found.vector, exact, rtol=0.1, atol=0.05)


def test_dropout_changes_in_training_only() -> None:
    words, lengths = words_of(LENGTHS, E)
    encoder = ENCODERS["constituency_dropout"](DropoutConstituencyConfig(E, D)).double()
    order = random_merges(LENGTHS)
    vectors = [encoder(words, lengths, order=order).vector for _ in range(2)]
    assert not torch.equal(*vectors)
    encoder.eval()
    vectors = [encoder(words, lengths, order=order).vector for _ in range(2)]
    assert torch.equal(*vectors)


@pytest.mark.parametrize("kind", ["level_tree", "beam_tree"])
def test_own_cells_are_not_captured_unasked(kind):
    class Own(TreeLSTMCell):
        """Might read values back from the device."""

    model = tiny_model(encoder=kind)
    assert model.encoder.why_not_captured(sample=True) is None
    model.encoder.cell.__class__ = Own
    assert model.encoder.why_not_captured(sample=True) == "Own does not declare itself capturable"
