import dataclasses
import itertools
import logging
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gumbeltree import Encoding, Prediction, Tree
from gumbeltree.layout import Sentences
from gumbeltree.model import SentenceModel, in_evaluation_mode
from gumbeltree.states import Draw
from gumbeltree.text import ids as text_ids
from gumbeltree.text.ids import TextCounts, TextReader, batches, chunks
from gumbeltree.text.tokenizer import pretokenized, treebank_tokenizer, whitespace_tokenizer
from tests.models import TEXTS, WORDS, tiny_config, tiny_model

PAIR, SINGLE = tiny_model("pair"), tiny_model("single")
PAIRS = list(zip(TEXTS, reversed(TEXTS), strict=True))


def direct(model: SentenceModel, text: str) -> Encoding:
    """Encode one text without `encode`: ids looked up by hand, no padding."""
    ids = [WORDS.index(word) if word in WORDS else len(WORDS) + 1 for word in text.split()]
    with torch.no_grad():
        words = model.embedding.weight[ids]
        return model.encoder(words[None], torch.tensor([len(ids)]), sample=False)


# vectors


def test_encode_gives_the_encoders_vectors():
    vectors = PAIR.encode(TEXTS)
    assert isinstance(vectors, np.ndarray)
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(TEXTS), 6)
    expected = torch.cat([direct(PAIR, text).vector for text in TEXTS])
    np.testing.assert_allclose(vectors, expected.numpy(), rtol=0, atol=1e-6)
    assert len(np.unique(vectors.round(4), axis=0)) == len(TEXTS)


sentences = st.lists(st.sampled_from([*WORDS, "zebra"]), min_size=1, max_size=9).map(" ".join)


@given(st.lists(sentences, max_size=12), st.integers(1, 5))
def test_neither_batch_nor_neighbours_change_a_result(texts, batch_size):
    vectors = PAIR.encode(texts, batch_size=batch_size)
    trees = PAIR.parse_many(texts, batch_size=batch_size)
    assert len(vectors) == len(trees) == len(texts)
    for text, vector, tree in zip(texts, vectors, trees, strict=True):
        alone = direct(PAIR, text)
        np.testing.assert_allclose(vector, alone.vector[0].numpy(), rtol=0, atol=1e-6)
        assert tree == Tree(text, alone.order[0].tolist())


def test_nothing_in_nothing_out():
    assert PAIR.encode([]).shape == (0, 6)
    assert PAIR.encode([]).dtype == np.float32
    assert PAIR.parse_many([]) == []
    assert PAIR.predict([]) == []
    assert PAIR.predict([], []) == []
    assert SINGLE.predict([]) == []


@pytest.mark.parametrize("texts", [tuple(TEXTS), np.array(TEXTS)], ids=["tuple", "array"])
def test_any_sequence_of_strings_will_do(texts):
    assert np.array_equal(PAIR.encode(texts), PAIR.encode(TEXTS))
    assert PAIR.parse_many(texts) == PAIR.parse_many(TEXTS)


def test_the_sentence_vector_may_pool_all_nodes():
    model = tiny_model(attention=True)
    expected = torch.cat([direct(model, text).vector for text in TEXTS])
    np.testing.assert_allclose(model.encode(TEXTS), expected.numpy(), rtol=0, atol=1e-6)
    assert not np.allclose(model.encode(TEXTS), PAIR.encode(TEXTS), atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_still_give_float32(dtype):
    model = tiny_model().to(dtype)
    vectors = model.encode(TEXTS)
    assert vectors.dtype == np.float32
    if dtype == torch.float64:
        np.testing.assert_allclose(vectors, PAIR.encode(TEXTS), rtol=0, atol=1e-5)
    assert len(model.predict(PAIRS)) == len(PAIRS)


# words


def test_unknown_words_share_one_vector():
    vectors = PAIR.encode(["zebra", "quagga", "<unk>", "Dog", "dog"])
    assert np.array_equal(vectors[0], vectors[1])
    assert np.array_equal(vectors[0], vectors[2])
    assert np.array_equal(vectors[0], vectors[3])
    assert not np.allclose(vectors[0], vectors[4])


def test_lower_case_is_for_look_up_only():
    model = tiny_model(lower=True)
    assert np.array_equal(model.encode(["THE Dog"]), model.encode(["the dog"]))
    assert str(model.parse("THE Dog")) == "( THE Dog )"
    # lower-casing lengthens the first letter; the tree must still cut the text where it stands
    assert model.parse("İstanbul Dog ŞİŞ now").words == ("İstanbul", "Dog", "ŞİŞ", "now")


@pytest.mark.parametrize(
    "text", ["  the   dog\tsleeps \n", "the\u00a0dog\u2003sleeps", "the\r\ndog\u0085sleeps"]
)
def test_words_stand_between_white_space_of_any_kind(text):
    assert np.array_equal(PAIR.encode([text]), PAIR.encode(["the dog sleeps"]))
    assert PAIR.parse(text).words == ("the", "dog", "sleeps")


@pytest.mark.parametrize("separator", ["\x1c", "\x1d", "\x1e", "\x1f"])
def test_white_space_of_python_is_white_space(separator):
    # str.split and the tree count these as white space, so the tokenizer must
    text = f"the{separator}dog"
    assert np.array_equal(PAIR.encode([text]), PAIR.encode(["the dog"]))
    assert str(PAIR.parse(text)) == "( the dog )"


@pytest.mark.parametrize(
    "word", ["(", ")", "<&>", "👩‍👩‍👧", "a\u200bb", "\ufeff", "a\0b", "喜欢", "<pad>"]
)
def test_words_may_hold_any_other_character(word):
    assert PAIR.parse(f"the {word} sleeps").words == ("the", word, "sleeps")


def test_ids_follow_the_words_then_pad_then_unknown():
    tokenizer = whitespace_tokenizer(["b", "a"])
    assert tokenizer.get_vocab() == {"b": 0, "a": 1, "<pad>": 2, "<unk>": 3}
    assert tokenizer.encode("a c b").ids == [1, 3, 0]


def test_special_words_of_the_vocabulary_keep_their_rows():
    tokenizer = whitespace_tokenizer(["a", "<unk>", "<pad>", "b"])
    assert tokenizer.get_vocab_size() == 6
    assert tokenizer.encode("a b <pad> <unk> zebra").ids == [0, 3, 4, 5, 5]


def test_a_vocabulary_with_a_word_twice_is_refused():
    with pytest.raises(ValueError, match="'a'"):
        whitespace_tokenizer(["a", "b", "a"])


def test_word_vectors_start_small_and_special_ones_at_zero():
    model = SentenceModel(
        tiny_config(), whitespace_tokenizer([f"w{number}" for number in range(2000)])
    )
    words, special = model.embedding.weight[:2000], model.embedding.weight[2000:]
    assert words.std().item() == pytest.approx(0.01, rel=0.05)
    assert special.shape == (2, 5)
    assert special.count_nonzero() == 0


@pytest.mark.parametrize("tuned", [True, False])
def test_word_vectors_are_trained_only_if_tuned(tuned):
    config = tiny_config()
    config = dataclasses.replace(
        config, embedding=dataclasses.replace(config.embedding, tuned=tuned)
    )
    model = SentenceModel(config, whitespace_tokenizer(WORDS))
    assert model.embedding.weight.requires_grad == tuned
    assert all(parameter.requires_grad for parameter in model.encoder.parameters())


# trees


def test_parse_gives_the_encoders_tree():
    tree = PAIR.parse(TEXTS[1])
    assert isinstance(tree, Tree)
    assert tree.words == tuple(TEXTS[1].split())
    assert tree.order == tuple(direct(PAIR, TEXTS[1]).order[0].tolist())


def test_small_trees_print_by_themselves():
    assert str(PAIR.parse("the dog")) == "( the dog )"
    assert str(PAIR.parse("zebra")) == "zebra"


def test_implementations_agree():
    models = [tiny_model(impl=impl) for impl in ("exact", "reference")]
    assert models[0].parse_many(TEXTS) == models[1].parse_many(TEXTS)
    np.testing.assert_allclose(*(model.encode(TEXTS) for model in models), rtol=0, atol=1e-6)


# classes


def test_predict_pairs():
    predictions = PAIR.predict(PAIRS)
    assert len(predictions) == len(PAIRS)
    assert predictions == PAIR.predict(TEXTS, TEXTS[::-1])
    assert predictions == PAIR.predict([list(pair) for pair in PAIRS])
    with torch.no_grad():
        first = torch.cat([direct(PAIR, pair[0]).vector for pair in PAIRS])
        second = torch.cat([direct(PAIR, pair[1]).vector for pair in PAIRS])
        logits = PAIR.head(Encoding(first, None), Encoding(second, None))
    for prediction, expected in zip(predictions, logits.tolist(), strict=True):
        assert isinstance(prediction, Prediction)
        assert prediction.logits == pytest.approx(expected, abs=1e-5)
        assert list(prediction.probabilities) == ["neutral", "entailment", "contradiction"]
        weights = [math.exp(score - max(expected)) for score in expected]
        assert list(prediction.probabilities.values()) == pytest.approx(
            [weight / sum(weights) for weight in weights], abs=1e-5
        )
        assert sum(prediction.probabilities.values()) == pytest.approx(1, abs=1e-6)
        assert prediction.label == PAIR.labels[expected.index(max(expected))]
    assert len({prediction.label for prediction in predictions}) > 1


def test_the_order_within_a_pair_counts():
    (one,), (other,) = PAIR.predict([PAIRS[1]]), PAIR.predict([PAIRS[1][::-1]])
    assert one.logits != pytest.approx(other.logits, abs=1e-3)


def test_predict_single_sentences():
    predictions = SINGLE.predict(TEXTS, batch_size=2)
    with torch.no_grad():
        vectors = torch.cat([direct(SINGLE, text).vector for text in TEXTS])
        logits = SINGLE.head(Encoding(vectors, None))
    for prediction, expected in zip(predictions, logits.tolist(), strict=True):
        assert prediction.logits == pytest.approx(expected, abs=1e-5)
        assert prediction.label == ("bad", "good")[expected[1] > expected[0]]
        assert list(prediction.probabilities) == ["bad", "good"]
        assert sum(prediction.probabilities.values()) == pytest.approx(1, abs=1e-6)


def test_forward_is_what_predict_reports():
    first, second = [1, 2, 3, 4], [5, 6]
    with torch.no_grad():
        scores = PAIR(Sentences.of([first, first[:1], second, second])).output
    texts = [" ".join(WORDS[i] for i in row) for row in (first, first[:1], second)]
    expected = [p.logits for p in PAIR.predict([(texts[0], texts[2]), (texts[1], texts[2])])]
    np.testing.assert_allclose(scores.numpy(), expected, rtol=0, atol=1e-5)
    with torch.no_grad():
        scores = SINGLE(Sentences.of([first, first[:1]])).output
    expected = [p.logits for p in SINGLE.predict(texts[:2])]
    np.testing.assert_allclose(scores.numpy(), expected, rtol=0, atol=1e-5)


def test_gradients_reach_every_part_in_training():
    model = tiny_model().train()
    ids = [[1, 2, 3, 4], [5], [6, 7, 8]]
    model(Sentences.of(ids + ids[::-1])).output.square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.count_nonzero() > 0, name


# training mode


def results(model):
    return model.encode(TEXTS), model.parse_many(TEXTS), model.predict(PAIRS)


def test_training_mode_is_left_as_found_and_changes_no_result():
    expected = results(PAIR)
    model = tiny_model().train()
    state = torch.get_rng_state()
    statistics = model.head.batch_norm_in.running_mean.clone()
    vectors, trees, predictions = results(model)
    assert np.array_equal(vectors, expected[0])
    assert (trees, predictions) == expected[1:]
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(model.head.batch_norm_in.running_mean, statistics)


def test_parts_in_evaluation_mode_are_left_so():
    # a frozen batch normalisation, say, must not wake up because someone looked at a tree
    model = tiny_model().train()
    model.head.batch_norm_in.eval()
    results(model)
    assert not model.head.batch_norm_in.training
    assert model.head.training
    assert model.head.batch_norm_out.training
    model.eval()
    model.encoder.train()
    results(model)
    assert model.encoder.training
    assert not model.training


def test_a_refused_text_leaves_training_mode_as_found():
    model = tiny_model().train()
    with pytest.raises(ValueError, match="text 0 must hold at least one word"):
        model.encode([""])
    assert all(module.training for module in model.modules())


def test_gradients_stay_usable_after_encode():
    model = tiny_model().train()
    model.encode(TEXTS)
    model(Sentences.of([[1, 2, 3], [4]] * 2)).output.sum().backward()
    assert model.encoder.query.grad is not None


def test_threads_may_use_a_model_that_another_trains():
    expected = results(PAIR)
    model = tiny_model().train()
    modes = set()
    rest = threading.Event()

    def watch():
        while not rest.is_set():
            modes.update(module.training for module in model.modules())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: results(model), range(24)))
    finally:
        rest.set()
        watcher.join()
    assert modes == {True}
    for vectors, trees, predictions in found:
        assert np.array_equal(vectors, expected[0])
        assert (trees, predictions) == expected[1:]


def test_a_view_in_evaluation_mode_shares_everything_else():
    model = tiny_model().train()
    view = in_evaluation_mode(model)
    assert [name for name, _ in view.named_modules()] == [name for name, _ in model.named_modules()]
    assert not any(module.training for module in view.modules())
    assert all(a is b for a, b in zip(view.parameters(), model.parameters(), strict=True))
    assert all(a is b for a, b in zip(view.buffers(), model.buffers(), strict=True))
    # a part that is there twice is one part in the view as well
    twice = nn.Sequential(*[nn.Dropout()] * 2)
    assert len(list(in_evaluation_mode(twice).modules())) == 2


def compiled(module, how):
    """Return a module in training mode whose code is bound to it in some way."""
    if how == "in place":
        module.compile(backend="eager")
    elif how == "method":
        module.forward = torch.compile(module.forward, backend="eager")
    elif how == "bound":
        module.forward = module.forward.__func__.__get__(module)
    elif how == "script":
        return torch.jit.script(module)
    else:
        return torch.compile(module, backend="eager")
    return module


@pytest.mark.filterwarnings("ignore:`torch.jit.script")
@pytest.mark.parametrize("how", ["in place", "method", "bound", "script", "wrapped"])
def test_parts_bound_to_a_module_in_training_are_used_in_evaluation_mode(how):
    module = nn.Sequential(compiled(nn.Sequential(nn.Dropout(0.9)).train(), how))
    x = torch.ones(100)
    assert torch.equal(in_evaluation_mode(module)(x), x)
    assert not torch.equal(module(x), x)


# any iterable


@pytest.mark.parametrize(
    "wrap",
    [tuple, iter, lambda texts: (x for x in texts), lambda texts: map(str, texts), np.array],
    ids=["tuple", "iterator", "generator", "map", "array"],
)
def test_any_iterable_of_strings_is_taken(wrap):
    assert np.array_equal(PAIR.encode(wrap(TEXTS)), PAIR.encode(TEXTS))
    assert PAIR.parse_many(wrap(TEXTS)) == PAIR.parse_many(TEXTS)
    assert SINGLE.predict(wrap(TEXTS)) == SINGLE.predict(TEXTS)
    assert PAIR.predict(wrap(TEXTS), wrap(TEXTS[::-1])) == PAIR.predict(PAIRS)
    assert PAIR.predict(x for x in PAIRS) == PAIR.predict(PAIRS)


def test_an_open_file_is_taken(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    with open(path, encoding="utf-8") as file:
        assert SINGLE.predict(file) == SINGLE.predict(TEXTS)
    with open(path, "rb") as file, pytest.raises(ValueError, match="pass a list of strings"):
        SINGLE.predict(file)


def test_sequences_and_errors_of_iterables_are_passed_on():
    class Rows:
        def __getitem__(self, place):
            return TEXTS[place]

    assert SINGLE.predict(Rows()) == SINGLE.predict(TEXTS)

    def broken():
        yield TEXTS[0]
        raise TypeError("of its own")

    with pytest.raises(TypeError, match="of its own"):
        SINGLE.predict(broken())


def test_a_table_is_not_taken_for_the_names_of_its_columns():
    table = {"text": TEXTS}
    for use in (SINGLE.predict, SINGLE.encode, SINGLE.parse_many):
        with pytest.raises(TypeError, match="got dict; pass one of its columns"):
            use(table)


# wrong use


def test_one_string_in_place_of_a_list_is_refused():
    with pytest.raises(TypeError, match=r"got one string; pass \['the dog'\]"):
        PAIR.encode("the dog")
    with pytest.raises(TypeError, match=r"got one string; pass \['the dog'\]"):
        PAIR.parse_many("the dog")


@pytest.mark.parametrize("text", ["good", "good film", "g", ""])
def test_one_string_in_place_of_a_list_is_refused_by_predict(text):
    with pytest.raises((TypeError, ValueError), match=r"list.*got one string"):
        SINGLE.predict(text)
    with pytest.raises((TypeError, ValueError), match=r"list.*got one string"):
        PAIR.predict(text, text)
    with pytest.raises((TypeError, ValueError), match=r"list.*got one string"):
        PAIR.predict(list(text), text)


@pytest.mark.parametrize("empty", ["", " ", "\t\n", "\u00a0"])
def test_an_empty_text_is_refused_by_its_index(empty):
    texts = ["the dog sleeps", "now", empty, empty]
    for method in (PAIR.encode, PAIR.parse_many, SINGLE.predict):
        with pytest.raises(ValueError, match="text 2 must hold at least one word"):
            method(texts)
    with pytest.raises(ValueError, match="text 2 must hold at least one word"):
        PAIR.predict(["now"] * 4, texts)
    with pytest.raises(ValueError, match="must hold at least one word"):
        PAIR.parse(empty)


@pytest.mark.parametrize("wrong", [None, 5, b"now", ("a", "b"), ["now"]])
def test_what_is_no_string_is_refused(wrong):
    kind = type(wrong).__name__
    with pytest.raises(TypeError, match=f"list of strings, got {kind} in it"):
        PAIR.encode(["now", wrong])
    with pytest.raises(TypeError, match=f"one string, got {kind}"):
        PAIR.parse(wrong)


@pytest.mark.parametrize("wrong", [None, 5])
def test_what_is_no_list_is_refused(wrong):
    with pytest.raises(TypeError, match="list of strings"):
        PAIR.encode(wrong)
    with pytest.raises(TypeError, match="list of strings"):
        PAIR.parse_many(wrong)


def test_text_that_is_no_unicode_is_refused_by_its_index():
    # what Python makes of a byte that is no UTF-8, in arguments and file names
    with pytest.raises(ValueError, match=r"text 1 .*(Unicode|UTF-8)"):
        PAIR.encode(["now", "caf\udce9"])


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, None])
def test_a_batch_size_below_one_is_refused(batch_size):
    for call in (PAIR.encode, PAIR.parse_many):
        with pytest.raises((TypeError, ValueError), match="`batch_size` must be"):
            call(TEXTS, batch_size=batch_size)
    with pytest.raises((TypeError, ValueError), match="`batch_size` must be"):
        PAIR.predict(PAIRS, batch_size=batch_size)


@pytest.mark.parametrize(
    "arguments",
    [
        (["now", "the dog"],),
        ([("now",)],),
        ([("now", "the", "dog")],),
        ([("now", "the"), "dog"],),
        ([5],),
        ([None],),
    ],
)
def test_predict_refuses_what_are_no_pairs(arguments):
    with pytest.raises(ValueError, match=r"pairs: pass \(first, second\) tuples"):
        PAIR.predict(*arguments)


@pytest.mark.parametrize("wrong", [None, 5, b"now"])
def test_predict_refuses_pairs_of_other_things_than_strings(wrong):
    kind = type(wrong).__name__
    for pair in [("now", wrong), (wrong, "now")]:
        with pytest.raises((TypeError, ValueError), match=kind):
            PAIR.predict([pair])
    with pytest.raises((TypeError, ValueError), match=kind):
        PAIR.predict(["now"], [wrong])


def test_predict_refuses_lists_of_unequal_length():
    with pytest.raises(ValueError, match="two lists of strings of one length, got 2 and 1 items"):
        PAIR.predict(["now", "the dog"], ["now"])


def test_predict_refuses_pairs_together_with_second_sentences():
    with pytest.raises(ValueError, match="two lists of strings"):
        PAIR.predict(PAIRS, TEXTS)


@pytest.mark.parametrize("arguments", [([("now", "dog")],), (["now"], ["dog"]), ([5],), ([None],)])
def test_a_model_of_single_sentences_refuses_anything_else(arguments):
    with pytest.raises(ValueError, match="single sentences: pass a list of strings"):
        SINGLE.predict(*arguments)


# noise, and other encoders


def gumbel(*shape):
    return -torch.rand(shape).clamp_min(1e-6).log().neg().log()


def quiet_head(model):
    """Train the encoder's way, with a head and embedding that draw nothing."""
    model.eval()
    model.encoder.train()
    return model


def test_noise_of_single_sentences_reaches_the_encoder():
    model = quiet_head(tiny_model("single"))
    sentences = Sentences.of([[1, 2, 3, 4, 5, 6], [7, 8, 9], [1, 2]])
    noise = 5 * gumbel(3, 5, 5)
    with torch.no_grad():
        scores = model(sentences, Draw(noise)).output
        assert torch.equal(scores, model(sentences, Draw(noise)).output)
        expected = model.head(model.encode_batch(sentences, Draw(noise)))
        assert torch.equal(scores, expected)
        other = model(sentences, Draw(noise.flip(1, 2))).output
        assert not torch.allclose(scores, other, atol=1e-4)


@pytest.mark.parametrize("widths", [(6, 4), (4, 6)])
def test_noise_of_pairs_is_that_of_the_first_sentences_then_the_second(widths):
    model = quiet_head(tiny_model())
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


def test_the_encoder_comes_from_the_table(monkeypatch):
    from gumbeltree.parts import ENCODERS

    name = "gumbeltree.nn.encoders.gumbel_tree:GumbelTreeEncoder"
    monkeypatch.setitem(ENCODERS.table, "mine", name)
    assert np.array_equal(tiny_model(kind="single").encode(TEXTS), SINGLE.encode(TEXTS))
    config = tiny_config()
    encoder = dataclasses.replace(config.encoder, kind="mine")
    config = dataclasses.replace(config, encoder=encoder)
    model = SentenceModel(config, whitespace_tokenizer(WORDS))
    assert model.encode(TEXTS).shape == (len(TEXTS), 6)
    with pytest.raises(ValueError, match=r"`encoder\.kind`: unknown encoder 'min'"):
        dataclasses.replace(config, encoder=dataclasses.replace(encoder, kind="min"))
    with pytest.raises(TypeError, match="`encoder` of kind 'bag' must be BagConfig, got Encoder"):
        dataclasses.replace(config, encoder=dataclasses.replace(encoder, kind="bag"))


# texts that are cut, words that are unknown


def cut_to(model: SentenceModel, max_words: int) -> SentenceModel:
    model.config = dataclasses.replace(model.config, max_words=max_words)
    return model


def test_long_texts_are_cut_and_counted():
    model, single = cut_to(tiny_model(), 3), cut_to(tiny_model("single"), 3)
    short = [" ".join(text.split()[:3]) for text in TEXTS]
    counts = TextCounts()
    assert np.array_equal(model.encode(TEXTS, counts=counts), model.encode(short))
    expected = TextCounts(texts=6, words=13, unknown=2, cut=2, max_words=3)
    assert counts == expected
    for call in (model.parse_many, single.predict):
        counts = TextCounts()
        assert call(TEXTS, counts=counts) == call(short)
        assert counts == expected
    # both sentences of a pair count
    assert model.predict(TEXTS, TEXTS, counts=counts) == model.predict(short, short)
    assert counts == TextCounts(texts=18, words=39, unknown=6, cut=6, max_words=3)
    counts = TextCounts()
    assert str(model.parse(TEXTS[1], counts=counts)).split().count("(") == 2
    assert (counts.texts, counts.cut) == (1, 1)


def test_a_text_of_just_as_many_words_is_not_cut():
    counts = TextCounts()
    cut_to(tiny_model(), 5).encode(["the dog sleeps now .", "one"], counts=counts)
    assert counts == TextCounts(texts=2, words=6, unknown=0, cut=0, max_words=5)


def test_one_warning_a_call_if_texts_are_cut_and_nobody_counts(caplog):
    model = cut_to(tiny_model(), 3)
    with caplog.at_level(logging.WARNING):
        model.encode(["one"])
        model.encode(TEXTS, counts=TextCounts())
        assert not caplog.records
        model.predict(TEXTS, TEXTS)
    assert len(caplog.records) == 1
    assert "4 texts cut to 3 words" in caplog.text


def test_a_text_without_end_is_cut_before_it_is_tokenised():
    model = cut_to(tiny_model(), 4)
    reader = TextReader(model.tokenizer, 4)
    for filler in ("dog ", "dog", '"'):
        counts = TextCounts()
        text = " \n" + "the dog sleeps now " + filler * 1_000_000
        assert model.parse(text, counts=counts).words == ("the", "dog", "sleeps", "now")
        assert counts == TextCounts(1, 4, 0, 1, 4)
    (sentence,) = reader.read(["the " * 100_000])
    assert len(sentence.text) == reader.max_characters
    # white space has no end to lose
    counts = TextCounts()
    assert model.parse("now" + " " * 500_000, counts=counts).words == ("now",)
    assert model.parse(" " * 500_000 + "now", counts=counts).words == ("now",)
    assert counts.cut == 0
    with pytest.raises(ValueError, match=r"text 1 must hold at least one word, got '\s+...'; drop"):
        model.encode(["now", " " * 500_000])


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        (TextCounts(1204, 15310, 312, 1, 256),
         "1,204 texts, 15,310 words, 312 unknown (2.0 %), 1 text cut to 256 words"),
        (TextCounts(1, 1, 0, 0, 256), "1 text, 1 word"),
        (TextCounts(1, 1, 1, 1, 1), "1 text, 1 word, 1 unknown (100.0 %), 1 text cut to 1 word"),
        (TextCounts(3, 100_000, 2, 2, 1024),
         "3 texts, 100,000 words, 2 unknown (below 0.1 %), 2 texts cut to 1,024 words"),
        (TextCounts(), "0 texts"),
    ],
)  # fmt: skip
def test_counts_as_text(counts, text):
    assert str(counts) == text


# words that are words already


def test_pretokenized_text_is_split_at_white_space_only():
    words = ["don't", "do", "n't", "(", ")", "a/b", "go", "."]
    model = SentenceModel(tiny_config(), treebank_tokenizer(words, lower=True))
    assert model.parse("Don't go.").words == ("Do", "n't", "go", ".")
    text = "Don't\x1c-LRB- a\\/b\u00a0-RRB- go."
    tree = model.parse(text, pretokenized=True)
    assert tree.words == ("Don't", "(", "a/b", ")", "go.")
    counts = TextCounts()
    model.encode([text], pretokenized=True, counts=counts)
    model.parse_many([text], pretokenized=True, counts=counts)
    model.predict([text], [text], pretokenized=True, counts=counts)
    assert counts == TextCounts(texts=4, words=20, unknown=4, max_words=1024)
    direct = SentenceModel(tiny_config(), whitespace_tokenizer(words, lower=True)).eval()
    direct.load_state_dict(model.state_dict())
    expected = direct.encode(["don't ( a/b ) go."])
    assert np.array_equal(model.encode([text], pretokenized=True), expected)
    assert not np.allclose(model.encode([text]), expected, atol=1e-6)


@pytest.mark.parametrize("lower", [True, False])
def test_pretokenized_keeps_vocabulary_and_case(lower):
    for make in (whitespace_tokenizer, treebank_tokenizer):
        tokenizer = make(["Dog", "dog", "it's"], lower)
        derived = pretokenized(tokenizer)
        assert derived.get_vocab() == tokenizer.get_vocab()
        assert derived.encode("Dog it's").ids == [1 if lower else 0, 2]
        # the one it comes from is as before
        assert make is whitespace_tokenizer or len(tokenizer.encode("it's")) == 2


def test_pretokenized_of_other_normalisers():
    from tokenizers import Tokenizer, models, normalizers

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    assert pretokenized(tokenizer).encode("A a").ids == [1, 0]
    tokenizer.normalizer = normalizers.Lowercase()
    assert pretokenized(tokenizer).encode("A a").ids == [0, 0]
    inner = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.normalizer = normalizers.Sequence([normalizers.Strip(), inner])
    assert pretokenized(tokenizer).encode("A a").ids == [0, 0]


# bounded memory


@given(
    st.lists(st.integers(1, 30), max_size=40), st.integers(1, 9), st.integers(1, 60)
)  # fmt: skip
def test_batches_hold_each_sentence_once_within_the_budget(lengths, batch_size, words):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_ids, "BATCH_WORDS", words)
        found = list(batches(lengths, batch_size))
    assert sorted(i for batch in found for i in batch) == list(range(len(lengths)))
    for batch in found:
        assert 1 <= len(batch) <= batch_size
        longest = max(lengths[i] for i in batch)
        assert len(batch) * longest <= words or len(batch) == 1
    # no batch could have been joined with the next
    for one, other in itertools.pairwise(found):
        size = len(one) + 1
        assert size > batch_size or size * lengths[other[0]] > words


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 7), st.integers(1, 30))
def test_chunks_hold_each_row_once_within_the_budget(sizes, texts, characters):
    columns = [["x" * size for size in sizes], ["y" for _ in sizes]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_ids, "CHUNK_TEXTS", texts)
        patch.setattr(text_ids, "CHUNK_CHARACTERS", characters)
        found = list(chunks(columns))
    assert [row for rows in found for row in range(len(sizes))[rows]] == list(range(len(sizes)))
    for rows in found:
        count = rows.stop - rows.start
        assert 1 <= count <= texts
        assert count == 1 or sum(sizes[rows]) + count <= characters


@pytest.fixture
def tight(monkeypatch):
    """Small budgets; returns the shapes of the batches and the texts tokenised at once."""
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
    monkeypatch.setattr(text_ids, "BATCH_WORDS", 12)
    monkeypatch.setattr(text_ids, "CHUNK_TEXTS", 7)
    return shapes, read


def test_results_do_not_depend_on_chunks_and_memory_is_bounded(tight):
    shapes, read = tight
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(WORDS, n)) for n in generator.integers(1, 16, 60)]
    trees, vectors = PAIR.parse_many(texts), PAIR.encode(texts)
    predictions = PAIR.predict(texts, texts[::-1])
    assert max(read) == 7
    assert all(rows * width <= 12 or rows == 1 for rows, width in shapes)
    assert max(rows for rows, _ in shapes) > 2
    shapes.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_ids, "BATCH_WORDS", 2**14)
        patch.setattr(text_ids, "CHUNK_TEXTS", 4096)
        assert PAIR.parse_many(texts) == trees
        assert len(shapes) == 1
        np.testing.assert_allclose(PAIR.encode(texts), vectors, rtol=0, atol=1e-5)
        together = PAIR.predict(texts, texts[::-1])
    for one, other in zip(predictions, together, strict=True):
        assert one.label == other.label
        assert one.logits == pytest.approx(other.logits, abs=1e-4)
    for row in (0, 13, 59):
        assert trees[row] == PAIR.parse(texts[row])
        np.testing.assert_allclose(vectors[row], PAIR.encode([texts[row]])[0], rtol=0, atol=1e-5)


@pytest.mark.usefixtures("tight")
def test_an_empty_text_of_a_later_chunk_is_named_by_its_place_in_the_list():
    with pytest.raises(ValueError, match="text 11 must hold at least one word, got ''"):
        PAIR.encode(["now"] * 11 + ["", "now"])


def test_scores_that_are_no_numbers_are_refused():
    model = tiny_model("single")
    with torch.no_grad():
        model.head.output.bias[1] = torch.nan
    with pytest.raises(ValueError, match="gives NaN or infinite scores, at first for text 0"):
        model.predict(TEXTS)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("part", ["query", "cell.weight", "cell.bias", "leaf.bias_ih"])
def test_broken_weights_give_neither_trees_nor_vectors_nor_classes(part, value):
    # those of a broken query would look sound
    model = tiny_model("single")
    with torch.no_grad():
        model.encoder.get_parameter(part).view(-1)[-1] = value
    message = f"NaN or infinite numbers in encoder.{part}; its weights are broken: train it anew"
    for use in (model.encode, model.parse_many, model.predict):
        with pytest.raises(ValueError, match=message):
            use(TEXTS)


def test_numbers_of_weights_beyond_all_bounds_are_refused():
    model = tiny_model("single", leaf="affine")
    with torch.no_grad():
        # finite, though their sum is not, nor are the vectors of words in the vocabulary
        model.encoder.leaf.weight.fill_(3e38)
        model.embedding.weight[:] = 0
        model.embedding.weight[model.tokenizer.token_to_id("dog")] = 1
    texts = ["zebra", "now", "one dog barked", "dog"]
    for use in (model.encode, model.parse_many):
        with pytest.raises(ValueError, match="NaN or infinite numbers for text 2; its weights are"):
            use(texts)
        assert len(use(texts[:2])) == 2
