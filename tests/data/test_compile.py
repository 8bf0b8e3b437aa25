"""From a task's files to ids, vocabulary and vectors, and the file that keeps them."""

import dataclasses
import gzip
import json
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models

from gumbeltree.config import load_recipe, with_settings
from gumbeltree.data import compile as module
from gumbeltree.data.compile import prepare, vocabulary, with_labels
from gumbeltree.data.prepared import check_fit, load_prepared, save_prepared
from gumbeltree.text.files import BadLineError
from gumbeltree.text.tokenizer import pretokenized, treebank_tokenizer, whitespace_tokenizer
from tests.models import told


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("GUMBELTREE_HOME", str(tmp_path / "home"))


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "data"
    path.mkdir()
    return path


def written(path, *lines):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def recipe_of(name, *changes):
    return with_settings(load_recipe(name), ["embedding_dim=2", *changes])


def words_of(prepared, name):
    """The words of each example by way of the vocabulary, and its label."""
    split, token = prepared.splits[name], prepared.tokenizer.id_to_token
    batch = split.batch(range(len(split)))
    sentences, columns = told(batch.sentences), split.sentences.shape[1]
    examples = []
    for row in range(len(split)):
        texts = [
            " ".join(token(i) for i in sentences[row + column * len(split)])
            for column in range(columns)
        ]
        examples.append((*texts, prepared.labels[int(batch.targets[row])]))
    return examples


def counts(prepared, name):
    about = prepared.report["splits"][name]
    return tuple(about[key] for key in ("examples", "words", "unknown", "cut", "bad"))


# snli

SNLI = [
    {"gold_label": "neutral", "sentence1": "A dog's ball.", "sentence2": "It isn't red!"},
    {"gold_label": "-", "sentence1": "unseen", "sentence2": "unseen"},
    {"gold_label": "entailment", "sentence1": "A dog's ball.", "sentence2": "A ball."},
]
SNLI_DEV = {"gold_label": "contradiction", "sentence1": "A cat.", "sentence2": "a DOG cat"}


@pytest.fixture
def snli(folder):
    # trees are only for analysis: a bad one must not matter
    records = [{**record, "sentence1_binary_parse": "( ( bad"} for record in SNLI]
    written(folder / "snli_1.0_train.jsonl", *map(json.dumps, records))
    written(folder / "snli_1.0_dev.jsonl", json.dumps(SNLI_DEV))
    return folder


def test_snli(snli):
    prepared = prepare(recipe_of("snli-100d"), snli)
    assert list(prepared.splits) == ["train", "dev"]
    assert (prepared.labels, prepared.pair) == (("neutral", "entailment", "contradiction"), True)
    assert words_of(prepared, "train") == [
        ("a dog 's ball .", "it is n't red !", "neutral"),
        ("a dog 's ball .", "a ball .", "entailment"),
    ]
    assert words_of(prepared, "dev") == [("a <unk> .", "a dog <unk>", "contradiction")]
    # a premise that comes twice is kept once
    assert prepared.splits["train"].sentences.tolist() == [[0, 1], [0, 2]]
    assert counts(prepared, "train") == (2, 5 + 5 + 5 + 3, 0, 0, 0)
    assert counts(prepared, "dev") == (1, 6, 2, 0, 0)
    assert prepared.report["splits"]["train"]["dropped"] == {"without a gold label": 1}
    assert prepared.report["splits"]["train"]["labels"] == {"entailment": 1, "neutral": 1}
    assert prepared.report["vocabulary"] == {"training": 10, "extra": 0}
    assert prepared.report["vectors"] == {}
    assert prepared.vectors is None
    assert prepared.splits["train"].words.dtype == np.uint16


def test_plain_text_gets_the_ids_that_the_model_will_give_it(snli):
    prepared = prepare(recipe_of("snli-100d"), snli)
    split = prepared.splits["train"]
    for row, record in enumerate([SNLI[0], SNLI[2]]):
        batch = split.batch([row])
        for ids, name in zip(told(batch.sentences), ("sentence1", "sentence2"), strict=True):
            assert prepared.tokenizer.encode(record[name]).ids == ids


def test_text_may_keep_its_capitals(snli):
    prepared = prepare(recipe_of("snli-100d", "lower=false"), snli)
    assert words_of(prepared, "train")[1] == ("A dog 's ball .", "A ball .", "entailment")
    assert words_of(prepared, "dev") == [("A <unk> .", "<unk> <unk> <unk>", "contradiction")]


def test_snli_may_be_packed(snli):
    plain = prepare(recipe_of("snli-100d"), snli).fingerprint()
    path = snli / "snli_1.0_train.jsonl"
    path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert prepare(recipe_of("snli-100d"), snli).fingerprint() == plain


# sst


@pytest.fixture
def sst(folder):
    written(folder / "trees/train.txt", "(3 (2 A) (4 (3 good) (2 film)))", "(0 (1 -LRB-) (2 B.C.))")
    written(folder / "trees/dev.txt", "(1 (2 a) (1 bad))", "(2 so (so))", "(2 (2 so) (2 so))")
    written(folder / "trees/test.txt", "(4 (2 Good) (2 don't))")
    return folder


def test_sst2(sst):
    with pytest.raises(BadLineError, match=r"dev\.txt, line 2: expected a word or two children"):
        prepare(recipe_of("sst2"), sst)
    prepared = prepare(recipe_of("sst2"), sst, skip_bad=True)
    assert prepared.labels == ("negative", "positive")
    # every phrase of the training trees that is not neutral, from the bottom up
    assert words_of(prepared, "train") == [
        ("good", "positive"),
        ("good film", "positive"),
        ("a good film", "positive"),
        ("(", "negative"),
        ("( b.c.", "negative"),
    ]
    # all splits give words
    assert words_of(prepared, "dev") == [("a bad", "negative")]
    assert words_of(prepared, "test") == [("good don't", "positive")]
    assert counts(prepared, "dev") == (1, 2, 0, 0, 1)
    assert prepared.report["splits"]["dev"]["dropped"] == {"neutral": 1}
    assert "dev.txt, line 2" in prepared.report["splits"]["dev"]["first_bad"][0]
    assert prepared.report["splits"]["train"]["dropped"] == {"neutral": 3}


def test_words_of_treebanks_keep_their_ids_in_plain_text(sst):
    prepared = prepare(recipe_of("sst2"), sst, skip_bad=True)
    # the model will split plain text as the treebank does, and finds the same words
    assert prepared.tokenizer.encode("A good film").ids == [
        prepared.tokenizer.token_to_id(word) for word in ("a", "good", "film")
    ]
    assert prepared.tokenizer.encode("(don't)").tokens[0] == "("
    assert len(prepared.tokenizer.encode("don't").ids) == 2
    # but text that is in words already is read word by word, as here
    words = pretokenized(prepared.tokenizer)
    batch = prepared.splits["test"].batch([0])
    assert words.encode("Good don't").ids == told(batch.sentences)[0]
    assert words.get_vocab() == prepared.tokenizer.get_vocab()


def test_sst5(sst):
    prepared = prepare(recipe_of("sst5", "vocabulary=train"), sst, skip_bad=True)
    assert prepared.labels[0] == "very negative"
    assert counts(prepared, "train")[:2] == (8, 4 + 5 + 1 + 2 - 1 + 1)
    assert words_of(prepared, "test") == [("good <unk>", "very positive")]
    assert words_of(prepared, "dev") == [("a <unk>", "negative"), ("<unk> <unk>", "neutral")]
    assert counts(prepared, "dev")[:3] == (2, 4, 3)


# sick


def test_sick(folder):
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
    written(
        folder / "SICK_train.txt",
        header,
        "1\tA dog runs\tA dog\t4\tENTAILMENT",
        "2\ta\tb\t1\tNEUTRAL",
    )
    written(folder / "SICK_trial.txt", header, "3\tA dog\tA cat\t1\tCONTRADICTION")
    prepared = prepare(recipe_of("sick"), folder)
    assert words_of(prepared, "train") == [
        ("a dog runs", "a dog", "entailment"),
        ("a", "b", "neutral"),
    ]
    assert words_of(prepared, "dev") == [("a dog", "a <unk>", "contradiction")]


# listops and demo


def test_listops_from_files(folder):
    written(folder / "train_d20s.tsv", "5\t( ( ( [SM 2 ) 3 ) ] )", "3\t[MAX 2 3 ]")
    written(folder / "test_d20s.tsv", "9\t9")
    prepared = prepare(recipe_of("listops", "dev_fraction=0.5", "vocabulary=all"), folder)
    assert sorted(words_of(prepared, "train") + words_of(prepared, "dev")) == [
        ("[MAX 2 3 ]", "3"),
        ("[SM 2 3 ]", "5"),
    ]
    assert words_of(prepared, "test") == [("9", "9")]
    assert prepared.labels == tuple("0123456789")


def test_brackets_of_listops_are_not_checked(folder):
    # only analysis reads the trees
    path = written(folder / "train.tsv", "5\t( ( [SM 2 ( 3 ] ) ) )", "3\t3", "4\t4")
    prepared = prepare(recipe_of("listops", "dev_fraction=0.4", "test_fraction=0"), path)
    assert sum(map(len, prepared.splits.values())) == 3


@pytest.mark.parametrize(
    ("name", "shares"), [("listops", {"dev": 10, "test": 10}), ("demo", {"dev": 20, "test": 40})]
)
def test_generated(name, shares):
    prepared = prepare(recipe_of(name, "generate=200"))
    assert {split: len(prepared.splits[split]) for split in prepared.splits} == {
        "train": 200 - sum(shares.values()),
        **shares,
    }
    task = module.make_task(recipe_of(name))
    for seed in (0, 1):
        every = prepare(recipe_of(name, "generate=200", "vocabulary=all", f"split_seed={seed}"))
        found = [example for split in every.splits for example in words_of(every, split)]
        made = [(*example.texts, example.label) for example in task.generate(200, seed)]
        assert sorted(found) == sorted(made)
        assert (words_of(every, "train") == words_of(prepared, "train")) == (seed == 0)


def test_nothing_to_generate(folder):
    with pytest.raises(FileNotFoundError, match="expected the demo training file, got none"):
        prepare(recipe_of("demo", "generate=0"))
    with pytest.raises(FileNotFoundError, match="no data: expected the snli training file"):
        prepare(recipe_of("snli-100d"))
    written(folder / "snli_1.0_dev.jsonl", json.dumps(SNLI_DEV))
    with pytest.raises(FileNotFoundError, match="data: expected the snli training file"):
        prepare(recipe_of("snli-100d"), folder)


# tables

ROWS = [("the good film", "pos"), ("a bad film", "neg"), ("the film", "pos"), ("bad bad", "neg")]


def table(folder, name="train.csv", rows=ROWS, columns=("text", "label")):
    lines = [columns, *rows]
    if name.endswith(".jsonl"):
        return written(
            folder / name, *(json.dumps(dict(zip(columns, row, strict=True))) for row in rows)
        )
    return written(folder / name, *(("," if "csv" in name else "\t").join(line) for line in lines))


def text_recipe(*changes):
    return recipe_of("text", "dev_fraction=0", "test_fraction=0", *changes)


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_tables(folder, kind):
    table(folder, f"train.{kind}")
    table(folder, f"valid.{kind}", [("a new film", "pos")])
    prepared = prepare(text_recipe(), folder)
    assert prepared.labels == ("neg", "pos")
    assert words_of(prepared, "train") == ROWS
    assert words_of(prepared, "dev") == [("a <unk> film", "pos")]
    assert not prepared.pair
    recipe = with_labels(text_recipe(), prepared)
    assert recipe.model.head.labels == ("neg", "pos")
    assert (
        dataclasses.replace(
            recipe, model=dataclasses.replace(recipe.model, head=text_recipe().model.head)
        )
        == text_recipe()
    )


def test_a_table_of_pairs(folder):
    path = table(
        folder, "mine.tsv", [("a b", "c.", "x"), ("d", "a b", "y")], ("text", "text2", "label")
    )
    dev = table(folder, "other.csv", [("c", "d d", "y")], ("text2", "text", "label"))
    test = table(
        folder, "third.jsonl", [("b", "b", "x")], (*("label", "text", "text2")[1:], "label")
    )
    recipe = recipe_of("text-pair", "dev_fraction=0", "test_fraction=0")
    prepared = prepare(recipe, path, dev=dev, test=str(test))
    assert prepared.pair
    assert words_of(prepared, "train") == [("a b", "c .", "x"), ("d", "a b", "y")]
    assert words_of(prepared, "dev") == [("d d", "c", "y")]
    assert words_of(prepared, "test") == [("b", "b", "x")]
    assert prepared.splits["train"].sentences.tolist() == [[0, 1], [2, 0]]


def test_columns_of_a_table_are_named(folder):
    path = table(folder, rows=[("a", "x"), ("b", "y")], columns=("review", "stars"))
    with pytest.raises(BadLineError, match="expected a column 'text', got columns 'review', "):
        prepare(text_recipe(), path, dev=path)
    prepared = prepare(text_recipe("data.text=review", "data.label=stars"), path, dev=path)
    assert words_of(prepared, "dev") == [("a", "x"), ("b", "y")]
    for change in ("data.text=''", "data.label=''"):
        with pytest.raises(ValueError, match=r"needs the names of its columns.*pass --text and"):
            prepare(text_recipe(change), path, dev=path)


def test_words_of_a_table_may_be_given(folder):
    path = table(folder, rows=[("can't (stop)", "x"), ("c. d", "y")])
    plain = prepare(text_recipe(), path, dev=path)
    assert words_of(plain, "train") == [("ca n't ( stop )", "x"), ("c. d", "y")]
    kept = prepare(text_recipe("pretokenized=true"), path, dev=path)
    assert words_of(kept, "train") == [("can't (stop)", "x"), ("c. d", "y")]
    # plain text is split as the recipe says, which never makes such words
    assert kept.tokenizer.encode("can't").tokens == ["<unk>", "<unk>"]
    assert kept.tokenizer.get_vocab().keys() == {"can't", "(stop)", "c.", "d", "<pad>", "<unk>"}


def test_labels_that_are_given(folder):
    path = table(folder)
    prepared = prepare(text_recipe("head.labels=['pos', 'neg']"), path, dev=path)
    assert prepared.labels == ("pos", "neg")
    assert prepared.splits["train"].labels.tolist() == [0, 1, 0, 1]
    with pytest.raises(
        BadLineError, match=r"\.csv, line 3: expected one of the labels pos, got 'neg'"
    ):
        prepare(text_recipe("head.labels=['pos']"), path, dev=path)


def test_one_label_is_not_enough(folder):
    path = table(folder, rows=[("a", "x"), ("b", "x")])
    with pytest.raises(ValueError, match="at least two labels in the training data, got x;"):
        prepare(text_recipe(), path, dev=path)


def test_a_label_of_another_split_is_refused(folder):
    path = table(folder)
    dev = table(folder, "dev.csv", [("a", "pos"), ("b", "good")])
    with pytest.raises(
        BadLineError, match=r"dev\.csv, line 3: expected one of the labels neg, pos, got 'good'"
    ):
        prepare(text_recipe(), path, dev=dev)
    prepared = prepare(text_recipe(), path, dev=dev, skip_bad=True)
    assert counts(prepared, "dev")[0] == 1
    assert counts(prepared, "dev")[-1] == 1


def test_no_dev(folder):
    path = table(folder)
    with pytest.raises(FileNotFoundError, match=r"--dev, or --set dev_fraction=0\.1 to take it"):
        prepare(text_recipe(), path)
    assert set(prepare(text_recipe("dev_fraction=0.25"), path).splits) == {"train", "dev"}


def test_fractions(folder):
    rows = [(f"word{n} other{n}", "xyz"[n % 3]) for n in range(100)]
    path = table(folder, rows=rows)
    recipe = recipe_of("text", "dev_fraction=0.2", "test_fraction=0.1")
    prepared = prepare(recipe, path)
    assert {name: len(split) for name, split in prepared.splits.items()} == {
        "train": 70,
        "dev": 20,
        "test": 10,
    }
    # by the numbers of the words: dev and test have none of their own in the vocabulary
    assert prepared.report["vocabulary"]["training"] == 140
    assert counts(prepared, "dev") == (20, 40, 40, 0, 0)
    assert prepare(recipe, path).fingerprint() == prepared.fingerprint()
    everything = prepare(with_settings(recipe, ["vocabulary=all"]), path)
    parts = {name: set(words_of(everything, name)) for name in everything.splits}
    assert sum(map(len, parts.values())) == 100
    assert set.union(*parts.values()) == set(rows)
    other = prepare(
        recipe_of(
            "text", "dev_fraction=0.2", "test_fraction=0.1", "vocabulary=all", "split_seed=1"
        ),
        path,
    )
    assert set(words_of(other, "dev")) != parts["dev"]
    # the training seed divides nothing
    same = prepare(with_settings(recipe, ["training.seed=5"]), path)
    assert same.fingerprint() == prepared.fingerprint()


def test_fractions_are_only_for_what_is_not_there(folder):
    table(folder, rows=[(f"w{n}", "xy"[n % 2]) for n in range(10)])
    table(folder, "test.csv", [("w1", "x")])
    prepared = prepare(recipe_of("text", "dev_fraction=0.2", "test_fraction=0.5"), folder)
    assert {name: len(split) for name, split in prepared.splits.items()} == {
        "train": 8,
        "dev": 2,
        "test": 1,
    }


def test_too_few_examples_for_a_fraction(folder):
    path = table(folder)
    with pytest.raises(ValueError, match="expected enough examples for dev, got 4 in all"):
        prepare(recipe_of("text", "dev_fraction=0.1", "test_fraction=0"), path)
    with pytest.raises(ValueError, match="fractions"):
        prepare(recipe_of("text", "dev_fraction=0.8", "test_fraction=0.8"), path)


def test_bad_lines_survive_a_division(folder):
    path = table(folder, rows=[*ROWS, ("", "pos"), (" ", "neg"), *ROWS[:2], ("",)])
    with pytest.raises(BadLineError, match=r"line 6: expected text as column 'text'"):
        prepare(recipe_of("text", "dev_fraction=0.3", "test_fraction=0"), path)
    prepared = prepare(
        recipe_of("text", "dev_fraction=0.3", "test_fraction=0"), path, skip_bad=True
    )
    assert counts(prepared, "train")[0] + counts(prepared, "dev")[0] == 6
    assert counts(prepared, "train")[-1] == 2
    assert len(prepared.report["splits"]["train"]["first_bad"]) == 2
    assert prepared.report["splits"]["train"]["dropped"] == {"blank lines": 1}
    assert "2 bad lines skipped" in "\n".join(prepared.lines())


def test_empty_files(folder):
    path = table(folder)
    dev = table(folder, "dev.csv", [])
    with pytest.raises(ValueError, match=r"dev\.csv: expected examples, got none \(0 ex"):
        prepare(text_recipe(), path, dev=dev)
    empty = written(folder / "empty.csv")
    with pytest.raises(ValueError, match=r"empty\.csv: expected examples, got none"):
        prepare(text_recipe(), empty, dev=dev)


def test_missing_files(folder):
    with pytest.raises(NotADirectoryError, match="got nothing there"):
        prepare(text_recipe(), folder / "no.csv")
    with pytest.raises(FileNotFoundError, match=r"no\.csv: expected a file"):
        prepare(text_recipe(), table(folder), dev=folder / "no.csv")
    with pytest.raises(FileNotFoundError, match=r"expected train\.tsv"):
        prepare(text_recipe(), folder / "..")


# cutting


def test_long_sentences_are_cut(folder):
    rows = [("a b c d e", "x"), ("a b c", "y"), ("f g h i", "x"), ("a b c d e", "y")]
    path = table(folder, rows=rows)
    prepared = prepare(text_recipe("max_words=3"), path, dev=path)
    assert [text for text, _ in words_of(prepared, "train")] == ["a b c", "a b c", "f g h", "a b c"]
    # a sentence that comes twice is cut once
    assert counts(prepared, "train") == (4, 12, 0, 2, 0)
    assert "2 sentences cut to 3 words" in next(prepared.lines())
    assert prepared.max_words == 3


# the vocabulary


def test_the_most_frequent_words_come_first():
    assert vocabulary(["b b a", "c b <unk> <pad>"], True, False) == ["b", "a", "c"]
    assert vocabulary(["Don't B", "b"], False, True) == ["b", "do", "n't"]
    assert vocabulary(["B b"], True, False) == ["B", "b"]


def test_ids_follow_the_vocabulary(folder):
    prepared = prepare(text_recipe(), table(folder), dev=table(folder))
    ids = prepared.tokenizer.get_vocab()
    # film and bad three times, the twice, others once, in order of the alphabet
    assert sorted(ids, key=ids.__getitem__) == ["bad", "film", "the", "a", "good", "<pad>", "<unk>"]
    assert sorted(ids.values()) == list(range(7))


def test_words_of_all_splits(folder):
    path = table(folder)
    dev = table(folder, "dev.csv", [("new film", "pos")])
    known = prepare(text_recipe("vocabulary=all"), path, dev=dev)
    assert words_of(known, "dev") == [("new film", "pos")]
    assert known.report["vocabulary"]["training"] == 6
    assert counts(known, "dev")[2] == 0
    assert counts(prepare(text_recipe(), path, dev=dev), "dev")[2] == 1


def test_unknown_words_are_counted_as_often_as_they_come(folder):
    path = table(folder)
    dev = table(
        folder, "dev.csv", [("new new film", "pos"), ("film", "neg"), ("new new film", "neg")]
    )
    prepared = prepare(text_recipe(), path, dev=dev)
    assert counts(prepared, "dev") == (3, 7, 4, 0, 0)
    assert "dev: 3 examples, 7 words, 4 unknown (57.1%)" in list(prepared.lines())


def test_more_words(folder):
    path = table(folder)
    dev = table(folder, "dev.csv", [("new film", "pos")])
    prepared = prepare(
        text_recipe(), path, dev=dev, more_words=["new", "film", "old", "new", "<pad>"]
    )
    assert prepared.report["vocabulary"] == {"training": 5, "extra": 2}
    assert words_of(prepared, "dev") == [("new film", "pos")]
    assert prepared.tokenizer.token_to_id("old") == 6


def test_a_large_vocabulary_takes_32_bits(folder):
    path = table(folder)
    more = [f"word{n}" for n in range(2**16)]
    # five words, <pad> and <unk>: the last id that 16 bits hold is 65,535
    for count, kind in ((2**16 - 7, np.uint16), (2**16 - 6, np.uint32)):
        prepared = prepare(text_recipe(), path, dev=path, more_words=more[:count])
        assert prepared.splits["train"].words.dtype == kind
        assert words_of(prepared, "train") == ROWS


def test_texts_in_several_chunks(folder, monkeypatch):
    path = table(folder, rows=[*ROWS, ("new words here too", "pos")])
    whole = prepare(text_recipe("max_words=2"), path, dev=path)
    monkeypatch.setattr(module, "CHUNK", 2)
    parts = prepare(text_recipe("max_words=2"), path, dev=path)
    assert parts.fingerprint() == whole.fingerprint()
    assert parts.report == whole.report


# word vectors


def vectors(folder, *lines):
    return written(folder / "glove.txt", *lines)


def glove(folder):
    return vectors(
        folder,
        "film 1 2",
        "The 3 3",
        "UN 4 4",
        "of 5 5",
        "the 6 6",
        "bad 7 7.5",
        "rare 8 8",
        "x 9 9",
    )


def test_vectors(folder):
    path = table(folder)
    prepared = prepare(
        text_recipe("extra_words=0", "missing_vectors=zero"), path, glove(folder), dev=path
    )
    # bad, film, the, a, good, <pad>, <unk>
    expected = [[7, 7.5], [1, 2], [6, 6], [0, 0], [0, 0], [0, 0], [0, 0]]
    assert prepared.vectors.tolist() == expected
    assert prepared.vectors.dtype == np.float32
    # train and dev are the same file of 10 words, with one `a` and one `good`
    assert prepared.report["vectors"] == {
        "file": "glove.txt",
        "types": 3,
        "all_types": 5,
        "tokens": 16,
        "all_tokens": 20,
    }
    assert list(prepared.lines())[-1] == (
        "vectors: for 3 of 5 words of the data, 80.0% of their occurrences; others zero"
    )


def test_coverage_counts_all_splits_and_repeated_sentences(folder):
    path = table(folder, rows=[*ROWS, ("the film", "neg")])
    dev = table(folder, "dev.csv", [("good good new", "pos")])
    prepared = prepare(text_recipe("extra_words=3"), path, glove(folder), dev=dev)
    # 12 words of train and 2 known ones of dev; `a` once, `good` three times
    assert prepared.report["vectors"] == {
        "file": "glove.txt",
        "types": 3,
        "all_types": 5,
        "tokens": 10,
        "all_tokens": 14,
    }


def test_words_without_a_vector_may_start_at_random(folder):
    path = table(folder)
    matrices = [
        prepare(
            text_recipe("extra_words=0", "missing_vectors=random", f"split_seed={seed}"),
            path,
            glove(folder),
            dev=path,
        ).vectors
        for seed in (0, 0, 1)
    ]
    assert matrices[0][:3].tolist() == [[7, 7.5], [1, 2], [6, 6]]
    assert (matrices[0][3:5] != 0).all()
    assert np.abs(matrices[0][3:5]).max() < 0.06
    assert matrices[0][5:].tolist() == [[0, 0], [0, 0]]
    np.testing.assert_array_equal(matrices[0], matrices[1])
    assert (matrices[0][3:5] != matrices[2][3:5]).all()


def test_extra_words_come_from_the_start_of_the_file(folder):
    path = table(folder)
    prepared = prepare(text_recipe("extra_words=3"), path, glove(folder), dev=path)
    # capitals are never looked up in lower-cased text; film and the are there already
    ids = prepared.tokenizer.get_vocab()
    assert sorted(ids, key=ids.__getitem__)[5:] == ["of", "<pad>", "<unk>"]
    assert prepared.report["vocabulary"] == {"training": 5, "extra": 1}
    assert prepared.vectors[5].tolist() == [5, 5]
    assert prepared.tokenizer.encode("The good Of").tokens == ["the", "good", "of"]
    cased = prepare(text_recipe("extra_words=3", "lower=false"), path, glove(folder), dev=path)
    ids = cased.tokenizer.get_vocab()
    assert sorted(ids, key=ids.__getitem__)[5:] == ["The", "UN", "<pad>", "<unk>"]


def test_extra_words_do_not_come_without_vectors(folder):
    prepared = prepare(text_recipe("extra_words=3"), table(folder), dev=table(folder))
    assert prepared.report["vocabulary"]["extra"] == 0


def test_words_named_as_the_special_ones_are_no_extra_words(folder):
    path = table(folder)
    file = vectors(folder, "<unk> 1 1", "<pad> 2 2", "film 3 3", "new 4 4")
    prepared = prepare(text_recipe("extra_words=4"), path, file, dev=path)
    assert prepared.report["vocabulary"]["extra"] == 1
    assert prepared.vectors[-2:].tolist() == [[0, 0], [0, 0]]
    assert prepared.tokenizer.get_vocab_size() == len(prepared.vectors) == 8


def test_vectors_of_another_width_are_refused(folder):
    path = table(folder)
    with pytest.raises(ValueError, match=r"expected vectors of 3 numbers, got 2.* embedding_dim=2"):
        prepare(text_recipe("embedding_dim=3"), path, glove(folder), dev=path)


def test_the_width_chooses_a_file_of_an_archive(folder):
    path = table(folder)
    with zipfile.ZipFile(folder / "glove.zip", "w") as archive:
        for dim in (3, 2):
            archive.writestr(
                f"glove.{dim}d.txt", "".join(f"{w}{' 1' * dim}\n" for w in ("film", "z"))
            )
    prepared = prepare(text_recipe("extra_words=2"), path, folder / "glove.zip", dev=path)
    assert prepared.vectors[1].tolist() == [1, 1]
    assert prepared.report["vocabulary"]["extra"] == 1


def test_vectors_of_other_words_are_refused(folder):
    path = table(folder)
    file = vectors(folder, "der 1 1", "die 2 2")
    with pytest.raises(ValueError, match="vectors for the words of the data, got none; 0 of 5"):
        prepare(text_recipe("extra_words=0"), path, file, dev=path)
    with pytest.raises(FileNotFoundError, match=r"no\.txt does not exist"):
        prepare(text_recipe("extra_words=0"), path, folder / "no.txt", dev=path)


# fingerprints


def test_equal_data_has_an_equal_fingerprint(folder):
    path, file = table(folder), glove(folder)
    recipe = text_recipe("extra_words=2")
    prints = [prepare(recipe, path, file, dev=path).fingerprint() for _ in range(2)]
    assert prints[0] == prints[1]
    assert len(prints[0]) == 32
    others = [
        prepare(text_recipe("extra_words=5"), path, file, dev=path),
        prepare(recipe, path, dev=path),
        prepare(text_recipe("extra_words=2", "lower=false"), path, file, dev=path),
        prepare(text_recipe("extra_words=2", "max_words=2"), path, file, dev=path),
        prepare(text_recipe("extra_words=2", "tokenizer=whitespace"), path, file, dev=path),
        prepare(text_recipe("extra_words=2", "head.labels=['pos', 'neg']"), path, file, dev=path),
        prepare(recipe, path, file, dev=path, test=path),
        prepare(recipe, path, file, dev=table(folder, "dev.csv", ROWS[::-1])),
        prepare(recipe, path, vectors(folder, "film 1 2", "of 3 4.5"), dev=path),
    ]
    assert len({prints[0], *(other.fingerprint() for other in others)}) == len(others) + 1


def test_a_fingerprint_covers_names_types_and_shapes(small):
    vectors, train = small.vectors, small.splits["train"]
    others = [
        {"labels": ("pos", "neg")},
        {"pair": True},
        {"max_words": 255},
        {"vectors": vectors.reshape(-1, 4)},
        {"vectors": vectors.view(np.int32)},
        {"vectors": None},
        {"splits": {**small.splits, "train": dataclasses.replace(train, labels=1 - train.labels)}},
        {"splits": {"train": train, "test": small.splits["dev"], "dev": small.splits["test"]}},
        {"tokenizer": whitespace_tokenizer(["a"])},
    ]
    prints = [dataclasses.replace(small, **other).fingerprint() for other in others]
    assert len({small.fingerprint(), *prints}) == len(others) + 1
    # what was counted on the way and the order of the splits decide nothing
    turned = dict(reversed(small.splits.items()))
    same = dataclasses.replace(small, report={}, splits=turned)
    assert same.fingerprint() == small.fingerprint()


# the file


@pytest.fixture
def small(folder):
    path, file = table(folder), glove(folder)
    dev = table(folder, "dev.csv", [("new film", "pos"), ("a", "neg"), ("", "neg")])
    return prepare(text_recipe("extra_words=4"), path, file, dev=dev, test=path, skip_bad=True)


def equal(a, b):
    assert list(a.splits) == list(b.splits)
    for name, split in a.splits.items():
        for field in dataclasses.fields(split):
            x, y = getattr(split, field.name), getattr(b.splits[name], field.name)
            assert (x is None) == (y is None), field.name
            if x is None:
                continue
            assert x.dtype == y.dtype, field.name
            np.testing.assert_array_equal(x, y)
    assert (a.vectors is None) == (b.vectors is None)
    if a.vectors is not None:
        np.testing.assert_array_equal(a.vectors, b.vectors)
    assert a.tokenizer.to_str() == b.tokenizer.to_str()
    assert (a.labels, a.pair, a.max_words, a.data) == (b.labels, b.pair, b.max_words, b.data)
    assert a.report == b.report
    assert a.fingerprint() == b.fingerprint()
    assert list(a.lines()) == list(b.lines())


def test_round_trip(tmp_path, small):
    path = tmp_path / "new/folder/small.safetensors"
    save_prepared(small, path)
    equal(load_prepared(path), small)
    assert [file.name for file in path.parent.iterdir()] == ["small.safetensors"]
    save_prepared(load_prepared(str(path)), str(path))
    equal(load_prepared(path), small)


def test_round_trip_of_pairs_without_vectors(tmp_path, snli):
    prepared = prepare(recipe_of("snli-100d"), snli)
    save_prepared(prepared, tmp_path / "a.safetensors")
    equal(load_prepared(tmp_path / "a.safetensors"), prepared)


@pytest.mark.parametrize("classes", [2, 300, 70_000])
def test_any_number_of_labels(folder, tmp_path, classes):
    path = table(folder, rows=[("a", f"label{n}") for n in range(classes)])
    prepared = prepare(text_recipe(), path, dev=table(folder, "dev.csv", [("a", "label1")]))
    save_prepared(prepared, tmp_path / "a.safetensors")
    loaded = load_prepared(tmp_path / "a.safetensors")
    assert loaded.splits["train"].labels.max() == classes - 1
    np.testing.assert_array_equal(loaded.splits["train"].labels, prepared.splits["train"].labels)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no\.safetensors: expected a prepared file"):
        load_prepared(tmp_path / "no.safetensors")
    with pytest.raises(FileNotFoundError, match="expected a prepared file"):
        load_prepared(tmp_path)


@pytest.mark.parametrize("content", [b"", b"text,label\n", b"\0" * 8, b"\xff" * 100])
def test_a_file_of_something_else(tmp_path, content):
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.safetensors is not a prepared file, or cut short \("):
        load_prepared(path)


def test_a_safetensors_file_of_another_kind(tmp_path, small):
    path = tmp_path / "a.safetensors"
    save_file({"x": np.zeros(2)}, path)
    with pytest.raises(ValueError, match="has the format None, expected 'gumbeltree-prepared-1'"):
        load_prepared(path)
    save_prepared(small, path)
    metadata = metadata_of(path)
    save_file(load_file(path), path, {**metadata, "format": '"gumbeltree-prepared-0"'})
    with pytest.raises(ValueError, match="has the format 'gumbeltree-prepared-0', expected"):
        load_prepared(path)
    # metadata that is no JSON
    save_file(load_file(path), path, {"format": "pt"})
    with pytest.raises(ValueError, match="is not a prepared file"):
        load_prepared(path)


def metadata_of(path):
    with safe_open(path, framework="numpy") as file:
        return file.metadata()


@pytest.mark.parametrize("key", ["labels", "pair", "max_words", "data", "report", "fingerprint"])
def test_a_file_without_one_of_its_parts(tmp_path, small, key):
    path = tmp_path / "a.safetensors"
    save_prepared(small, path)
    metadata = metadata_of(path)
    del metadata[key]
    save_file(load_file(path), path, metadata)
    with pytest.raises(ValueError, match=r"a\.safetensors is damaged"):
        load_prepared(path)


@pytest.mark.parametrize(
    "name", ["train.words", "dev.lengths", "dev.labels", "test.sentences", "vectors", "tokenizer"]
)
def test_a_file_without_one_of_its_arrays(tmp_path, small, name):
    path = tmp_path / "a.safetensors"
    save_prepared(small, path)
    arrays = load_file(path)
    del arrays[name]
    save_file(arrays, path, metadata_of(path))
    with pytest.raises(ValueError, match=r"a\.safetensors is damaged"):
        load_prepared(path)


@pytest.mark.parametrize("name", ["train.words", "dev.lengths", "dev.labels", "vectors"])
def test_a_file_whose_numbers_were_changed(tmp_path, small, name):
    path = tmp_path / "a.safetensors"
    save_prepared(small, path)
    arrays = load_file(path)
    arrays[name].flat[0] += 1
    save_file(arrays, path, metadata_of(path))
    with pytest.raises(ValueError, match="is damaged: its contents are not those it was written"):
        load_prepared(path)


def test_a_file_cut_short(tmp_path, small):
    path = tmp_path / "a.safetensors"
    save_prepared(small, path)
    whole = path.read_bytes()
    for size in (1, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="is not a prepared file, or cut short"):
            load_prepared(path)


def check_flip(path, whole, small, place, bit):
    """A file with one bit changed is refused in one line, or its change has no effect."""
    changed = bytearray(whole)
    changed[place] ^= 1 << bit
    path.write_bytes(changed)
    try:
        loaded = load_prepared(path)
    except ValueError as error:
        message = str(error)
        assert str(path) in message
        assert "\n" not in message
    else:
        equal(loaded, small)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(st.data())
def test_a_flipped_bit(tmp_path, small, data):
    path = tmp_path / "a.safetensors"
    if not path.exists():
        save_prepared(small, path)
        path.rename(tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    # the header is where a change is hardest to find
    header = 8 + int.from_bytes(whole[:8], "little")
    place = data.draw(st.integers(0, header - 1) | st.integers(0, len(whole) - 1))
    check_flip(path, whole, small, place, data.draw(st.integers(0, 7)))
    save_prepared(small, path)


@pytest.mark.slow
def test_every_flipped_bit(tmp_path, small):
    path = tmp_path / "a.safetensors"
    save_prepared(small, path)
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            check_flip(path, whole, small, place, bit)


def test_an_interrupted_write_leaves_the_old_file(tmp_path, small, monkeypatch):
    path = tmp_path / "a.safetensors"
    save_prepared(small, path)
    before = path.read_bytes()

    def fails(arrays, path, metadata):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("gumbeltree.data.prepared.save_file", fails)
    with pytest.raises(OSError, match="disk full"):
        save_prepared(small, path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.glob("*safetensors*")] == ["a.safetensors"]


# fit


def test_what_fits(small):
    check_fit(small, text_recipe())
    # columns and fractions are settled in the file
    check_fit(small, text_recipe("data.text=other", "dev_fraction=0.5", "split_seed=3"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.task=snli", "data.task = 'table', the recipe has 'snli'"),
        ("data.lower=false", "data.lower = True, the recipe has False"),
        ("data.tokenizer=whitespace", "data.tokenizer = 'treebank', the recipe has 'whitespace'"),
        ("max_words=7", "model.max_words = 256, the recipe has 7; prepare it again"),
        ("embedding_dim=3", "vectors have 2 numbers, the recipe expects 3; .*embedding_dim=2"),
    ],
)
def test_what_does_not_fit(small, change, message):
    with pytest.raises(ValueError, match=message):
        check_fit(small, text_recipe(change))


def test_without_vectors_any_width_fits(folder):
    prepared = prepare(text_recipe(), table(folder), dev=table(folder))
    check_fit(prepared, text_recipe("embedding_dim=7"))


def test_a_vocabulary_without_unknown_words_is_refused(small):
    other = Tokenizer(models.WordLevel({"a": 0}, unk_token="?"))
    with pytest.raises(ValueError, match="no word for unknown ones"):
        check_fit(dataclasses.replace(small, tokenizer=other), text_recipe())


def test_labels_of_a_recipe(small):
    assert with_labels(text_recipe(), small).model.head.labels == ("neg", "pos")
    # the order is that of the data
    other = with_labels(text_recipe("head.labels=['pos', 'neg']"), small)
    assert other.model.head.labels == ("neg", "pos")
    with pytest.raises(ValueError, match="recipe has the labels a, b, the data has neg, pos;"):
        with_labels(text_recipe("head.labels=['a', 'b']"), small)
    with pytest.raises(ValueError, match=r"is for pairs, the data has single .*kind=single"):
        with_labels(recipe_of("text-pair"), small)
    pairs = dataclasses.replace(small, pair=True)
    with pytest.raises(ValueError, match=r"is for single sentences, .* has pairs.*kind=pair"):
        with_labels(text_recipe(), pairs)


# any text


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=30).filter(str.strip),
        min_size=2,
        max_size=8,
    ),
    st.booleans(),
)
def test_any_text_gets_the_ids_of_its_tokenizer(folder, texts, lower):
    rows = [(text, "xy"[n % 2]) for n, text in enumerate(texts)]
    path = table(folder, "train.jsonl", rows)
    prepared = prepare(text_recipe(f"lower={str(lower).lower()}"), path, dev=path)
    batch = prepared.splits["train"].batch(range(len(texts)))
    for text, ids in zip(texts, told(batch.sentences), strict=True):
        assert prepared.tokenizer.encode(text.strip()).ids == ids
    # all words are known; a text may spell out the names of the two special rows
    unknown = prepared.report["splits"]["train"]["unknown"]
    assert unknown == 0 or any("<unk>" in text.lower() for text in texts)


@pytest.mark.parametrize("reader", [whitespace_tokenizer, treebank_tokenizer])
def test_both_tokenizers_of_a_recipe_have_the_same_ids(folder, reader):
    path = table(folder, rows=[("can't (stop)", "x"), ("c. d", "y")])
    name = "whitespace" if reader is whitespace_tokenizer else "treebank"
    prepared = prepare(text_recipe("pretokenized=true", f"tokenizer={name}"), path, dev=path)
    words = vocabulary(["can't (stop)", "c. d"], True, True)
    assert prepared.tokenizer.to_str() == reader(words, True).to_str()
    assert prepared.tokenizer.get_vocab() == whitespace_tokenizer(words).get_vocab()


# found in review


def test_escapes_of_a_pretokenized_table_are_undone(folder):
    rows = ["text,label", "-LRB- don't 1\\/2 -RRB-,x", "a b,y"]
    path = written(folder / "a.csv", *rows)
    prepared = prepare(text_recipe("pretokenized=true"), path, dev=path)
    vocabulary = prepared.tokenizer.get_vocab()
    assert {"(", ")", "don't", "1/2", "a", "b"} <= vocabulary.keys()
    assert "-lrb-" not in vocabulary


def test_generated_examples_are_not_those_of_the_test_file(folder):
    made = list(module.make_task(recipe_of("listops")).generate(50, 0))
    lines = [f"{example.label}\t{example.texts[0]}" for example in made[:20]]
    written(folder / "test_d20s.tsv", *lines)
    prepared = prepare(recipe_of("listops", "generate=200"), folder)
    about = prepared.report["splits"]["train"]
    assert about["dropped"] == {"also in another split": 20}
    tests = set(words_of(prepared, "test"))
    assert not tests & {*words_of(prepared, "train"), *words_of(prepared, "dev")}


def test_examples_that_training_has_seen_are_counted(folder):
    path = written(folder / "a.csv", "text,label", "a,x", "b,y", "c,x")
    dev = written(folder / "b.csv", "text,label", "a,x", "d,y", "b,x")
    prepared = prepare(text_recipe(), path, dev=dev)
    assert prepared.report["splits"]["dev"]["seen"] == 2
    assert "2 of them also in train" in "\n".join(prepared.lines())
