"""Test the CYK Tree-LSTM against a chart of plain loops, with its trees and inverse temperature."""

import os

import pytest
import torch
from torch import Tensor

import gumbeltree
from gumbeltree import Tree
from gumbeltree.analysis.figure import remarks
from gumbeltree.analysis.film import draw_film
from gumbeltree.analysis.trace import trace
from gumbeltree.card import model_card
from gumbeltree.describe import count_parameters
from gumbeltree.evaluation import evaluate, split_of
from gumbeltree.nn.encoders.cyk import CYKEncoder
from gumbeltree.ops import chart
from gumbeltree.states import Encoding
from gumbeltree.tasks.task import Example
from tests.models import TEXTS, tiny_config, tiny_model
from tests.nn.equations import check_company, check_same, encoder_of, words_of

D = 6
LENGTHS = [5, 1, 7, 2, 5, 1, 3]


def cyk(beta: float = 3.0, impl: str = "exact") -> CYKEncoder:
    if impl == "fused" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("on a CPU, kernels run in Triton's interpreter")
    encoder = encoder_of("cyk", std=1.0, impl=impl)
    encoder.beta.fill_(beta)
    return encoder


def leaf(e: CYKEncoder, x: Tensor) -> tuple[Tensor, Tensor]:
    p = e.leaf.weight @ x + e.cell.bias
    i, o, u = p[:D], p[3 * D : 4 * D], p[4 * D :]
    c = i.sigmoid() * u.tanh()
    return o.sigmoid() * c.tanh(), c


def composed(
    e: CYKEncoder, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    p = e.cell.weight @ torch.cat([left[0], right[0]]) + e.cell.bias
    i, f_l, f_r, o, u = p.split(D)
    c = (f_l + 1).sigmoid() * left[1] + (f_r + 1).sigmoid() * right[1] + i.sigmoid() * u.tanh()
    return o.sigmoid() * c.tanh(), c


def plain(e: CYKEncoder, words: Tensor) -> tuple[dict, dict]:
    """Return the states and the best splits of all spans (start, length) of one sentence."""
    states, splits = {}, {}
    T = len(words)
    for a in range(T):
        states[a, 1] = leaf(e, words[a])
    for n in range(2, T + 1):
        for a in range(T - n + 1):
            found = [composed(e, states[a, k], states[a + k, n - k]) for k in range(1, n)]
            scores = torch.stack(
                [e.query @ h / (e.query.norm() * h.norm()).clamp(min=1e-12) for h, _ in found]
            )
            weights = torch.softmax(e.beta * scores, dim=0)
            states[a, n] = tuple(
                sum(w * state[half] for w, state in zip(weights, found, strict=True))
                for half in (0, 1)
            )
            splits[a, n] = int(weights.argmax()) + 1
    return states, splits


def brackets(splits: dict, a: int, n: int) -> str:
    if n == 1:
        return str(a)
    k = splits[a, n]
    return f"( {brackets(splits, a, k)} {brackets(splits, a + k, n - k)} )"


@pytest.mark.parametrize("blocks", ["single", "large", "whole", "kernels"])
def test_batch_equals_plain_loops_with_all_gradients(monkeypatch, blocks):
    if blocks == "single":
        monkeypatch.setattr(chart, "BLOCK", 1)
    if blocks == "whole":
        # as on a GPU
        divided = chart._blocks
        monkeypatch.setattr(chart, "_blocks", lambda plan, n, _: divided(plan, n, True))
    e = cyk(impl="fused" if blocks == "kernels" else "exact")
    if blocks == "kernels":
        # they are all there is
        monkeypatch.delattr(chart, "_Candidates")
    words, lengths = words_of(LENGTHS)
    words.requires_grad_()
    encoding = e(words, lengths, details=True)
    nodes = torch.cat(encoding.nodes, dim=-1)
    wanted = torch.zeros_like(nodes)
    vectors = []
    for b, T in enumerate(LENGTHS):
        states, splits = plain(e, words[b, :T])
        vectors.append(states[0, T][0])
        tree = Tree([str(i) for i in range(T)], encoding.order[b, : T - 1].tolist())
        assert str(tree) == brackets(splits, 0, T)
        assert (encoding.order[b, T - 1 :] == -1).all()
        for a in range(T):
            wanted[b, a] = torch.cat(states[a, 1])
        for t, (first, end) in enumerate(tree.spans):
            wanted[b, 7 + t] = torch.cat(states[first, end - first])
    inputs = {"words": words, **dict(e.named_parameters())}
    check_same([encoding.vector, nodes], [torch.stack(vectors), wanted], inputs)


def test_kernels_take_the_first_split_of_nothing_but_nan():
    e, (words, lengths) = cyk(impl="fused"), words_of([4, 1, 2])
    with torch.no_grad():
        e.query.fill_(torch.nan)
    assert e(words, lengths).order.tolist() == [[2, 1, 0], [-1, -1, -1], [0, -1, -1]]


def test_kernels_divide_large_batches(monkeypatch):
    e, (words, lengths) = cyk(impl="fused"), words_of([4, 1, 2])
    words.requires_grad_()
    whole = e(words, lengths).vector
    monkeypatch.setattr(chart, "LIMIT", 1)
    # kernels are all there is
    monkeypatch.delattr(chart, "_Candidates")
    inputs = {"words": words, **dict(e.named_parameters())}
    check_same([e(words, lengths).vector], [whole], inputs)


def test_kernels_asked_for_by_name_are_not_replaced():
    e, (words, lengths) = cyk(impl="fused").half(), words_of([2, 1])
    with pytest.raises(NotImplementedError, match=r"got torch.float16; use impl='auto' or 'exact'"):
        e(words.half(), lengths)


def test_auto_uses_kernels_where_they_can_run(monkeypatch):
    weight = torch.zeros(1)
    assert not chart._Plan.of(weight, [1], "auto").kernels
    monkeypatch.setattr(chart, "why_not", lambda weight: None)
    assert chart._Plan.of(weight, [1], "auto").kernels
    assert not chart._Plan.of(weight, [1], "exact").kernels


@pytest.mark.gpu
@pytest.mark.parametrize("width", [6, 100, 300])
def test_gpu_kernels_equal_operations(width):
    """In float32, kernels are about as exact as operations, compared with float64."""
    lengths = torch.tensor([23, 1, 40, 2, 17, 40, 3])
    words = torch.randn(7, 40, 5, dtype=torch.float64)
    found = {}
    for name, impl, dtype in (
        ("double", "exact", torch.float64),
        ("exact", "exact", torch.float32),
        ("fused", "fused", torch.float32),
    ):
        e = encoder_of("cyk", std=0.3, impl=impl, hidden_dim=width).to("cuda", dtype)
        x = words.to("cuda", dtype).requires_grad_()
        vector = e(x, lengths.cuda()).vector
        weights = torch.arange(1, width + 1, device="cuda") / width
        gradients = torch.autograd.grad((vector * weights).sum(), [x, *e.parameters()])
        found[name] = [y.double() for y in (vector.detach(), *gradients)]
    for wanted, exact, fused in zip(*found.values(), strict=True):
        scale = wanted.norm() + 1e-6
        error, other = (fused - wanted).norm() / scale, (exact - wanted).norm() / scale
        assert error < 3 * other + 1e-5


@pytest.mark.parametrize("limit", [1, 7 * 7 * D * 2, 5 * 5 * D * 4])
def test_large_batches_are_divided(monkeypatch, limit):
    e, (words, lengths) = cyk(), words_of(LENGTHS)
    words.requires_grad_()
    whole = e(words, lengths)
    monkeypatch.setattr(chart, "LIMIT", limit)
    filled, shares = chart._filled, []

    def counted(h, *rest):
        shares.append(tuple(h.shape[:2]))
        return filled(h, *rest)

    monkeypatch.setattr(chart, "_filled", counted)
    divided = e(words, lengths)
    assert torch.equal(divided.order, whole.order)
    inputs = {"words": words, **dict(e.named_parameters())}
    check_same([divided.vector], [whole.vector], inputs)
    expected = {
        1: [(T, 1) for T in (7, 5, 5, 3, 2, 1, 1)],
        7 * 7 * D * 2: [(7, 2), (5, 3), (1, 2)],
        5 * 5 * D * 4: [(7, 2), (5, 4), (1, 1)],
    }[limit]
    assert shares == expected * 2
    # evaluation limits the size of its batches
    with torch.no_grad():
        e(words, lengths)
    assert len(shares) == 2 * len(expected) + 1


def test_trees_of_a_batch_differ():
    words, lengths = words_of([6] * 8)
    assert len(set(map(tuple, cyk()(words, lengths).order.tolist()))) > 2


def test_finds_trees_in_training_only_with_nodes():
    e = cyk()
    words, counts = words_of((4, 2), e.config.embedding_dim)
    wanted = e(words, counts).order
    e.train()
    assert e(words, counts).order is None
    assert torch.equal(e(words, counts, details=True).order, wanted)
    with torch.no_grad():
        assert torch.equal(e(words, counts).order, wanted)


def test_two_words_are_one_composition():
    e = cyk()
    words, lengths = words_of([2])
    h, c = composed(e, leaf(e, words[0, 0]), leaf(e, words[0, 1]))
    encoding = e(words, lengths, details=True)
    torch.testing.assert_close(encoding.vector[0], h)
    torch.testing.assert_close(encoding.nodes.c[0, 2], c)
    assert encoding.order.tolist() == [[0]]


def test_without_temperature_the_tree_is_hard():
    e = cyk(beta=1e9)
    words, lengths = words_of(LENGTHS)
    vector, order = e(words, lengths)
    for b, T in enumerate(LENGTHS):
        nodes = [leaf(e, word) for word in words[b, :T]]
        for position in order[b, : T - 1].tolist():
            nodes[position : position + 2] = [composed(e, *nodes[position : position + 2])]
        torch.testing.assert_close(vector[b], nodes[0][0])


def test_company_and_padding_have_no_effect():
    check_company(cyk(), LENGTHS)


@pytest.mark.parametrize("impl", ["exact", "fused"])
def test_zero_states_have_finite_gradients(impl):
    e = cyk(impl=impl)
    for p in e.parameters():
        torch.nn.init.zeros_(p)
    words, lengths = words_of([4, 2])
    words.requires_grad_()
    vector = e(words, lengths).vector
    assert not vector.any()
    for gradient in torch.autograd.grad(vector.sum(), [words, *e.parameters()]):
        assert gradient.isfinite().all()


def test_inverse_temperature_follows_the_epochs():
    e = cyk()
    e.advance(0, 0.0)
    assert e.beta == 1
    e.advance(499, 0.9)
    assert e.beta == 1
    e.advance(1000, 0.25)
    assert e.beta == 26
    other = cyk()
    other.load_state_dict(e.state_dict())
    assert other.beta == 26


def test_resumed_run_keeps_the_inverse_temperature(tmp_path):
    settings = ["encoder.kind=cyk", "embedding_dim=4", "encoder.hidden_dim=4", "generate=32"]
    settings += ["epochs=2", "batch_size=8", "refresh=3", "sharpening=10", "best_by=loss"]
    settings += ["checkpoint_seconds=0", "test_fraction=0"]
    recipe = gumbeltree.with_settings(gumbeltree.load_recipe("demo"), settings)
    data = gumbeltree.prepare(recipe)

    def stop(step):
        # the first epoch has 4 steps
        if step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gumbeltree.train(recipe, data, tmp_path / "two", quiet=True, device="cpu", on_step=stop)
    gumbeltree.train(recipe, data, tmp_path / "two", quiet=True, device="cpu", resume=True)
    gumbeltree.train(recipe, data, tmp_path / "one", quiet=True, device="cpu")
    one, two = (gumbeltree.load(tmp_path / name).state_dict() for name in ("one", "two"))
    assert one["encoder.beta"] > 1
    for name, x in one.items():
        assert torch.equal(x, two[name]), name


def test_parameters_are_counted():
    config = tiny_config(encoder="cyk", embedding_dim=100, hidden_dim=100)
    counts = count_parameters(config)
    assert [counts[part] for part in ("leaf", "composition", "query")] == [50_000, 100_500, 100]


def test_model_draws_trees_without_scores():
    model = tiny_model("single", encoder="cyk")
    found = trace(model, TEXTS[1])
    assert found.tree == model.parse(TEXTS[1])
    assert (found.trees, found.scored, found.sampled) == ("soft", False, False)
    torch.testing.assert_close(found.states[-1], found.vector)
    assert remarks(found).endswith("heaviest tree of a mixture, no scores")
    with pytest.raises(ValueError, match="builds soft trees"):
        draw_film([("model", found)])
    card = model_card(model)
    assert "mixture of all its binary trees" in card
    assert "need not agree" in card


def test_long_sentences_are_encoded_in_small_batches(monkeypatch) -> None:
    model = tiny_model("single", encoder="cyk")
    sizes = []

    def encode(self, sentences, draw, keep):
        sizes.append(len(sentences))
        return Encoding(torch.zeros(len(sentences), 6))

    monkeypatch.setattr(CYKEncoder, "encode", encode)
    model.encode([" ".join(["dog"] * 256)] * 9)
    # a chart of 256 words has 32,896 spans
    assert max(sizes) <= 4
    assert sum(sizes) == 9
    text = " ".join(["now"] * 256)
    split = split_of(model, [Example((text,), "good", (None,))] * 9)
    sizes.clear()
    assert evaluate(model, split).count == 9
    assert max(sizes) <= 4
