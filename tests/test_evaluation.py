"""Evaluation of models on labelled data."""

import dataclasses
import doctest
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import gumbeltree
from gumbeltree import data, evaluation
from gumbeltree.data import Split
from gumbeltree.data.device_split import DeviceSplit
from gumbeltree.device.graphs import Graphs
from gumbeltree.evaluation import Evaluator, evaluate, split_of
from gumbeltree.layout import Sentences
from gumbeltree.model import SentenceModel
from gumbeltree.nn.heads.class_evaluation import wilson
from gumbeltree.tasks.task import Example
from gumbeltree.text.ids import TextCounts
from gumbeltree.text.tokenizer import treebank_tokenizer
from tests.columns import FORMS
from tests.models import TEXTS, WORDS, tiny_model

PAIR, SINGLE = tiny_model("pair"), tiny_model("single")


def made(columns: int, lengths: list[int], classes: int, seed: int = 0) -> Split:
    """Return a split of random sentences and labels."""
    generator = np.random.default_rng(seed)
    count = len(lengths)
    words = generator.integers(0, len(WORDS) + 2, sum(lengths)).astype(np.uint32)
    sentences = np.stack([generator.permutation(count) for _ in range(columns)], 1)
    return Split(
        words,
        np.cumsum([0, *lengths]),
        sentences.astype(np.int32),
        generator.integers(0, classes, count),
    )


def by_hand(model: SentenceModel, split: Split) -> torch.Tensor:
    """Return the scores of each example, one at a time."""
    scores = []
    for sentences in split.sentences:
        ids = [split.words[split.starts[i] : split.starts[i + 1]].tolist() for i in sentences]
        with torch.no_grad():
            scores.append(model(Sentences.of(ids)).output)
    return torch.cat(scores).double()


@pytest.mark.parametrize(("model", "columns"), [(PAIR, 2), (SINGLE, 1)])
@pytest.mark.parametrize("words", [30, 16_384])
def test_evaluation_by_hand(model, columns, words):
    lengths = [3, 1, 5, 6, 10, 11, 15, 16, 20, 21, 30, 31, 2, 7, 7, 9]
    split = made(columns, lengths, len(model.labels))
    scores, gold = by_hand(model, split), torch.from_numpy(split.labels)
    predicted = scores.argmax(-1)
    found = evaluate(model, split, words=words)
    assert found.predictions.tolist() == predicted.tolist()
    assert found.predictions.dtype == found.confusion.dtype == np.int64
    assert found.count == len(lengths)
    assert found.correct == int((predicted == gold).sum())
    assert found.accuracy == found.correct / found.count
    assert found.loss == pytest.approx(float(F.cross_entropy(scores, gold)), abs=1e-5)
    expected = np.zeros_like(found.confusion)
    np.add.at(expected, (split.labels, predicted.numpy()), 1)
    assert np.array_equal(found.confusion, expected)
    assert not np.array_equal(found.confusion, found.confusion.T)
    report = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert report["accuracy"] == found.accuracy
    assert report["interval_95"] == list(found.interval) == list(wilson(found.correct, 16))
    assert report["confusion"] == expected.tolist()
    longest = split.lengths.max(1)
    assert sum(bucket.examples for bucket in found.by_length) == len(lengths)
    assert sum(bucket.correct for bucket in found.by_length) == found.correct
    for low, high, examples, correct in found.by_length:
        inside = (low <= longest) & (longest <= high)
        assert examples == inside.sum() > 0
        assert correct == (predicted == gold).numpy()[inside].sum()


def test_buckets_of_length():
    lengths = [1, 5, 6, 10, 11, 15, 16, 20, 21, 30, 31, 40, 41, 60, 61, 100, 1001, 1200]
    buckets = evaluate(SINGLE, made(1, lengths, 2)).by_length
    assert [(b.shortest, b.longest, b.examples) for b in buckets] == [
        (1, 5, 2), (6, 10, 2), (11, 15, 2), (16, 20, 2),
        (21, 30, 2), (31, 40, 2), (41, 60, 2), (61, 100, 2),
        (1001, None, 2),
    ]  # fmt: skip
    assert [b.name for b in buckets][-2:] == ["61-100", "1001+"]
    assert [b.name for b in evaluate(SINGLE, made(1, [7, 70], 2)).by_length] == ["6-10", "61-100"]


@settings(max_examples=12)
@given(st.lists(st.integers(0, 2), min_size=12, max_size=12), st.integers(0, 5))
def test_parts_add_up(owners, seed):
    split = made(2, [3, 1, 5, 6, 10, 11, 2, 7, 7, 9, 70, 4], 3, seed)
    whole = evaluate(PAIR, split)
    parts = [evaluate(PAIR, split, rows=np.flatnonzero(np.equal(owners, i))) for i in range(3)]
    for part, owner in zip(parts, range(3), strict=True):
        assert part.count == owners.count(owner)
        assert ((part.predictions >= 0) == np.equal(owners, owner)).all()
    combined = parts[0] + parts[1] + parts[2]
    assert np.array_equal(combined.predictions, whole.predictions)
    assert np.array_equal(combined.confusion, whole.confusion)
    assert combined.by_length == whole.by_length
    assert combined.loss == pytest.approx(whole.loss, abs=1e-5)


def test_rejects_parts_that_do_not_add_up():
    split = made(1, [3, 4, 5], 2)
    part = evaluate(SINGLE, split, rows=np.array([2, 0]))
    assert part.predictions[1] == -1
    with pytest.raises(ValueError, match="example 0"):
        part + evaluate(SINGLE, split, rows=np.array([0, 1]))
    with pytest.raises(ValueError, match="3 and 2"):
        part + evaluate(SINGLE, made(1, [3, 4], 2))


@pytest.mark.parametrize("label", [-1, 2])
def test_rejects_labels_beyond_the_classes(label):
    split = dataclasses.replace(made(1, [3, 4], 2), labels=np.array([0, label]))
    with pytest.raises(ValueError, match=r"0\.\.1"):
        evaluate(SINGLE, split)


def test_rejects_columns_that_do_not_fit_the_model():
    with pytest.raises(ValueError, match=r"PairHead reads 2 .* has 1"):
        evaluate(PAIR, made(1, [3, 4], 2))
    with pytest.raises(ValueError, match=r"SingleHead reads 1 .* has 2"):
        evaluate(SINGLE, made(2, [3, 4], 2))


def test_no_examples():
    split = made(1, [3, 4], 2)
    nothing = evaluate(SINGLE, split, rows=np.array([], dtype=int))
    assert (nothing.count, nothing.correct, nothing.by_length) == (0, 0, [])
    assert math.isnan(nothing.accuracy)
    assert math.isnan(nothing.loss)
    assert nothing.interval == (0, 1)
    whole = evaluate(SINGLE, split)
    assert (nothing + whole).loss == whole.loss
    assert math.isnan((nothing + nothing).loss)
    assert json.loads(json.dumps(nothing.as_dict(), allow_nan=False))["loss"] is None


def test_result_and_mode_are_independent_of_training():
    split = made(2, [3, 1, 5, 6, 10], 3)
    model = tiny_model().train()
    model.head.batch_norm_in.eval()
    state, found = torch.get_rng_state(), evaluate(model, split)
    assert found.loss == evaluate(PAIR, split).loss
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert not model.head.batch_norm_in.training
    model(Sentences.of([[1, 2], [3]] * 2)).output.sum().backward()


def test_batches_respect_the_word_budget(monkeypatch):
    seen = []
    batch = Split.batch
    monkeypatch.setattr(Split, "batch", lambda *a: seen.append(batch(*a)) or seen[-1])
    evaluate(PAIR, made(2, list(range(1, 21)), 3), words=60)
    assert len(seen) > 3
    for found in seen:
        rows, width = len(found.targets), found.sentences.layout.T
        assert 2 * rows * width <= 60 or rows == 1


# the interval


@pytest.mark.parametrize(
    ("correct", "count", "low", "high"),
    # from Newcombe (1998), table I, method 3; the last one by hand
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (5, 10, 0.2366, 0.7634),
    ],
)
def test_wilson_matches_published_values(correct, count, low, high):
    assert wilson(correct, count) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_solves_its_equation(case):
    correct, count = case
    low, high = wilson(correct, count)
    share = correct / count
    assert 0 <= low <= share <= high <= 1
    for end in (low, high):
        # the ends are where the share lies 1.96 standard errors away
        assert (share - end) ** 2 == pytest.approx(
            1.959964**2 * end * (1 - end) / count, rel=1e-4, abs=1e-12
        )
    mirrored = wilson(count - correct, count)
    assert (1 - high, 1 - low) == pytest.approx(mirrored, abs=1e-12)


# from texts


def test_split_of_stores_each_sentence_once():
    model = tiny_model()
    model.config = dataclasses.replace(model.config, max_words=4)
    examples = [
        Example((TEXTS[1], TEXTS[0]), "contradiction", (None, None)),
        Example((TEXTS[1], TEXTS[3]), "neutral", (None, None)),
        Example((TEXTS[0], TEXTS[1]), "entailment", (None, None)),
    ]
    counts = TextCounts()
    split = split_of(model, iter(examples), counts=counts)
    assert split.labels.tolist() == [2, 0, 1]
    assert split.sentences.tolist() == [[0, 1], [0, 2], [1, 0]]
    assert split.starts.tolist() == [0, 4, 5, 6]
    assert split.words.tolist() == [0, 1, 2, 3, 7, len(WORDS) + 1]
    assert counts == TextCounts(texts=3, words=6, unknown=1, cut=1, max_words=4)
    found = evaluate(model, split)
    predictions = model.predict([example.texts for example in examples], counts=TextCounts())
    assert [model.labels[i] for i in found.predictions] == [p.label for p in predictions]


def test_split_of_pretokenized_text_and_of_nothing():
    split = split_of(SINGLE, [Example(("the -LRB- dog",), "good", (None,))], pretokenized=True)
    assert split.words.tolist() == [0, len(WORDS) + 1, 1]
    nothing = split_of(SINGLE, [])
    assert len(nothing) == 0
    assert evaluate(SINGLE, nothing).count == 0


def test_split_of_rejects_unknown_labels():
    with pytest.raises(ValueError, match=r"'ugly' of 'the dog'.*bad, good"):
        split_of(SINGLE, [Example(("the dog",), "ugly", (None,))])


def test_one_transfer_from_the_device(monkeypatch):
    moved = []
    cpu = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: moved.append(x.shape) or cpu(x))
    split = made(1, [3, 1, 5, 6, 10], 2)
    assert len(list(data.by_length(split, 10))) > 2
    evaluate(SINGLE, split, words=10)
    # the merge itself may move the positions of merges, which have one dimension
    assert [shape for shape in moved if len(shape) > 1] == [(5, 2)]


# repeated evaluation


def check_same(found, expected):
    assert found.loss == expected.loss
    assert np.array_equal(found.predictions, expected.predictions)
    assert np.array_equal(found.confusion, expected.confusion)
    assert found.by_length == expected.by_length


def disturb(model, seed=0):
    """Change all weights where they are, as an optimizer does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_((torch.randn(p.shape, generator=generator) * 0.5).to(p))


@pytest.mark.parametrize("kind", ["pair", "single"])
def test_an_evaluator_uses_the_current_weights(kind):
    model = tiny_model(kind)
    split = made(2 if kind == "pair" else 1, [3, 1, 5, 6, 10, 11, 2, 7, 7, 9] * 3, 2)
    rows = np.arange(0, 30, 2)
    evaluator = Evaluator(model, split, 40, rows)
    first = evaluator()
    check_same(first, evaluate(model, split, words=40, rows=rows))
    check_same(evaluator(), first)
    assert (first.predictions[1::2] == -1).all()
    disturb(model)
    second = evaluator()
    check_same(second, evaluate(model, split, words=40, rows=rows))
    assert second.loss != first.loss
    assert not np.array_equal(second.predictions, first.predictions)


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")
@pytest.mark.parametrize(("kind", "leaf"), [("pair", "affine"), ("single", "bilstm")])
def test_captured_batches_are_evaluated_like_others(kind, leaf):
    # the code path of CUDA devices, in Triton's interpreter
    pytest.importorskip("triton")
    columns = 2 if kind == "pair" else 1
    split = made(columns, [3, 1, 5, 2, 4, 1], 2)
    expected = evaluate(tiny_model(kind, impl="exact", leaf=leaf), split, words=20)
    evaluator = Evaluator(tiny_model(kind, impl="fused", leaf=leaf), split, words=20)
    device = torch.device("cpu")
    evaluator.on_device, evaluator.graphs = DeviceSplit(evaluator.part, device), Graphs(device)
    evaluator.placed = [evaluator.on_device.place(rows, False) for rows in evaluator.batches]
    assert len(evaluator.placed) > 1
    found = evaluator()
    assert found.predictions.tolist() == expected.predictions.tolist()
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    assert len(evaluator.graphs.seen) > 1


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["pair", "single"])
def test_gpu_evaluations_are_reproducible(kind):
    pytest.importorskip("triton")
    torch.set_float32_matmul_precision("highest")
    model = tiny_model(kind, embedding_dim=12, hidden_dim=40, leaf="lstm").cuda()
    lengths = (np.random.default_rng(3).geometric(0.08, 400) % 40 + 1).tolist()
    split = made(2 if kind == "pair" else 1, lengths, 2)
    evaluator = Evaluator(model, split, 600)
    assert evaluator.on_device is not None
    passes = [evaluator() for _ in range(3)]
    # the first one runs, the second captures and the third replays
    assert evaluator.graphs.captured
    for later in passes[1:]:
        assert later.accuracy == passes[0].accuracy
        assert later.loss == pytest.approx(passes[0].loss, rel=1e-6)
        assert np.array_equal(later.predictions, passes[0].predictions)
    # the same on a CPU, except for ties
    plain = evaluate(tiny_model(kind, embedding_dim=12, hidden_dim=40, leaf="lstm"), split)
    assert (plain.predictions == passes[0].predictions).mean() > 0.98
    assert passes[0].loss == pytest.approx(plain.loss, rel=1e-2)
    disturb(model)
    changed = evaluator()
    assert changed.loss == pytest.approx(evaluate(model, split, words=600).loss, rel=1e-6)
    assert changed.loss != passes[0].loss
    # other settings of torch need another graph
    with torch.autocast("cuda", torch.bfloat16):
        narrow = [evaluator() for _ in range(3)]
    assert any(torch.bfloat16 in settings for _, settings in evaluator.graphs.captured)
    assert narrow[0].loss == pytest.approx(narrow[2].loss, rel=1e-6)
    assert narrow[0].loss == pytest.approx(changed.loss, rel=0.2)
    assert narrow[0].loss != changed.loss
    assert evaluator().loss == pytest.approx(changed.loss, rel=1e-6)


# texts in memory


@pytest.mark.parametrize("form", FORMS)
def test_evaluates_texts_in_every_form(form):
    make = FORMS[form]
    labels = ["good", "bad", "good", "good", "bad", "bad"]
    found = gumbeltree.evaluate(SINGLE, make(TEXTS), make(labels))
    examples = [Example((text,), label, (None,)) for text, label in zip(TEXTS, labels, strict=True)]
    check_same(found, evaluate(SINGLE, split_of(SINGLE, examples)))
    assert found.answers() == [p.label for p in SINGLE.predict(TEXTS)]
    assert repr(found) == f"<ClassEvaluation: {found.summary()}>"


def test_evaluates_pairs_of_texts():
    labels = ["neutral", "entailment", "neutral"]
    pairs = list(zip(TEXTS[:3], TEXTS[3:], strict=True))
    expected = evaluate(PAIR, iter(pairs), labels)
    check_same(evaluate(PAIR, TEXTS[:3], labels, TEXTS[3:]), expected)
    assert expected.answers() == [p.label for p in PAIR.predict(pairs)]
    with pytest.raises(ValueError, match="reads single sentences"):
        evaluate(SINGLE, pairs, labels)


def test_evaluates_pretokenized_texts():
    model = tiny_model("single")
    model.tokenizer = treebank_tokenizer(WORDS)
    # split at punctuation, or not
    texts = ["the dog sleeps all night."], ["good"]
    assert evaluate(model, *texts).by_length[0].name == "6-10"
    assert evaluate(model, *texts, pretokenized=True).by_length[0].name == "1-5"


def test_rejects_texts_without_labels_and_splits_with_labels():
    with pytest.raises(ValueError, match="needs `labels`"):
        evaluate(SINGLE, TEXTS)
    with pytest.raises(ValueError, match="no texts to evaluate the model on"):
        evaluate(SINGLE, [], [])
    with pytest.raises(ValueError, match="omit `labels`"):
        evaluate(SINGLE, made(1, [3], 2), ["good"])
    with pytest.raises(ValueError, match=r"'ugly'.*bad, good"):
        evaluate(SINGLE, TEXTS[:1], ["ugly"])


def test_rejects_models_of_the_numpy_runtime():
    model = gumbeltree.load("sst2-100d", runtime="numpy")
    with pytest.raises(TypeError, match='load it with runtime="torch"'):
        evaluate(model, TEXTS[:1], ["positive"])


@pytest.mark.parametrize("name", ["sst2-100d", Path("sst2-100d")])
def test_rejects_names_of_models(name):
    with pytest.raises(TypeError, match=r"pass gumbeltree\.load\('sst2-100d'\)"):
        evaluate(name, TEXTS[:1], ["positive"])


def test_the_example_runs():
    results = doctest.testmod(evaluation)
    assert results.attempted == 4
    assert results.failed == 0
