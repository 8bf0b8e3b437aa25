"""Test beams: a plain beam search, compositions, duplicates, noise, models."""

import dataclasses
import itertools

import pytest
import torch
from torch import Tensor

import gumbeltree
from gumbeltree.config import BeamTreeConfig
from gumbeltree.layout import Sentences
from gumbeltree.model import SentenceModel
from gumbeltree.nn.encoders.beam_tree import BeamTreeEncoder
from gumbeltree.ops.merge.beam_search import search
from gumbeltree.states import NodeState
from gumbeltree.tree import Tree
from tests.models import tiny_config, tiny_model

LENGTHS = [9, 1, 2, 6, 3]


def made(**settings: object) -> BeamTreeEncoder:
    encoder = BeamTreeEncoder(BeamTreeConfig(3, 4, **settings)).double()
    for p in encoder.parameters():
        torch.nn.init.normal_(p)
    return encoder


def plain_beams(e: BeamTreeEncoder, words: Tensor) -> list[tuple[Tensor, list, list[int]]]:
    """Return log-probability, nodes and merges of the beams of one sentence `[T, E]`."""
    k = e.config.beams
    sentence = Sentences.padded(words[None], torch.tensor([len(words)]))
    h, c = e.leaf(sentence.words, sentence.layout).chunk(2, dim=-1)
    if e.config.cell.kind == "gated":
        c = h
    nodes = [(NodeState(h[i], c[i]), str(i)) for i in range(len(words))]
    beams: list[tuple[Tensor, list, list[int]]] = [(h.new_zeros(()), nodes, [])]
    for _ in range(len(words) - 1):
        found = []
        for total, nodes, order in beams:
            new = [(e.cell(a, b), f"({x} {y})") for (a, x), (b, y) in itertools.pairwise(nodes)]
            logs = torch.stack([e.scale * (p.h @ e.query) for p, _ in new]).log_softmax(0)
            found += [
                (total + logs[i], [*nodes[:i], new[i], *nodes[i + 2 :]], [*order, i])
                for i in logs.topk(min(k, len(new))).indices.tolist()
            ]
        found.sort(key=lambda beam: -beam[0].item())
        if e.config.distinct:
            best = {}
            for beam in found:
                best.setdefault(tuple(name for _, name in beam[1]), beam)
            found = list(best.values())
        beams = found[:k]
    return beams


def plain_vector(beams: list[tuple[Tensor, list, list[int]]]) -> Tensor:
    weights = torch.stack([total for total, _, _ in beams]).softmax(0)
    roots = torch.stack([nodes[0][0].h for _, nodes, _ in beams])
    return weights @ roots


@pytest.mark.parametrize("cell", [{"cell": "treelstm"}, {"cell": "gated", "leaf": "norm"}], ids=str)
@pytest.mark.parametrize("distinct", [True, False])
@pytest.mark.parametrize("beams", [1, 3, 5])
def test_vectors_trees_and_gradients_equal_a_plain_beam_search(cell, distinct, beams):
    torch.manual_seed(1)
    e = made(beams=beams, distinct=distinct, **cell)
    x = torch.randn(5, 9, 3, dtype=torch.float64)
    out, weight = e(x, torch.tensor(LENGTHS)), torch.randn(5, 4, dtype=torch.float64)
    found = [plain_beams(e, x[i, :n]) for i, n in enumerate(LENGTHS)]
    wanted = torch.stack([plain_vector(beams) for beams in found])
    torch.testing.assert_close(out.vector, wanted, rtol=1e-10, atol=1e-11)
    for order, beams_, n in zip(out.order.tolist(), found, LENGTHS, strict=True):
        assert order == [*beams_[0][2], *[-1] * (9 - n)]
    gradients = [
        torch.autograd.grad((vector * weight).sum(), list(e.parameters()), materialize_grads=True)
        for vector in (out.vector, wanted)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)


def test_one_beam_is_the_greedy_tree_without_a_gradient_of_the_scores():
    e = made(beams=1)
    x, lengths = torch.randn(5, 9, 3, dtype=torch.float64), torch.tensor(LENGTHS)
    out = e(x, lengths)
    greedy = gumbeltree.GumbelTreeEncoder(gumbeltree.EncoderConfig(3, 4)).double()
    greedy.load_state_dict(e.state_dict())
    expected = greedy(x, lengths, sample=False)
    assert torch.equal(out.order, expected.order)
    torch.testing.assert_close(out.vector, expected.vector)
    out.vector.sum().backward()
    assert e.query.grad is None or e.query.grad.abs().max() < 1e-12


@pytest.mark.parametrize("T", [2, 3, 12])
@pytest.mark.parametrize("k", [1, 5])
def test_compositions_grow_linearly(T, k):
    e, count = made(beams=k), 0

    def cell(left, right):
        nonlocal count
        count += left.h.shape[1]
        return e.cell(left, right)

    leaves = NodeState(*torch.randn(2, 3, T, 4, dtype=torch.float64))
    search(leaves, torch.full((3,), T), cell, e.query, k)
    assert count == T - 1 + 2 * k * (T - 2)


def test_distinct_beams_are_different_trees():
    torch.manual_seed(0)
    leaves, lengths = (
        NodeState(*torch.randn(2, 8, 12, 4, dtype=torch.float64)),
        torch.full((8,), 12),
    )
    shares = {}
    for distinct in (True, False):
        e = made(beams=5)
        with torch.no_grad():
            # nearly equal scores: many orders of the same tree are equally good
            e.query.mul_(1e-3)
        found = search(leaves, lengths, e.cell, e.query, 5, distinct=distinct)
        assert (found.log_prob[:, :-1] >= found.log_prob[:, 1:]).all()
        trees = [
            {Tree("a b c d e f g h i j k l", order) for order in beams.tolist()}
            for beams in found.order
        ]
        shares[distinct] = sum(map(len, trees)) / 40
    assert shares[True] == 1
    assert shares[False] < 0.8


def test_fewer_trees_than_beams():
    e = made(beams=5)
    leaves = NodeState(*torch.randn(2, 2, 3, 4, dtype=torch.float64))
    found = search(leaves, torch.tensor([3, 2]), e.cell, e.query, 5)
    assert (found.log_prob > -torch.inf).sum(1).tolist() == [2, 1]
    assert found.log_prob.exp().sum(1).tolist() == pytest.approx([1, 1])
    assert found.order[0, :2].sort(0).values.tolist() == [[0, 0], [1, 0]]


def test_stochastic_beams_depend_on_the_noise():
    torch.manual_seed(0)
    e, x = made(beams=3, stochastic=True), torch.randn(1, 20, 3, dtype=torch.float64)
    lengths = torch.tensor([20])
    drawn = {
        tuple(e(x, lengths, generator=torch.Generator().manual_seed(s)).order[0].tolist())
        for s in range(5)
    }
    assert len(drawn) > 1
    again = [e(x, lengths, generator=torch.Generator().manual_seed(1)).vector for _ in range(2)]
    assert torch.equal(*again)
    assert torch.equal(e.eval()(x, lengths).order, e(x, lengths).order)


def test_given_trees_are_followed():
    e, x = made(), torch.randn(1, 4, 3, dtype=torch.float64)
    order = torch.tensor([[2, 1, 0]])
    assert torch.equal(e(x, torch.tensor([4]), order=order).order, order)


def test_details_describe_the_best_tree():
    e, x = made(beams=3), torch.randn(5, 9, 3, dtype=torch.float64)
    out = e(x, torch.tensor(LENGTHS), details=True)
    alone = e(x, torch.tensor(LENGTHS), order=out.order.clamp(min=0), details=True)
    torch.testing.assert_close(out.nodes.h, alone.nodes.h)
    torch.testing.assert_close(out.scores, alone.scores)


def test_rejects_less_than_one_beam():
    with pytest.raises(ValueError, match="`beams` must be at least 1, got 0"):
        BeamTreeConfig(3, 4, beams=0)


def test_model_is_saved_and_needs_torch(tmp_path):
    config = dataclasses.replace(tiny_config("single"), encoder=BeamTreeConfig(5, 6, beams=3))
    model = SentenceModel(config, tiny_model("single").tokenizer).eval()
    gumbeltree.save(model, tmp_path / "model", {})
    loaded = gumbeltree.load(tmp_path / "model")
    assert isinstance(loaded.encoder, BeamTreeEncoder)
    assert loaded.encoder.config.beams == 3
    texts = ["the dog sleeps all night .", "one"]
    assert loaded.predict(texts) == model.predict(texts)
    with pytest.raises(Exception, match="beam_tree"):
        gumbeltree.load(tmp_path / "model", runtime="numpy")
