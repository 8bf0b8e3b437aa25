"""Traces agree with what the model does."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from gumbeltree.analysis import trace as trace_module
from gumbeltree.analysis.samples import span_probabilities
from gumbeltree.analysis.trace import (
    NEAR_TIE,
    GivenTreeError,
    _layers_and_nodes,
    trace,
    trace_many,
)
from gumbeltree.config import BagConfig, ModelConfig
from gumbeltree.model import SentenceModel, save
from gumbeltree.noise import gumbel_noise
from gumbeltree.runtimes import load
from gumbeltree.tree import Tree
from tests.models import tiny_model

TEXT = "the dog that barked all night sleeps ."


@pytest.fixture
def model():
    model = tiny_model("single", embedding_dim=6, hidden_dim=8, leaf="lstm")
    with torch.no_grad():
        # far enough apart that no two scores tie
        model.encoder.query.normal_(generator=torch.Generator().manual_seed(1))
    return model


def test_tree_and_vector_match_the_model(model):
    traced = trace(model, TEXT)
    assert traced.tree == model.parse(TEXT)
    assert traced.tree.order == model.parse(TEXT).order
    assert np.allclose(traced.vector, model.encode([TEXT])[0], atol=1e-6)
    assert np.allclose(traced.vector, traced.states[-1], atol=1e-6)
    assert not traced.sampled
    assert not traced.cut


def test_layers_match_the_encoder(model):
    traced = trace(model, TEXT)
    T = len(traced.tree)
    ids = torch.tensor([model.tokenizer.encode(TEXT).ids])
    with torch.no_grad():
        encoding = model.eval().encoder(model.embedding(ids), torch.tensor([T]), details=True)
    assert len(traced.layers) == T - 1
    for step, layer in enumerate(traced.layers):
        scores = encoding.scores[0, step, : T - 1 - step].double().numpy()
        assert np.allclose(layer.scores, scores)
        exponents = np.exp(scores)
        assert np.allclose(layer.probabilities, exponents / exponents.sum())
        assert layer.choice == scores.argmax()
        if len(scores) == 1:
            assert layer.runner_up is None
        else:
            assert layer.runner_up == np.argsort(scores)[-2]


def test_lead_is_the_difference_to_the_runner_up(model):
    for traced in (trace(model, TEXT), trace(model, TEXT, seed=1, temperature=50.0)):
        for layer in traced.layers[:-1]:
            assert layer.lead == layer.scores[layer.choice] - layer.scores[layer.runner_up]
            odds = layer.probabilities[layer.choice] / layer.probabilities[layer.runner_up]
            temperature = 50.0 if traced.sampled else 1.0
            assert np.log(odds) == pytest.approx(layer.lead / temperature, abs=1e-9)
            assert layer.near_tie == (abs(layer.lead) < NEAR_TIE)
        # the last merge has no alternative
        assert (traced.layers[-1].lead, traced.layers[-1].near_tie) == (None, False)
    assert all(layer.lead >= 0 for layer in trace(model, TEXT).layers[:-1])
    assert any(layer.lead < 0 for layer in traced.layers[:-1])
    leads = [layer.lead for layer in trace(model, TEXT).layers[:-1]]
    assert min(leads) < NEAR_TIE < max(leads)


def test_a_near_tie_is_nearly_a_coin_toss():
    (layer, _), _ = _layers_and_nodes(
        Tree("a b c", [0, 0]), np.array([[NEAR_TIE, 0.0], [0.0, 0.0]]), 1.0, [None] * 5
    )
    assert layer.probabilities[1] == pytest.approx(0.45, abs=5e-4)


def both_runtimes(model, tmp_path):
    save(model, tmp_path / "model")
    return [load(tmp_path / "model", runtime=runtime) for runtime in ("torch", "numpy")]


@pytest.mark.parametrize("shape", ["left", "right", "balanced", "brackets"])
@pytest.mark.parametrize("estimator", ["st_gumbel", "soft"])
def test_follows_a_given_tree(model, tmp_path, shape, estimator):
    model = tiny_model("single", estimator=estimator)
    words = TEXT.split()
    wanted = {
        "left": Tree.left_branching(words),
        "right": Tree.right_branching(words),
        "balanced": Tree.balanced(words),
        "brackets": Tree.random(words, 5),
    }[shape]
    # a model whose trees have this shape has the same weights
    same = {"left": "left", "right": "right", "balanced": "balanced"}.get(shape)
    for runtime in both_runtimes(model, tmp_path):
        given = str(wanted) if shape == "brackets" else shape
        for options in ({}, {"seed": 1}):
            traced = trace(runtime, TEXT, tree=given, **options)
            assert traced.tree == wanted
            assert not traced.sampled
            assert traced.greedy == (wanted == runtime.parse(TEXT))
            if same:
                fixed = tiny_model("single", trees=same)
                fixed.load_state_dict(
                    {k: x for k, x in model.state_dict().items() if k != "encoder.query"}
                )
                assert np.allclose(traced.vector, fixed.encode([TEXT])[0], atol=1e-5)
                assert traced.answer.label == fixed.predict([TEXT])[0].label
        # the greedy tree gives the greedy vector
        greedy = trace(runtime, TEXT, tree=str(runtime.parse(TEXT)))
        assert greedy.greedy
        assert np.allclose(greedy.vector, runtime.encode([TEXT])[0], atol=1e-5)


def test_prefix_forces_the_first_merges_only(model, tmp_path):
    for runtime in both_runtimes(model, tmp_path):
        greedy = trace(runtime, TEXT)
        for step in range(len(greedy.layers) - 1):
            before = list(greedy.tree.order[:step])
            other = greedy.layers[step].runner_up
            traced = trace(runtime, TEXT, prefix=[*before, other])
            assert list(traced.tree.order[: step + 1]) == [*before, other]
            assert all(
                layer.choice == np.argmax(layer.scores) for layer in traced.layers[step + 1 :]
            )
            assert traced.layers[step].lead == pytest.approx(-greedy.layers[step].lead, abs=1e-5)
            own = trace(runtime, TEXT, prefix=greedy.tree.order[: step + 1])
            assert own.tree.order == greedy.tree.order
            assert own.greedy
        # the merges after the prefix can be sampled
        drawn = {
            trace(runtime, TEXT, prefix=[6], seed=s, temperature=9.0).tree.order for s in range(9)
        }
        assert len(drawn) > 3
        assert {order[0] for order in drawn} == {6}


def test_given_trees_of_words_with_parentheses(model):
    text = "the ( dog -LRB- ) sleeps"
    assert (
        str(trace(model, text, tree="right").tree)
        in trace(model, text, tree="( the ( -LRB- ( dog ( -LRB- ( -RRB- sleeps ) ) ) ) )")
        .as_dict()
        .values()
    )
    assert trace(model, "dog", tree="left").tree == trace(model, "dog", tree="dog").tree
    with pytest.raises(GivenTreeError, match=r"prefix: .* all words are merged"):
        trace(model, "dog", prefix=[0])


def test_nodes_are_words_followed_by_merges(model):
    traced = trace(model, TEXT)
    T = len(traced.tree)
    assert [node.span for node in traced.nodes] == [
        *((i, i + 1) for i in range(T)),
        *traced.tree.spans,
    ]
    for step, node in enumerate(traced.nodes[T:]):
        left, right = (traced.nodes[child] for child in node.children)
        assert (left.span[0], right.span[1]) == node.span
        assert left.span[1] == right.span[0]
        assert node.step == step
        assert node.score == traced.layers[step].scores[traced.tree.order[step]]
        assert node.probability == traced.layers[step].probabilities[traced.tree.order[step]]


def test_classes_of_the_root_match_the_prediction(model):
    traced = trace(model, TEXT)
    (prediction,) = model.predict([TEXT])
    assert traced.nodes[-1].classes == pytest.approx(prediction.probabilities, abs=1e-6)
    # the leaf LSTM has read nothing before the first word, which is thus a sentence by itself
    (alone,) = model.predict([TEXT.split()[0]])
    assert traced.nodes[0].classes == pytest.approx(alone.probabilities, abs=1e-6)
    pairs = tiny_model("pair", embedding_dim=6, hidden_dim=8)
    assert trace(pairs, TEXT).nodes[-1].classes is None


def test_batching_does_not_change_the_result(model):
    texts = [TEXT, "dog", "one dog", "not " * 20, TEXT]
    for options in ({}, {"seed": 3}, {"seed": 3, "temperature": 5.0}):
        many = trace_many(model, texts, **options)
        for text, traced in zip(texts, many, strict=True):
            alone = trace(model, text, **options)
            assert traced.tree.order == alone.tree.order
            assert np.allclose(traced.states, alone.states, atol=1e-6)
            assert traced.sampled == bool(options)


def test_temperature_controls_the_samples(model):
    greedy = trace(model, TEXT).tree
    assert all(trace(model, TEXT, seed=s, temperature=1e-4).tree == greedy for s in range(5))
    drawn = {trace(model, TEXT, seed=s, temperature=100.0).tree for s in range(20)}
    assert len(drawn) > 5
    hot, cold = (trace(model, TEXT, temperature=t).layers[0].probabilities for t in (10.0, 0.1))
    assert max(hot) < max(cold)


@pytest.mark.parametrize("temperature", [0.0, 1e7, np.nan, "warm"])
def test_rejects_extreme_temperatures(model, temperature):
    for use in (trace, span_probabilities):
        with pytest.raises(ValueError, match=f"temperature .*{temperature!r}"):
            use(model, TEXT, seed=0, temperature=temperature)


@pytest.mark.parametrize("temperature", [1e-6, 1e6])
def test_samples_at_the_limits_of_the_temperature(model, temperature):
    traced = trace(model, TEXT, seed=0, temperature=temperature)
    assert np.isfinite([layer.probabilities[0] for layer in traced.layers]).all()


@pytest.mark.parametrize("trees", ["left", "random"])
def test_fixed_trees_have_no_scores(trees):
    fixed = tiny_model("single", trees=trees)
    for seed in (None, 1):
        traced = trace(fixed, TEXT, seed=seed)
        assert (traced.trees, traced.scored) == (trees, False)
        assert traced.as_dict()["trees"] == trees
        # only random trees depend on the seed
        assert traced.sampled == (seed is not None and trees == "random")
        assert {layer.lead for layer in traced.layers} == {None}
        assert not any(layer.near_tie for layer in traced.layers)
    learned = trace(tiny_model("single"), TEXT)
    assert (learned.trees, learned.scored) == ("learned", True)
    assert not trace(tiny_model("single"), "dog").scored


def test_offsets_and_unknown_words(model):
    text = "the  <dog>\tzyx dog ."
    traced = trace(model, text)
    assert [text[start:end] for start, end in traced.offsets] == list(traced.tree.words)
    assert traced.tree.words == ("the", "<dog>", "zyx", "dog", ".")
    assert traced.unknown == (False, True, True, False, False)


def test_truncates_long_texts(model):
    config = dataclasses.replace(model.config, max_words=7)
    short = SentenceModel(config, model.tokenizer)
    traced = trace(short, "dog " * 8)
    assert traced.cut
    assert len(traced.tree) == 7
    assert not trace(short, "dog " * 7).cut


def test_converts_to_json(model):
    traced = trace(model, TEXT)
    back = json.loads(json.dumps(traced.as_dict()))
    assert Tree(back["words"], back["order"]) == traced.tree
    assert back["brackets"] == str(traced.tree)
    assert back["trees"] == "learned"
    assert [tuple(node["span"]) for node in back["nodes"]] == [n.span for n in traced.nodes]
    assert back["layers"][0]["probabilities"] == list(traced.layers[0].probabilities)
    assert trace(model, "dog").as_dict()["layers"] == []


def test_rejects_invalid_input(model):
    with pytest.raises(TypeError, match="must be a string, got list"):
        trace(model, [TEXT])
    with pytest.raises(ValueError, match="text 1 must contain at least one word"):
        trace_many(model, [TEXT, "  "])
    config = ModelConfig(BagConfig(5, 6))
    with pytest.raises(ValueError, match="builds no tree: its encoder is 'bag'"):
        trace(SentenceModel(config, model.tokenizer), TEXT)


@pytest.mark.parametrize("seed", [0, 7, 2**40 + 3])
def test_noise_is_that_of_torch_with_the_same_seed(seed):
    generator = torch.Generator().manual_seed(seed)
    drawn = gumbel_noise((2, 5, 5), generator=generator)
    source = trace_module.noise_source(seed)
    # drawn in parts
    parts = [trace_module.gumbel_noise(1, 5, source) for _ in range(2)]
    np.testing.assert_allclose(np.concatenate(parts), drawn.numpy(), rtol=1e-5, atol=1e-6)
