"""What a trace says is what the model did."""

import json

import numpy as np
import pytest
import torch

from gumbeltree.analysis.trace import span_probabilities, trace, trace_many
from gumbeltree.config import BagConfig, ModelConfig
from gumbeltree.model import SentenceModel
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


def test_the_tree_and_the_vector_are_the_models_own(model):
    found = trace(model, TEXT)
    assert found.tree == model.parse(TEXT)
    assert found.tree.order == model.parse(TEXT).order
    assert np.allclose(found.vector, model.encode([TEXT])[0], atol=1e-6)
    assert np.allclose(found.vector, found.states[-1], atol=1e-6)
    assert not found.sampled
    assert not found.cut


def test_every_layer_by_hand(model):
    found = trace(model, TEXT)
    T = len(found.tree)
    ids = torch.tensor([model.tokenizer.encode(TEXT).ids])
    with torch.no_grad():
        encoding = model.eval().encoder(model.embedding(ids), torch.tensor([T]), details=True)
    assert len(found.layers) == T - 1
    for step, layer in enumerate(found.layers):
        scores = encoding.scores[0, step, : T - 1 - step].double().numpy()
        assert np.allclose(layer.scores, scores)
        exponents = np.exp(scores)
        assert np.allclose(layer.probabilities, exponents / exponents.sum())
        assert layer.choice == scores.argmax()
        if len(scores) == 1:
            assert layer.runner_up is None
        else:
            assert layer.runner_up == np.argsort(scores)[-2]


def test_nodes_are_words_then_merges(model):
    found = trace(model, TEXT)
    T = len(found.tree)
    assert [node.span for node in found.nodes] == [
        *((i, i + 1) for i in range(T)),
        *found.tree.spans,
    ]
    for node in found.nodes[:T]:
        assert (node.children, node.step, node.score, node.probability) == (None,) * 4
    for step, node in enumerate(found.nodes[T:]):
        left, right = (found.nodes[child] for child in node.children)
        assert (left.span[0], right.span[1]) == node.span
        assert left.span[1] == right.span[0]
        assert node.step == step
        assert node.score == found.layers[step].scores[found.tree.order[step]]
        assert node.probability == found.layers[step].probabilities[found.tree.order[step]]


def test_classes_of_the_root_are_the_sentences(model):
    found = trace(model, TEXT)
    (prediction,) = model.predict([TEXT])
    assert found.nodes[-1].classes == pytest.approx(prediction.probabilities, abs=1e-6)
    # and a word alone is a sentence of one word: of its state the leaf LSTM knows what went before
    (alone,) = model.predict([TEXT.split()[0]])
    assert found.nodes[0].classes == pytest.approx(alone.probabilities, abs=1e-6)
    pairs = tiny_model("pair", embedding_dim=6, hidden_dim=8)
    assert trace(pairs, TEXT).nodes[-1].classes is None


def test_a_text_is_merged_alike_in_any_company(model):
    texts = [TEXT, "dog", "one dog", "not " * 20, TEXT]
    for options in ({}, {"seed": 3}, {"seed": 3, "temperature": 5.0}):
        many = trace_many(model, texts, **options)
        for text, found in zip(texts, many, strict=True):
            alone = trace(model, text, **options)
            assert found.tree.order == alone.tree.order
            assert np.allclose(found.states, alone.states, atol=1e-6)
            assert found.sampled == bool(options)


def test_temperature_and_seed(model):
    greedy = trace(model, TEXT).tree
    assert all(trace(model, TEXT, seed=s, temperature=1e-4).tree == greedy for s in range(5))
    drawn = {trace(model, TEXT, seed=s, temperature=100.0).tree for s in range(20)}
    assert len(drawn) > 5
    hot, cold = (trace(model, TEXT, temperature=t).layers[0].probabilities for t in (10.0, 0.1))
    assert max(hot) < max(cold)


@pytest.mark.parametrize("temperature", [0.0, -1.0, 1e-300, 1e40, 1e300, np.inf, np.nan, "warm"])
def test_temperatures_that_say_nothing_are_refused(model, temperature):
    message = "must be a number from 0.000001 to 1,000,000, got "
    with pytest.raises(ValueError, match=message):
        trace(model, TEXT, seed=0, temperature=temperature)
    with pytest.raises(ValueError, match=message):
        span_probabilities(model, TEXT, temperature=temperature)


@pytest.mark.parametrize("temperature", [1e-6, 1e6])
def test_the_last_temperatures_can_be_sampled(model, temperature):
    found = trace(model, TEXT, seed=0, temperature=temperature)
    assert np.isfinite([layer.probabilities[0] for layer in found.layers]).all()


def test_broken_weights_are_told(model):
    fine = model.encoder.query.detach().clone()
    message = "gives NaN or infinite scores for this text; its weights are broken"
    for value in (torch.nan, torch.inf, 3e38):
        with torch.no_grad():
            model.encoder.query.fill_(value)
        with pytest.raises(ValueError, match=message):
            trace(model, TEXT)
    with torch.no_grad():
        model.encoder.query.copy_(fine)
        model.head.output.bias.fill_(torch.nan)
    with pytest.raises(ValueError, match=message):
        trace(model, TEXT)


@pytest.mark.parametrize("trees", ["left", "right", "balanced", "random"])
def test_fixed_trees_have_no_scores(trees):
    fixed = tiny_model("single", trees=trees)
    for seed in (None, 1):
        found = trace(fixed, TEXT, seed=seed)
        assert (found.trees, found.scored) == (trees, False)
        assert found.as_dict()["trees"] == trees
        # the others are the same for all seeds
        assert found.sampled == (seed is not None and trees == "random")
    learned = trace(tiny_model("single"), TEXT)
    assert (learned.trees, learned.scored) == ("learned", True)
    assert not trace(tiny_model("single"), "dog").scored


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_spans_are_as_frequent_as_the_softmax_says(model, temperature):
    text = "not one dog"
    first = trace(model, text, temperature=temperature).layers[0].probabilities
    tree, found = span_probabilities(model, text, samples=4000, temperature=temperature)
    assert tree == model.parse(text)
    assert found[0, 3] == 1
    # four standard errors
    for span, p in (((0, 2), first[0]), ((1, 3), first[1])):
        assert abs(found.get(span, 0.0) - p) < 4 * (p * (1 - p) / 4000) ** 0.5 + 1e-9


def test_spans_of_short_texts(model):
    assert span_probabilities(model, "dog") == (Tree("dog", []), {})
    assert span_probabilities(model, "one dog", samples=3)[1] == {(0, 2): 1.0}
    assert span_probabilities(model, TEXT, seed=1) == span_probabilities(model, TEXT, seed=1)
    assert span_probabilities(model, TEXT, seed=1) != span_probabilities(model, TEXT, seed=2)
    with pytest.raises(ValueError, match="`samples` must be a whole number from 1 on, got 0"):
        span_probabilities(model, TEXT, samples=0)


def test_words_places_and_unknown_words(model):
    text = "the  <dog>\tzyx dog ."
    found = trace(model, text)
    assert [text[start:end] for start, end in found.offsets] == list(found.tree.words)
    assert found.tree.words == ("the", "<dog>", "zyx", "dog", ".")
    assert found.unknown == (False, True, True, False, False)


def test_long_texts_are_cut(model):
    most = model.config.max_words
    found = trace(model, "dog " * (most + 1))
    assert found.cut
    assert len(found.tree) == most
    assert not trace(model, "dog " * most).cut


def test_as_json(model):
    found = trace(model, TEXT)
    back = json.loads(json.dumps(found.as_dict()))
    assert Tree(back["words"], back["order"]) == found.tree
    assert back["brackets"] == str(found.tree)
    assert back["trees"] == "learned"
    assert [tuple(node["span"]) for node in back["nodes"]] == [n.span for n in found.nodes]
    assert back["layers"][0]["probabilities"] == list(found.layers[0].probabilities)
    assert trace(model, "dog").as_dict()["layers"] == []


def test_bad_input(model):
    with pytest.raises(TypeError, match="expected one string, got list"):
        trace(model, [TEXT])
    with pytest.raises(ValueError, match="text 1 must hold at least one word"):
        trace_many(model, [TEXT, "  "])
    config = ModelConfig(BagConfig(5, 6))
    with pytest.raises(ValueError, match="this model builds no tree: its encoder is 'bag'"):
        trace(SentenceModel(config, model.tokenizer), TEXT)
