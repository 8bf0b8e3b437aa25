"""Test beams: a plain beam search, compositions, duplicates, noise, models."""

import dataclasses
import itertools
import math

import pytest
import torch
from torch import Tensor

import gumbeltree
from gumbeltree.config import BeamTreeConfig
from gumbeltree.encoded import EncoderTraits
from gumbeltree.layout import Sentences
from gumbeltree.model import SentenceModel
from gumbeltree.nn.encoders.beam_tree import BeamTreeEncoder
from gumbeltree.nn.encoders.tree_encoder import of_choices
from gumbeltree.noise import new_keys
from gumbeltree.ops.merge.beams import search
from gumbeltree.ops.merge.beams.forward import BeamStates, forward
from gumbeltree.ops.merge.dropout import parent_codes, word_codes
from gumbeltree.parts import HEADS
from gumbeltree.states import Draw, Encoding, Keep, NodeState
from gumbeltree.tree import Tree
from tests.models import TEXTS, tiny_config, tiny_model

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")
LENGTHS = [9, 1, 2, 6, 3]


def made(**settings: object) -> BeamTreeEncoder:
    encoder = BeamTreeEncoder(BeamTreeConfig(3, 4, **settings)).double()
    for p in encoder.parameters():
        torch.nn.init.normal_(p)
    return encoder


def plain_beams(
    e: BeamTreeEncoder, words: Tensor, keys: Tensor | None = None
) -> list[tuple[Tensor, list, list[int]]]:
    """Return log-probability, nodes and merges of the beams of one sentence `[T, E]`."""
    k = e.config.beams
    codes = {}
    if keys is not None:
        codes = {str(i): x for i, x in enumerate(word_codes(len(words), keys[None])[0])}

    def parent(left: tuple[NodeState, str], right: tuple[NodeState, str]) -> tuple[NodeState, str]:
        (a, x), (b, y) = left, right
        name = f"({x} {y})"
        if not codes:
            return e.cell(a, b), name
        codes[name] = parent_codes(codes[x], codes[y])
        return e.cell(a, b, codes[name]), name

    sentence = Sentences.padded(words[None], torch.tensor([len(words)]))
    h, c = e.leaf(sentence.words, sentence.layout).chunk(2, dim=-1)
    if e.config.cell.kind == "gated":
        c = h
    nodes = [(NodeState(h[i], c[i]), str(i)) for i in range(len(words))]
    beams: list[tuple[Tensor, list, list[int]]] = [(h.new_zeros(()), nodes, [])]
    for _ in range(len(words) - 1):
        found = []
        for total, nodes, order in beams:
            new = [parent(*pair) for pair in itertools.pairwise(nodes)]
            if e.scorer is None:
                scores = [e.scale * (p.h @ e.query) for p, _ in new]
            else:
                scores = [e.scorer(a.h, b.h) for (a, _), (b, _) in itertools.pairwise(nodes)]
            logs = torch.stack(scores).log_softmax(0)
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


@pytest.mark.parametrize(
    "cell",
    [
        {"cell": "treelstm"},
        {"cell": "gated", "leaf": "norm"},
        {"cell": {"kind": "gated", "dropout": 0.3}, "leaf": "norm"},
        {"cell": "treelstm", "score": "pair"},
        {"cell": "gated", "leaf": "norm", "score": "cosine"},
        {"cell": {"kind": "gated", "dropout": 0.3}, "leaf": "norm", "score": "pair"},
    ],
    ids=str,
)
@pytest.mark.parametrize("distinct", [True, False])
@pytest.mark.parametrize(
    ("impl", "beams", "lengths"),
    [
        *[("exact", beams, [7, 1, 2, 5, 3]) for beams in (1, 3, 5)],
        pytest.param("fused", 3, [5, 1, 2, 4], marks=interpreted),
    ],
    ids=["exact-1", "exact-3", "exact-5", "fused-3"],
)
def test_vectors_trees_and_gradients_equal_a_plain_beam_search(
    impl, beams, lengths, cell, distinct
):
    torch.manual_seed(1)
    e = made(beams=beams, distinct=distinct, impl=impl, **cell)
    B, T = len(lengths), lengths[0]
    x, weight = torch.randn(B, T, 3).double(), torch.randn(B, 4).double()
    keys = [None] * B
    if not isinstance(cell["cell"], str):
        keys = new_keys(B)
        e.dropout_keys = lambda layout: keys
    out = e(x, torch.tensor(lengths))
    found = [plain_beams(e, x[i, :n], keys[i]) for i, n in enumerate(lengths)]
    wanted = torch.stack([plain_vector(beams) for beams in found])
    torch.testing.assert_close(out.vector, wanted, rtol=1e-10, atol=1e-11)
    for order, beams_, n in zip(out.order.tolist(), found, lengths, strict=True):
        assert order == [*beams_[0][2], *[-1] * (T - n)]
    gradients = [
        torch.autograd.grad((vector * weight).sum(), list(e.parameters()), materialize_grads=True)
        for vector in (out.vector, wanted)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-9)


@interpreted
@pytest.mark.parametrize(("T", "rate"), [(1, 0.0), (2, 0.0), (4, 0.0), (7, 0.0), (6, 0.3)])
def test_kernels_equal_torch_operations_for_few_words(T, rate):
    torch.manual_seed(T)
    e = made(beams=5, cell={"kind": "gated", "dropout": rate}, leaf="norm")
    leaves = torch.randn(2, T, 4).double().repeat(1, 1, 2).requires_grad_()
    lengths = torch.tensor([T, max(1, T - 2)])
    results = []
    for impl in ("exact", "fused"):
        keys = torch.tensor([[3, 4], [5, 6]]) if rate else None
        found = search(leaves, lengths, e.cell, e.query, 5, impl=impl, dropout=keys)
        weights = found.log_prob.softmax(-1)
        loss = (weights[..., None] * found.vector).sum(1).square().sum()
        results.append((found, *torch.autograd.grad(loss, leaves)))
    (ours, gradient), (theirs, expected) = results
    there = theirs.log_prob > -torch.inf
    assert torch.equal(ours.order[there], theirs.order[there])
    torch.testing.assert_close(ours.log_prob, theirs.log_prob, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-12)


def test_kernels_that_cannot_run_are_named():
    e = made(beams=2, stochastic=True, impl="fused")
    with pytest.raises(NotImplementedError, match="do not draw beams at random; use impl='auto'"):
        e(torch.randn(1, 4, 3).double(), torch.tensor([4]))


@pytest.mark.gpu
@pytest.mark.parametrize(("distinct", "rate"), [(False, 0.0), (True, 0.0), (True, 0.1)])
@pytest.mark.parametrize("score", ["dot", "pair"])
def test_gpu_kernels_equal_torch_operations(distinct, rate, score):
    lengths = torch.tensor([40, 1, 17, 33, 2, 5, 40, 28], device="cuda")
    x, weight = torch.randn(8, 40, 64, device="cuda"), torch.randn(8, 64, device="cuda")
    cell = {"kind": "gated", "dropout": rate}
    results = []
    for impl in ("exact", "fused"):
        torch.manual_seed(0)
        e = BeamTreeEncoder(
            BeamTreeConfig(
                64, 64, cell=cell, leaf="norm", distinct=distinct, impl=impl, score=score
            )
        ).cuda()
        torch.nn.init.normal_(e.query if score == "dot" else e.scorer.out, std=0.3)
        out = e(x, lengths, generator=torch.Generator("cuda").manual_seed(5))
        (out.vector * weight).sum().backward()
        results.append((out, {name: p.grad for name, p in e.named_parameters()}))
    (one, expected), (other, found) = results
    assert torch.equal(one.order, other.order)
    torch.testing.assert_close(one.vector, other.vector, rtol=1e-4, atol=1e-5)
    for name, gradient in expected.items():
        assert float((found[name] - gradient).norm() / gradient.norm()) < 1e-4, name


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
@pytest.mark.parametrize("score", ["dot", "pair"])
def test_compositions_grow_linearly(T, k, score):
    e, count = made(beams=k, score=score), 0
    activate = e.cell.activate

    def counting(gates, left, right):
        nonlocal count
        count += len(gates)
        return activate(gates, left, right)

    e.cell.activate = counting
    leaves, lengths = torch.randn(3, T, 8, dtype=torch.float64), torch.full((3,), T)
    search(leaves, lengths, e.cell, e.scoring_query, k, scorer=e.scorer)
    # a scorer of the children composes merged pairs alone
    assert count == 3 * (T - 1 + 2 * k * (T - 2) if score == "dot" else k * (T - 1))


@pytest.mark.parametrize("lengths", [[9, 1, 2, 6, 3], [2, 1], [1, 1]])
def test_sentences_do_not_share_rows(lengths):
    # kernels add gradients to the rows of all sentences at the same time
    e, k, B = made(beams=3, score="pair"), 3, len(lengths)
    leaves = torch.randn(B, max(lengths), 8, dtype=torch.float64)
    cell = e.cell
    given = leaves, cell.weight, cell.gate_bias(), e.scoring_query, cell, k
    states = BeamStates(*given, record=True, scorer=e.scorer)
    forward(states, torch.tensor(lengths), k, None, True)
    assert len(states.merged) == k * (max(lengths) - 1) * B
    for rows in (states.merged, torch.arange(max(lengths) * B, len(states.rows))):
        for child in (states.left[rows], states.right[rows]):
            assert torch.equal(child % B, rows % B)


def test_distinct_beams_are_different_trees():
    torch.manual_seed(0)
    leaves, lengths = torch.randn(8, 12, 8, dtype=torch.float64), torch.full((8,), 12)
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
    leaves = torch.randn(2, 3, 8, dtype=torch.float64)
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


@pytest.mark.parametrize("distinct", [True, False])
def test_encodings_have_the_beams(distinct):
    torch.manual_seed(2)
    e, x = made(beams=3, distinct=distinct), torch.randn(5, 9, 3, dtype=torch.float64)
    found = [plain_beams(e, x[i, :n]) for i, n in enumerate(LENGTHS)]
    for details in (False, True):
        order, log_prob = e(x, torch.tensor(LENGTHS), details=details).beams
        assert order.shape == (5, 3, 8)
        for i, beams in enumerate(found):
            for j, (total, _, merges) in enumerate(beams):
                assert order[i, j].tolist() == [*merges, *[-1] * (9 - LENGTHS[i])]
                assert log_prob[i, j].item() == pytest.approx(total.item(), abs=1e-10)
            assert (log_prob[i, len(beams) :] == -torch.inf).all()


@pytest.mark.parametrize("kind", ["gumbel_tree", "parser_composer", "beam_tree"])
def test_learned_trees_have_beams_on_request(kind):
    model = tiny_model(encoder=kind).double()
    sentences = Sentences.of([[4, 7, 2, 9, 5], [3, 1]])
    plain, asked = (model.encode_batch(sentences, Draw(), Keep(beams=k)) for k in (0, 2))
    assert (plain.beams is None) == (kind != "beam_tree")
    torch.testing.assert_close(asked.vector, plain.vector)
    assert asked.beams.order.shape == (2, 2, 4)
    # a tree has the log-probability of its merges
    parser = getattr(model.encoder, "parser", model.encoder)
    words = model.embed(sentences)
    for j in range(2):
        order = asked.beams.order[:, j].clamp(min=0)
        scores = parser.encode(words.with_order(order), Draw(), Keep(scores=True)).scores
        expected, _ = of_choices(scores, asked.beams.order[:, j])
        there = asked.beams.log_prob[:, j] > -torch.inf
        torch.testing.assert_close(asked.beams.log_prob[there, j], expected[there])
    assert there.tolist() == [True, False]


def test_beams_on_request_are_distinct():
    model = tiny_model(encoder="beam_tree", beams=5, distinct=False).double()
    with torch.no_grad():
        model.encoder.query.mul_(1e-3)
    sentences = Sentences.of([[4, 7, 2, 9, 5, 1, 3]])
    own, asked = (model.encode_batch(sentences, Draw(), Keep(beams=k)).beams for k in (0, 5))
    shapes = [{Tree("a b c d e f g", row) for row in x.order[0].tolist()} for x in (own, asked)]
    assert len(shapes[0]) < len(shapes[1]) == 5


def test_encodings_with_beams_are_split_and_joined():
    e, x = made(beams=3), torch.randn(4, 9, 3, dtype=torch.float64)
    lengths = torch.tensor([9, 4, 7, 1])
    whole = e(x, lengths)
    halves = whole.chunk(2)
    assert torch.equal(halves[1].beams.order, whole.beams.order[2:])
    short, long = e(x[[1, 3], :4], lengths[[1, 3]]), e(x[[0, 2]], lengths[[0, 2]])
    joined = Encoding.joined([short, long]).map(lambda tensor: tensor[[2, 0, 3, 1]])
    there = whole.beams.log_prob > -torch.inf
    torch.testing.assert_close(joined.beams.log_prob, whole.beams.log_prob)
    assert torch.equal(joined.beams.order[there], whole.beams.order[there])


def test_given_noise_draws_one_tree():
    e, x = made(beams=3), torch.randn(1, 4, 3, dtype=torch.float64)
    order = torch.tensor([[2, 1, 0]])
    noise = torch.zeros(1, 3, 3, dtype=torch.float64)
    noise[0, range(3), order[0]] = 1e6
    out = e.train()(x, torch.tensor([4]), noise=noise)
    assert torch.equal(out.order, order)
    torch.testing.assert_close(out.vector, e(x, torch.tensor([4]), order=order).vector)


def test_fixed_trees_have_no_beams():
    model = tiny_model(trees="left")
    with pytest.raises(ValueError, match="'fixed_tree' has no beams: it does not score merges"):
        model.encode_batch(Sentences.of([[1, 2, 3]]), Draw(), Keep(beams=2))


@pytest.mark.parametrize("k", [-1, 1.5, 101])
@pytest.mark.parametrize("kind", ["gumbel_tree", "beam_tree"])
def test_rejects_impossible_numbers_of_trees(kind, k):
    model = tiny_model(encoder=kind)
    with pytest.raises(ValueError, match=rf"`beams` must be a whole number in 1..100, got {k}"):
        model.encode_batch(Sentences.of([[1, 2, 3]]), Draw(), Keep(beams=k))


def test_rejects_less_than_one_beam():
    with pytest.raises(ValueError, match="`beams` must be at least 1, got 0"):
        BeamTreeConfig(3, 4, beams=0)


def test_model_is_saved_and_loaded(tmp_path):
    config = dataclasses.replace(tiny_config("single"), encoder=BeamTreeConfig(5, 6, beams=3))
    model = SentenceModel(config, tiny_model("single").tokenizer).eval()
    gumbeltree.save(model, tmp_path / "model", {})
    loaded = gumbeltree.load(tmp_path / "model")
    assert isinstance(loaded.encoder, BeamTreeEncoder)
    assert loaded.encoder.config.beams == 3
    texts = ["the dog sleeps all night .", "one"]
    assert loaded.predict(texts) == model.predict(texts)


@pytest.mark.parametrize("kind", ["gumbel_tree", "parser_composer", "beam_tree"])
@pytest.mark.parametrize("runtime", ["torch", "numpy"])
def test_most_probable_trees_of_texts(tmp_path, kind, runtime):
    gumbeltree.save(tiny_model(encoder=kind).double(), tmp_path / "model", {})
    model = gumbeltree.load(tmp_path / "model", runtime=runtime)
    found = model.best_trees(TEXTS, beams=4)
    assert [len(best) for best in found] == [1, 4, 2, 1, 4, 1]
    for text, best in zip(TEXTS, found, strict=True):
        assert {tree.words for tree, _, _ in best} == {tuple(text.split())}
        assert len({tree for tree, _, _ in best}) == len(best)
        assert sum(p for _, p, _ in best) == pytest.approx(1)
        logs = [log_prob for _, _, log_prob in best]
        assert logs == sorted(logs, reverse=True)
        assert best[0].probability == pytest.approx(math.exp(logs[0]) / sum(map(math.exp, logs)))
    # of three words there are two trees, and the scores of the first layer choose one
    assert sum(math.exp(log_prob) for _, _, log_prob in found[2]) == pytest.approx(1)
    # batches do not matter
    for best, again in zip(found, model.best_trees(TEXTS, 4, batch_size=1), strict=True):
        assert [x.tree for x in best] == [x.tree for x in again]
        assert [x.log_prob for x in best] == pytest.approx([x.log_prob for x in again])
    assert model.best_trees([]) == []


def test_encoders_without_a_beam_search_are_named():
    class Own(gumbeltree.GumbelTreeEncoder):
        def encode(self, sentences, draw, keep):
            return super().encode(sentences, draw, Keep(keep.nodes, keep.scores))

    model = tiny_model()
    model.encoder = Own(model.config.encoder)
    with pytest.raises(ValueError, match=r"Own\.encode ignores `keep\.beams`"):
        model.best_trees(TEXTS)
    Own.why_no_beams = EncoderTraits.why_no_beams
    with pytest.raises(ValueError, match="it does not support beam search; use a model"):
        model.best_trees(TEXTS)


@pytest.mark.parametrize("beams", [0, 101, 2.0, "3"])
def test_rejects_a_wrong_number_of_trees(beams):
    with pytest.raises(ValueError, match=r"`beams` must be a whole number in 1\.\.100, got"):
        tiny_model().best_trees(TEXTS, beams=beams)
    with pytest.raises(ValueError, match="`batch_size` must be a positive integer, got 0"):
        tiny_model().best_trees(TEXTS, batch_size=0)


@pytest.mark.parametrize("sentences", [1, 2])
def test_training_can_average_the_answers_of_all_trees(sentences):
    torch.manual_seed(2)
    e = made(beams=3, mixture="answers").train()
    kind = "single" if sentences == 1 else "pair"
    sizes = {"hidden_dim": 5, "hidden_layers": 1, "batch_norm": False, "dropout": 0.0}
    config = dataclasses.replace(tiny_config(kind).head, **sizes)
    head = HEADS[kind](config, 4).double().train()
    lengths = [5, 1, 2, 4]
    x, target = torch.randn(4, 5, 3).double(), torch.tensor([0, 1, 1, 0])[: 4 // sentences]
    encoding = e(x, torch.tensor(lengths))
    ours = head.loss(head(*encoding.chunk(sentences)), target)

    # -log of the sum over trees, or over pairs of them, of p(trees) p(class | trees)
    found = [plain_beams(e, x[i, :n]) for i, n in enumerate(lengths)]
    share = 4 // sentences
    losses = []
    for i in range(share):
        likelihood = 0
        for choice in itertools.product(*found[i::share]):
            of_trees = math.prod(
                (total.exp() / sum(t.exp() for t, _, _ in beams))
                for (total, _, _), beams in zip(choice, found[i::share], strict=True)
            )
            vectors = [Encoding(nodes[0][0].h[None]) for _, nodes, _ in choice]
            likelihood = likelihood + of_trees * head(*vectors).softmax(-1)[0, target[i]]
        losses.append(-likelihood.log())
    wanted = torch.stack(losses)
    torch.testing.assert_close(ours, wanted, rtol=1e-10, atol=1e-11)
    weights = [*e.parameters(), *head.parameters()]
    gradients = [torch.autograd.grad(loss.sum(), weights) for loss in (ours, wanted)]
    for one, other in zip(*gradients, strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)

    # predictions classify the mean of the vectors
    assert e.eval()(x, torch.tensor(lengths)).alternatives is None


def test_only_classifiers_average_answers():
    with pytest.raises(ValueError, match="head 'single_number' does not average the answers"):
        tiny_model("single_number", encoder="beam_tree", mixture="answers")
    with pytest.raises(ValueError, match="`mixture` must be one of vectors, answers, got 'roots'"):
        BeamTreeConfig(3, 4, mixture="roots")
