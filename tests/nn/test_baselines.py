"""Test the encoders that build no tree: a bag of words and an LSTM."""

import dataclasses
import json
import os

import numpy as np
import pytest
import torch
from torch import nn

import gumbeltree
from gumbeltree import Draw, Sentences
from gumbeltree.card import model_card
from gumbeltree.config import BagConfig, EncoderSettings, LSTMConfig, LSTMLeafConfig
from gumbeltree.describe import count_parameters, describe
from gumbeltree.evaluation import merge_orders, split_of
from gumbeltree.model import SentenceModel
from gumbeltree.nn.encoders.baselines import BagEncoder, LSTMEncoder
from gumbeltree.parts import ENCODERS, LEAVES
from gumbeltree.tasks.task import Example
from gumbeltree.text.tokenizer import whitespace_tokenizer
from tests.commands import run
from tests.models import TEXTS, WORDS, encoder_settings, tiny_config

KINDS = {"bag": BagEncoder, "lstm": LSTMEncoder}
LENGTHS = [3, 1, 6, 2, 6, 1, 4]
kinds = pytest.mark.parametrize("kind", KINDS)


def encoder_of(kind, **settings):
    encoder = ENCODERS[kind](encoder_settings(kind=kind, **settings)).double()
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.5)
    return encoder


def config_of(kind, head="single"):
    return dataclasses.replace(tiny_config(head), encoder=encoder_settings(kind=kind))


def model_of(kind, head="single"):
    torch.manual_seed(3)
    model = SentenceModel(config_of(kind, head), whitespace_tokenizer(WORDS))
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, std=0.1 if name.endswith("bias") else 0.7)
    return model.eval()


def words_of(lengths=LENGTHS, width=None):
    lengths = torch.tensor(lengths)
    return torch.randn(len(lengths), width or int(lengths.max()), 5, dtype=torch.float64), lengths


def test_bag_is_the_mean_of_projected_words():
    encoder = encoder_of("bag")
    embedded, lengths = words_of()
    vector, _ = encoder(embedded, lengths)
    for row, length in enumerate(LENGTHS):
        expected = encoder.word(embedded[row, :length]).mean(0)
        torch.testing.assert_close(vector[row], expected)


def test_lstm_with_one_bias_vector():
    encoder, double = encoder_of("lstm", biases=1), encoder_of("lstm")
    assert "bias_hh" not in dict(encoder.leaf.named_parameters())
    embedded, lengths = words_of()
    half = encoder.leaf.bias_ih.detach() / 2
    double.load_state_dict({**encoder.state_dict(), "leaf.bias_ih": half, "leaf.bias_hh": half})
    one, other = (x(embedded, lengths).vector for x in (encoder, double))
    torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(one)
    for vector in (one, other):
        (vector * weights).sum().backward()
    for name, p in encoder.named_parameters():
        torch.testing.assert_close(p.grad, double.get_parameter(name).grad, rtol=1e-10, atol=1e-12)


def test_initial_weights_of_bowman_et_al():
    torch.manual_seed(0)
    leaf = LSTMEncoder(LSTMConfig(100, 200, init="xavier", biases=1)).leaf
    assert leaf.weight_ih.std().item() == pytest.approx((4 / 900) ** 0.5, rel=0.01)
    assert leaf.weight_hh.std().item() == pytest.approx((4 / 1000) ** 0.5, rel=0.01)
    i, f, g, o = leaf.bias_ih.detach().chunk(4)
    assert torch.equal(f, torch.ones(200))
    assert not torch.cat([i, g, o]).any()


def test_lstm_is_the_last_state_of_torch_lstm():
    encoder = encoder_of("lstm")
    embedded, lengths = words_of()
    lstm = nn.LSTM(5, 6, batch_first=True).double()
    with torch.no_grad():
        for ours, theirs in zip(encoder.parameters(), lstm.parameters(), strict=True):
            assert ours.shape == theirs.shape
            theirs.copy_(ours)
    vector, _ = encoder(embedded, lengths)
    for row, length in enumerate(LENGTHS):
        expected = lstm(embedded[row : row + 1, :length])[1][0][0, 0]
        torch.testing.assert_close(vector[row], expected)


@kinds
def test_batch_equals_its_sentences_one_by_one(kind):
    encoder = encoder_of(kind)
    embedded, lengths = words_of()
    vector, _ = encoder(embedded, lengths)
    assert vector.shape == (7, 6)
    for row, length in enumerate(LENGTHS):
        alone, _ = encoder(embedded[row : row + 1, :length], lengths[row : row + 1])
        torch.testing.assert_close(vector[row], alone[0])
    permutation = torch.tensor([4, 0, 6, 2, 1, 5, 3])
    moved, _ = encoder(embedded[permutation], lengths[permutation])
    torch.testing.assert_close(moved, vector[permutation])


@kinds
@pytest.mark.parametrize("garbage", [torch.nan, torch.inf])
def test_padding_is_never_read(kind, garbage):
    encoder = encoder_of(kind)
    embedded, lengths = words_of()
    plain = encoder(embedded, lengths).vector
    wide = torch.full((7, 9, 5), garbage, dtype=torch.float64)
    for row, length in enumerate(LENGTHS):
        wide[row, :length] = embedded[row, :length]
    wide.requires_grad_()
    vector, _ = encoder(wide, lengths)
    assert torch.equal(vector, plain)
    (gradient,) = torch.autograd.grad(vector.square().sum(), wide)
    assert gradient.isfinite().all()
    for row, length in enumerate(LENGTHS):
        assert (gradient[row, length:] == 0).all()
        assert (gradient[row, :length] != 0).any(1).all()


@kinds
def test_parsing_is_rejected(kind):
    encoding = encoder_of(kind)(*words_of([5]))
    assert encoding.order is None
    for use in (lambda model: model.parse(TEXTS[1]), lambda model: model.parse_many(TEXTS)):
        with pytest.raises(ValueError, match=f"builds no tree.*'{kind}'"):
            use(model_of(kind))


@kinds
@pytest.mark.parametrize(
    "command",
    [
        ("parse", "{}", TEXTS[1]),
        ("parse", "{}", "--input", os.devnull),
        ("draw", "{}", "--out", "tree.svg", TEXTS[1]),
    ],
    ids=["parse", "parse-nothing", "draw"],
)
def test_commands_reject_models_without_trees(tmp_path, monkeypatch, kind, command):
    monkeypatch.chdir(tmp_path)
    gumbeltree.save(model_of(kind), tmp_path / "model", {})
    arguments = [x.format("model") for x in command]
    assert "builds no tree" in run(*arguments).refused()
    assert not (tmp_path / "tree.svg").exists()


@kinds
def test_gradients_equal_finite_differences(kind):
    encoder = encoder_of(kind)
    embedded, lengths = words_of([3, 1, 2])
    assert torch.autograd.gradcheck(
        lambda x, *_: encoder(x, lengths).vector,
        (embedded.requires_grad_(), *encoder.parameters()),
        atol=1e-6,
    )


@kinds
def test_arguments_of_tree_encoders_have_no_effect(kind):
    encoder = encoder_of(kind)
    embedded, lengths = words_of()
    plain = encoder(embedded, lengths).vector
    noise = torch.randn(7, 5, 5)
    assert torch.equal(encoder(embedded, lengths, noise=noise).vector, plain)
    assert torch.equal(encoder.train()(embedded, lengths, details=True).vector, plain)


@kinds
def test_accepts_lengths_of_32_bits(kind):
    encoder = encoder_of(kind)
    embedded, lengths = words_of()
    assert torch.equal(encoder(embedded, lengths.int()).vector, encoder(embedded, lengths).vector)


def test_initial_weights_of_a_bag():
    word = BagEncoder(BagConfig(200, 300)).word
    # He normal: variance 2 / 200
    assert abs(float(word.weight.detach().std()) - 0.1) < 0.002
    assert (word.bias == 0).all()


@pytest.mark.parametrize("init", ["orthogonal", "he", "uniform"])
def test_initial_weights_of_an_lstm(init):
    torch.manual_seed(1)
    leaf = LEAVES["lstm"](5, 6, LSTMLeafConfig(init))
    torch.manual_seed(1)
    encoder = LSTMEncoder(LSTMConfig(5, 6, init=init))
    for ours, theirs in zip(encoder.leaf.parameters(), leaf.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    if init == "uniform":
        torch.manual_seed(1)
        theirs = torch.nn.LSTM(5, 6).parameters()
        for ours, own in zip(leaf.parameters(), theirs, strict=True):
            assert torch.equal(ours, own)


# In a model


@kinds
@pytest.mark.parametrize("head", ["single", "pair"])
def test_model_is_saved_loaded_and_used(tmp_path, kind, head):
    model = model_of(kind, head)
    texts = TEXTS if head == "single" else list(zip(TEXTS, TEXTS[::-1], strict=True))
    vectors, predictions = model.encode(TEXTS), model.predict(texts)
    assert vectors.shape == (len(TEXTS), 6)
    assert len({prediction.logits for prediction in predictions}) > 1
    gumbeltree.save(model, tmp_path / "model", {})
    loaded = gumbeltree.load(tmp_path / "model")
    assert type(loaded.encoder) is KINDS[kind]
    np.testing.assert_array_equal(loaded.encode(TEXTS), vectors)
    assert loaded.predict(texts) == predictions


@kinds
def test_model_trains_with_and_without_noise(kind):
    model = model_of(kind, "pair").train()
    sentences = Sentences.of([[1, 2, 3], [4, 5], [1], [4]])
    model(sentences).output.square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert model(sentences, Draw(torch.zeros(4, 2, 2))).output.shape == (2, 3)


@pytest.mark.parametrize(
    ("kind", "part", "count"),
    [("bag", "word", 5 * 6 + 6), ("lstm", "leaf", 4 * 6 * (5 + 6 + 2))],
)
def test_parameters_are_counted(tmp_path, kind, part, count):
    config = config_of(kind)
    counts = count_parameters(config)
    assert counts[part] == count
    assert "composition" not in counts
    assert "query" not in counts
    model = model_of(kind)
    total = sum(x.numel() for x in model.parameters()) - model.embedding.weight.numel()
    assert counts["total"] == total
    gumbeltree.save(model, tmp_path / "model", {})
    about = describe(str(tmp_path / "model"))
    assert about["parameters"] == counts
    assert about["model"]["encoder"]["kind"] == kind
    json.dumps(about)


@kinds
def test_descriptions_do_not_mention_trees(tmp_path, kind):
    model = model_of(kind)
    gumbeltree.save(model, tmp_path / "model", {})
    assert "implementation" not in describe(str(tmp_path / "model"))
    shown = run("info", tmp_path / "model").out
    assert f"{kind}, hidden dim 6" in shown
    assert "merge" not in shown
    card = model_card(model)
    assert "latent-trees" not in card
    split = split_of(model, [Example((TEXTS[1],), "good", (None,))])
    with pytest.raises(ValueError, match="builds no tree"):
        merge_orders(model, split)


class NoEncoder(nn.Module):
    Config = EncoderSettings

    def __init__(self, config):
        super().__init__()


def test_rejects_a_module_that_is_not_an_encoder(monkeypatch):
    monkeypatch.setitem(ENCODERS.table, "mine", f"{__name__}:NoEncoder")
    with pytest.raises(TypeError, match=r"'mine' is a NoEncoder; derive it from gumbeltree\."):
        model_of("mine")


def test_rejects_an_unknown_kind():
    with pytest.raises(
        ValueError, match=r"unknown encoder 'lsmt'; known: bag, .*, gumbel_tree, .*, lstm"
    ):
        model_of("lsmt")
