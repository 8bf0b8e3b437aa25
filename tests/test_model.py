"""Models: vectors, trees and classes of texts, in any number and in any mode."""

import dataclasses
import functools
import itertools
import logging
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gumbeltree.text_model
from gumbeltree import Encoding, Prediction, Tree
from gumbeltree.layout import Sentences
from gumbeltree.model import SentenceModel
from gumbeltree.nn.evaluation_mode import in_evaluation_mode
from gumbeltree.parts import ENCODERS
from gumbeltree.states import Draw
from gumbeltree.text import batches as text_batches
from gumbeltree.text.batches import batches, chunks
from gumbeltree.text.ids import TextCounts, TextReader
from gumbeltree.text.tokenizer import treebank_tokenizer, whitespace_tokenizer
from tests.models import TEXTS, WORDS, tiny_config, tiny_model

PAIR, SINGLE = tiny_model("pair"), tiny_model("single")
PAIRS = list(zip(TEXTS, reversed(TEXTS), strict=True))


def direct(model: SentenceModel, text: str) -> Encoding:
    """Encode one text without `encode`: ids looked up by hand, no padding."""
    ids = [WORDS.index(word) if word in WORDS else len(WORDS) + 1 for word in text.split()]
    with torch.no_grad():
        words = model.embedding.weight[ids]
        return model.encoder(words[None], torch.tensor([len(ids)]), sample=False)


# vectors and trees


def test_encode_returns_the_vectors_of_the_encoder():
    vectors = PAIR.encode(TEXTS)
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(TEXTS), 6)
    expected = torch.cat([direct(PAIR, text).vector for text in TEXTS])
    np.testing.assert_allclose(vectors, expected.numpy(), rtol=0, atol=1e-6)
    assert len(np.unique(vectors.round(4), axis=0)) == len(TEXTS)


sentences = st.lists(st.sampled_from([*WORDS, "zebra"]), min_size=1, max_size=9).map(" ".join)


@settings(max_examples=20)
@given(st.lists(sentences, max_size=8), st.integers(1, 5))
def test_results_are_independent_of_batches(texts, batch_size):
    vectors = PAIR.encode(texts, batch_size=batch_size)
    trees = PAIR.parse_many(texts, batch_size=batch_size)
    assert len(vectors) == len(trees) == len(texts)
    for text, vector, tree in zip(texts, vectors, trees, strict=True):
        alone = direct(PAIR, text)
        np.testing.assert_allclose(vector, alone.vector[0].numpy(), rtol=0, atol=1e-6)
        assert tree == Tree(text, alone.order[0].tolist())


def test_empty_input():
    assert PAIR.encode([]).shape == (0, 6)
    assert PAIR.encode([]).dtype == np.float32
    assert PAIR.parse_many([]) == PAIR.predict([]) == PAIR.predict([], []) == []
    assert SINGLE.predict([]) == []


def test_attention_pools_all_nodes():
    model = tiny_model(attention=True)
    expected = torch.cat([direct(model, text).vector for text in TEXTS])
    np.testing.assert_allclose(model.encode(TEXTS), expected.numpy(), rtol=0, atol=1e-6)
    assert not np.allclose(model.encode(TEXTS), PAIR.encode(TEXTS), atol=1e-3)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-5), (torch.bfloat16, 0.5)])
def test_other_precisions_return_float32(dtype, tolerance):
    vectors = tiny_model().to(dtype).encode(TEXTS)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, PAIR.encode(TEXTS), rtol=0, atol=tolerance)


# words


def test_unknown_words_share_one_vector():
    vectors = PAIR.encode(["zebra", "quagga", "<unk>", "Dog", "dog"])
    assert (vectors[:4] == vectors[0]).all()
    assert not np.allclose(vectors[0], vectors[4])


def test_lower_case_applies_to_look_up_only():
    model = tiny_model(lower=True)
    assert np.array_equal(model.encode(["THE Dog"]), model.encode(["the dog"]))
    assert str(model.parse("THE Dog")) == "( THE Dog )"
    # lower-casing lengthens the first letter, which must not shift the words
    assert model.parse("İstanbul Dog ŞİŞ now").words == ("İstanbul", "Dog", "ŞİŞ", "now")


@pytest.mark.parametrize("text", ["  the   dog\tsleeps \n", "the\u00a0dog\x1esleeps"])
def test_any_white_space_separates_words(text):
    assert np.array_equal(PAIR.encode([text]), PAIR.encode(["the dog sleeps"]))
    assert PAIR.parse(text).words == ("the", "dog", "sleeps")


@pytest.mark.parametrize("word", ["(", "<&>", "👩‍👩‍👧", "a\u200bb", "\ufeff", "a\0b", "<pad>"])
def test_words_contain_any_other_character(word):
    assert PAIR.parse(f"the {word} sleeps").words == ("the", word, "sleeps")


def test_word_vectors_start_small_and_special_ones_at_zero():
    words = [f"w{number}" for number in range(2000)]
    weight = SentenceModel(tiny_config(), whitespace_tokenizer(words)).embedding.weight
    assert weight[:2000].std().item() == pytest.approx(0.01, rel=0.05)
    assert weight[2000:].shape == (2, 5)
    assert weight[2000:].count_nonzero() == 0


def test_pretokenized_text_is_split_at_white_space_only():
    words = ["don't", "do", "n't", "(", ")", "a/b", "go", "."]
    model = SentenceModel(tiny_config(), treebank_tokenizer(words, lower=True))
    assert model.parse("Don't go.").words == ("Do", "n't", "go", ".")
    text = "Don't\x1c-LRB- a\\/b\u00a0-RRB- go."
    assert model.parse(text, pretokenized=True).words == ("Don't", "(", "a/b", ")", "go.")
    counts = TextCounts()
    vectors = model.encode([text], pretokenized=True, counts=counts)
    model.predict([text], [text], pretokenized=True, counts=counts)
    assert counts == TextCounts(texts=3, words=15, unknown=3, max_words=1024)
    whitespace = SentenceModel(tiny_config(), whitespace_tokenizer(words, lower=True)).eval()
    whitespace.load_state_dict(model.state_dict())
    assert np.array_equal(vectors, whitespace.encode(["don't ( a/b ) go."]))
    assert not np.allclose(model.encode([text]), vectors, atol=1e-6)


# classes


def check_predictions(model, predictions, logits):
    assert len(predictions) == len(logits)
    for prediction, expected in zip(predictions, logits.tolist(), strict=True):
        assert isinstance(prediction, Prediction)
        assert prediction.logits == pytest.approx(expected, abs=1e-5)
        assert prediction.label == model.labels[expected.index(max(expected))]
        assert tuple(prediction.probabilities) == model.labels
        probabilities = torch.tensor(expected).softmax(0).tolist()
        assert list(prediction.probabilities.values()) == pytest.approx(probabilities, abs=1e-5)


def test_predict_pairs():
    predictions = PAIR.predict(PAIRS)
    assert predictions == PAIR.predict(TEXTS, TEXTS[::-1])
    assert predictions == PAIR.predict([list(pair) for pair in PAIRS])
    columns = [
        Encoding(torch.cat([direct(PAIR, pair[i]).vector for pair in PAIRS])) for i in (0, 1)
    ]
    with torch.no_grad():
        logits = PAIR.head(*columns)
        swapped = PAIR.head(*columns[::-1])
    check_predictions(PAIR, predictions, logits)
    assert len({prediction.label for prediction in predictions}) > 1
    assert not torch.allclose(logits, swapped, atol=1e-3)


def test_predict_single_sentences():
    vectors = torch.cat([direct(SINGLE, text).vector for text in TEXTS])
    with torch.no_grad():
        logits = SINGLE.head(Encoding(vectors))
    check_predictions(SINGLE, SINGLE.predict(TEXTS, batch_size=2), logits)


def test_forward_agrees_with_predict():
    first, second = [1, 2, 3, 4], [5, 6]
    texts = [" ".join(WORDS[i] for i in row) for row in (first, first[:1], second)]
    with torch.no_grad():
        pair = PAIR(Sentences.of([first, first[:1], second, second])).output
        single = SINGLE(Sentences.of([first, first[:1]])).output
    check_predictions(PAIR, PAIR.predict(texts[:2], [texts[2]] * 2), pair)
    check_predictions(SINGLE, SINGLE.predict(texts[:2]), single)


def test_forward_rejects_other_input():
    with pytest.raises(TypeError, match=r"Tensor.*Sentences\.of"):
        PAIR(torch.ones(2, 3))
    with pytest.raises(ValueError, match="2 sentences per example, got 3"):
        PAIR(Sentences.of([[1], [2], [3]]))


def test_gradients_reach_every_part_in_training():
    model = tiny_model().train()
    ids = [[1, 2, 3, 4], [5], [6, 7, 8]]
    # inference before training must not make the tensors unusable
    model.encode(TEXTS)
    model(Sentences.of(ids + ids[::-1])).output.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.count_nonzero() > 0, name


# mode


def results(model):
    return model.encode(TEXTS), model.parse_many(TEXTS), model.predict(PAIRS)


def check_results(actual, expected):
    assert np.array_equal(actual[0], expected[0])
    assert actual[1:] == expected[1:]


def test_results_and_mode_are_independent_of_training():
    model = tiny_model().train()
    model.head.batch_norm_in.eval()
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    statistics = model.head.batch_norm_out.running_mean.clone()
    check_results(results(model), results(PAIR))
    with pytest.raises(ValueError, match="text 0"):
        model.encode([""])
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(model.head.batch_norm_out.running_mean, statistics)


def test_threads_share_a_model_in_training():
    expected = results(PAIR)
    model = tiny_model().train()
    with ThreadPoolExecutor(4) as pool:
        for actual in pool.map(lambda _: results(model), range(12)):
            check_results(actual, expected)
            assert all(module.training for module in model.modules())


def test_evaluation_mode_shares_tensors():
    model = tiny_model().train()
    view = in_evaluation_mode(model)
    assert [name for name, _ in view.named_modules()] == [name for name, _ in model.named_modules()]
    assert not any(module.training for module in view.modules())
    assert all(a is b for a, b in zip(view.parameters(), model.parameters(), strict=True))
    assert all(a is b for a, b in zip(view.buffers(), model.buffers(), strict=True))
    # a module used twice is copied once
    assert len(list(in_evaluation_mode(nn.Sequential(*[nn.Dropout()] * 2)).modules())) == 2


@pytest.mark.parametrize("how", ["in place", "method", "wrapped"])
def test_compiled_modules_run_in_evaluation_mode(how):
    module = nn.Sequential(nn.Dropout(0.9)).train()
    if how == "in place":
        module.compile(backend="eager")
    elif how == "method":
        module.forward = torch.compile(module.forward, backend="eager")
    else:
        module = torch.compile(module, backend="eager")
    x = torch.ones(100)
    assert torch.equal(in_evaluation_mode(nn.Sequential(module))(x), x)
    assert not torch.equal(module(x), x)


# input


@pytest.mark.parametrize(
    "wrap",
    [tuple, iter, np.array],
    ids=["tuple", "iterator", "array"],
)
def test_accepts_any_iterable_of_strings(wrap):
    assert np.array_equal(PAIR.encode(wrap(TEXTS)), PAIR.encode(TEXTS))
    assert PAIR.parse_many(wrap(TEXTS)) == PAIR.parse_many(TEXTS)
    assert SINGLE.predict(wrap(TEXTS)) == SINGLE.predict(TEXTS)
    assert PAIR.predict(wrap(TEXTS), wrap(TEXTS[::-1])) == PAIR.predict(PAIRS)
    assert PAIR.predict(pair for pair in PAIRS) == PAIR.predict(PAIRS)


@pytest.mark.parametrize("use", [SINGLE.encode, SINGLE.parse_many, SINGLE.predict])
@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("the dog", r"one string; pass \['the dog'\]"),
        (None, "expected a list of strings, got None"),
        ({"text": TEXTS}, "dict; pass one of its columns"),
    ],
)
def test_rejects_anything_but_a_list(use, texts, message):
    with pytest.raises(TypeError, match=message):
        use(texts)


@pytest.mark.parametrize("wrong", [7, b"now", ["now"]])
def test_rejects_texts_that_are_not_strings(wrong):
    kind = type(wrong).__name__
    with pytest.raises(TypeError, match=f"text 1 must be a string, got {kind}"):
        PAIR.encode(["now", wrong])
    with pytest.raises(TypeError, match=f"text 0 must be a string, got {kind}"):
        PAIR.parse(wrong)
    with pytest.raises(TypeError, match=kind):
        PAIR.predict([("now", wrong)])
    error, message = (ValueError, "single sentences") if kind == "list" else (TypeError, kind)
    with pytest.raises(error, match=message):
        SINGLE.predict([wrong])


class NAType:
    """Stands for the missing value of pandas."""


@pytest.mark.parametrize(
    "missing", [None, math.nan, np.float32("nan"), NAType()], ids=["None", "nan", "float32", "NA"]
)
def test_missing_texts_are_named_by_their_row(missing):
    texts = ["the dog sleeps", "now", missing]
    for use in (PAIR.encode, PAIR.parse_many, SINGLE.predict):
        with pytest.raises(TypeError, match=r"the text of row 2 is missing .*dropna\(\)"):
            use(texts)
        with pytest.raises(TypeError, match="the text of row 2 is missing"):
            use(np.array(texts, dtype=object))
    for pairs in ((TEXTS[:3], texts), (list(zip(TEXTS[:3], texts, strict=True)),)):
        with pytest.raises(TypeError, match="the second text of row 2 is missing"):
            PAIR.predict(*pairs)
    with pytest.raises(ValueError, match=r"reads pairs: .*item 1 is"):
        PAIR.predict([("now", "then"), missing])


@pytest.mark.parametrize("empty", ["", "\t\n", "\u00a0"])
def test_rejects_empty_texts_by_index(empty):
    texts = ["the dog sleeps", "now", empty, empty]
    for use in (PAIR.encode, PAIR.parse_many, SINGLE.predict, lambda x: PAIR.predict(TEXTS[:4], x)):
        with pytest.raises(ValueError, match="text 2 "):
            use(texts)


def test_rejects_invalid_unicode_by_index():
    # Python decodes invalid UTF-8 in arguments and file names like this
    with pytest.raises(ValueError, match=r"text 1 .*Unicode"):
        PAIR.encode(["now", "caf\udce9"])


@pytest.mark.parametrize("batch_size", [0, 2.5])
def test_rejects_batch_sizes_below_one(batch_size):
    with pytest.raises(ValueError, match="`batch_size`"):
        SINGLE.encode(TEXTS, batch_size=batch_size)


@pytest.mark.parametrize(
    "arguments",
    [
        (["now", "the dog"],),
        ([("now", "the", "dog")],),
        ([("now", "the"), "dog"],),
        (["now", "the dog"], ["now"]),
    ],
)
def test_predict_rejects_anything_but_pairs(arguments):
    with pytest.raises(ValueError, match="reads pairs"):
        PAIR.predict(*arguments)


@pytest.mark.parametrize("arguments", [([("now", "dog")],), (["now"], ["dog"])])
def test_predict_rejects_pairs_for_a_model_of_single_sentences(arguments):
    with pytest.raises(ValueError, match="single sentences"):
        SINGLE.predict(*arguments)


# noise, and other encoders


def gumbel(*shape):
    return -torch.rand(shape).clamp_min(1e-6).log().neg().log()


@pytest.mark.parametrize("widths", [(6, 4), (4, 6)])
def test_noise_of_pairs_is_that_of_first_then_second_sentences(widths):
    model = tiny_model()
    columns = [[list(range(1, width + 1)), [7, 8, 9]] for width in widths]
    both = Sentences.of(columns[0] + columns[1])
    noise = 5 * gumbel(4, 5, 5)
    with torch.no_grad():
        scores = model(both, Draw(noise)).output
        encodings = [
            model.encode_batch(Sentences.of(ids), Draw(part[:, : width - 1, : width - 1]))
            for ids, width, part in zip(columns, widths, noise.chunk(2), strict=True)
        ]
        torch.testing.assert_close(scores, model.head(*encodings), rtol=0, atol=1e-5)
        swapped = model(both, Draw(torch.cat(noise.chunk(2)[::-1]))).output
        assert not torch.allclose(scores, swapped, atol=1e-4)


def test_encoders_are_looked_up_by_name(monkeypatch):
    name = "gumbeltree.nn.encoders.gumbel_tree:GumbelTreeEncoder"
    monkeypatch.setitem(ENCODERS.table, "mine", name)
    config = tiny_config()
    encoder = dataclasses.replace(config.encoder, kind="mine")
    config = dataclasses.replace(config, encoder=encoder)
    model = SentenceModel(config, whitespace_tokenizer(WORDS))
    assert model.encode(TEXTS).shape == (len(TEXTS), 6)


# long texts


def cut_to(model: SentenceModel, max_words: int) -> SentenceModel:
    model.config = dataclasses.replace(model.config, max_words=max_words)
    return model


def test_long_texts_are_truncated_and_counted():
    model, single = cut_to(tiny_model(), 3), cut_to(tiny_model("single"), 3)
    short = [" ".join(text.split()[:3]) for text in TEXTS]
    counts = TextCounts()
    assert np.array_equal(model.encode(TEXTS, counts=counts), model.encode(short))
    expected = TextCounts(texts=6, words=13, unknown=2, cut=2, max_words=3)
    assert counts == expected
    for use in (model.parse_many, single.predict):
        counts = TextCounts()
        assert use(TEXTS, counts=counts) == use(short)
        assert counts == expected
    # both sentences of a pair count
    assert model.predict(TEXTS, TEXTS, counts=counts) == model.predict(short, short)
    assert counts == TextCounts(texts=18, words=39, unknown=6, cut=6, max_words=3)


def test_logs_one_warning_per_call_about_truncated_texts(caplog):
    model = cut_to(tiny_model(), 3)
    with caplog.at_level(logging.WARNING):
        model.encode(["one"])
        model.encode(TEXTS, counts=TextCounts())
        assert not caplog.records
        model.predict(TEXTS, TEXTS)
    assert len(caplog.records) == 1
    assert "4 texts truncated to 3 words" in caplog.text


def test_very_long_texts_are_truncated_before_tokenisation():
    model = cut_to(tiny_model(), 4)
    for filler in ("dog ", "dog", '"'):
        counts = TextCounts()
        text = " \n" + "the dog sleeps now " + filler * 500_000
        assert model.parse(text, counts=counts).words == ("the", "dog", "sleeps", "now")
        assert counts == TextCounts(1, 4, 0, 1, 4)
    # white space at either end does not count
    counts = TextCounts()
    for text in ("now" + " " * 500_000, " " * 500_000 + "now"):
        assert model.parse(text, counts=counts).words == ("now",)
    assert counts.cut == 0


# bounded memory


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(1, 9), st.integers(1, 60))
def test_batches_hold_each_sentence_once_within_the_budget(lengths, most, words):
    parts = list(batches(lengths, most, words))
    assert sorted(i for batch in parts for i in batch) == list(range(len(lengths)))
    sizes = [lengths[i] for batch in parts for i in batch]
    assert sizes == sorted(sizes)
    for batch in parts:
        assert 1 <= len(batch) <= most
        assert len(batch) * max(lengths[i] for i in batch) <= words or len(batch) == 1
    # no batch could have taken the first sentence of the next
    for batch, following in itertools.pairwise(parts):
        size = len(batch) + 1
        assert size > most or size * lengths[following[0]] > words


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 7), st.integers(1, 30))
def test_chunks_hold_each_row_once_within_the_budget(sizes, most, characters):
    columns = [["x" * size for size in sizes], ["y" for _ in sizes]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_batches, "CHUNK_CHARACTERS", characters)
        parts = list(chunks(columns, most))
    assert [row for rows in parts for row in range(len(sizes))[rows]] == list(range(len(sizes)))
    for rows in parts:
        count = rows.stop - rows.start
        assert 1 <= count <= most
        assert count == 1 or sum(sizes[rows]) + count <= characters


@pytest.fixture
def tight(monkeypatch):
    """Small budgets; returns the shapes of the batches and the numbers of texts tokenised."""
    shapes, read = [], []
    embed, read_chunk = SentenceModel.embed, TextReader.read

    def spy_embed(self, sentences):
        shapes.append((len(sentences), sentences.layout.T))
        return embed(self, sentences)

    def spy_read(self, texts, first=0, offsets=False):
        read.append(len(texts))
        return read_chunk(self, texts, first, offsets)

    monkeypatch.setattr(SentenceModel, "embed", spy_embed)
    monkeypatch.setattr(TextReader, "read", spy_read)
    monkeypatch.setattr(gumbeltree.text_model, "batches", functools.partial(batches, words=12))
    monkeypatch.setattr(text_batches, "CHUNK_TEXTS", 7)
    return shapes, read


def test_memory_is_bounded_and_results_do_not_depend_on_chunks(tight):
    shapes, read = tight
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(WORDS, n)) for n in generator.integers(1, 16, 30)]
    for use in (PAIR.parse_many, PAIR.encode, SINGLE.predict):
        chunked = use(texts)
        assert max(read) == 7
        assert all(rows * width <= 12 or rows == 1 for rows, width in shapes)
        assert max(rows for rows, _ in shapes) > 1
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gumbeltree.text_model, "batches", batches)
            patch.setattr(text_batches, "CHUNK_TEXTS", 4096)
            whole = use(texts)
        if use == PAIR.parse_many:
            assert chunked == whole
        elif use == PAIR.encode:
            np.testing.assert_allclose(chunked, whole, rtol=0, atol=1e-5)
        else:
            logits = [[p.logits for p in predictions] for predictions in (chunked, whole)]
            np.testing.assert_allclose(*logits, rtol=0, atol=1e-4)
        shapes.clear()
        read.clear()


def test_bad_weights_do_not_hang_or_crash():
    model = tiny_model("single")
    with torch.no_grad():
        model.encoder.query.fill_(math.nan)
    assert len(model.encode(TEXTS)) == len(model.parse_many(TEXTS)) == len(TEXTS)


def test_initial_word_vectors_have_the_given_deviation():
    config = tiny_config()
    words = [f"word{i}" for i in range(2000)]
    for std in (0.01, 1.0):
        embedding = dataclasses.replace(config.embedding, std=std)
        own = dataclasses.replace(config, embedding=embedding)
        weight = SentenceModel(own, whitespace_tokenizer(words, lower=False)).embedding.weight
        assert weight.std().item() == pytest.approx(std, rel=0.05)
