"""Traces agree with what the model does."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from gumbeltree.analysis import trace as trace_module
from gumbeltree.analysis.trace import span_probabilities, trace, trace_many
from gumbeltree.config import BagConfig, ModelConfig
from gumbeltree.model import SentenceModel
from gumbeltree.noise import gumbel_noise
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
    learned = trace(tiny_model("single"), TEXT)
    assert (learned.trees, learned.scored) == ("learned", True)
    assert not trace(tiny_model("single"), "dog").scored


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_span_probabilities_follow_the_softmax(model, temperature):
    text = "not one dog"
    first = trace(model, text, temperature=temperature).layers[0].probabilities
    tree, traced = span_probabilities(model, text, samples=4000, temperature=temperature)
    assert tree == model.parse(text)
    assert traced[0, 3] == 1
    # four standard errors
    for span, p in (((0, 2), first[0]), ((1, 3), first[1])):
        assert abs(traced.get(span, 0.0) - p) < 4 * (p * (1 - p) / 4000) ** 0.5 + 1e-9


def test_span_probabilities_of_short_texts(model):
    assert span_probabilities(model, "dog") == (Tree("dog", []), {})
    assert span_probabilities(model, "one dog", samples=3)[1] == {(0, 2): 1.0}
    assert span_probabilities(model, TEXT, seed=1) == span_probabilities(model, TEXT, seed=1)
    assert span_probabilities(model, TEXT, seed=1) != span_probabilities(model, TEXT, seed=2)
    with pytest.raises(ValueError, match="`samples` must be at least 1, got 0"):
        span_probabilities(model, TEXT, samples=0)


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
    np.testing.assert_allclose(trace_module._noise(2, 5, seed), drawn.numpy(), rtol=1e-5, atol=1e-6)
