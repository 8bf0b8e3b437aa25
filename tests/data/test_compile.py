"""From the files of a task to ids, vocabulary and vectors, and the file that stores them."""

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

from gumbeltree.config import load_recipe, with_settings
from gumbeltree.data import compile as data_compile
from gumbeltree.data.compile import make_task, prepare, vocabulary, with_labels
from gumbeltree.data.prepared import check_fit, load_prepared, save_prepared
from gumbeltree.text import batches
from gumbeltree.text.files import BadLineError
from gumbeltree.text.tokenizer import pretokenized, treebank_tokenizer, whitespace_tokenizer
from tests.models import ids_of


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
    """Return the words of each example, by way of the vocabulary, and its label."""
    split, token = prepared.splits[name], prepared.tokenizer.id_to_token
    batch = split.batch(range(len(split)))
    sentences = [" ".join(map(token, ids)) for ids in ids_of(batch.sentences)]
    labels = [prepared.labels[target] for target in batch.targets]
    return [(*sentences[row :: len(split)], label) for row, label in enumerate(labels)]


def counts(prepared, name):
    report = prepared.report["splits"][name]
    return tuple(report[key] for key in ("examples", "words", "unknown", "cut", "bad"))


def sizes(prepared):
    return {name: len(split) for name, split in prepared.splits.items()}


# tasks

SNLI = [
    {"gold_label": "neutral", "sentence1": "A dog's ball.", "sentence2": "It isn't red!"},
    {"gold_label": "-", "sentence1": "unseen", "sentence2": "unseen"},
    {"gold_label": "entailment", "sentence1": "A dog's ball.", "sentence2": "A ball."},
]
SNLI_DEV = {"gold_label": "contradiction", "sentence1": "A cat.", "sentence2": "a DOG cat"}


@pytest.fixture
def snli(folder):
    # trees are only read for analysis: a bad one must not matter
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
    # a repeated premise is stored once
    assert prepared.splits["train"].sentences.tolist() == [[0, 1], [0, 2]]
    assert counts(prepared, "train") == (2, 5 + 5 + 5 + 3, 0, 0, 0)
    assert counts(prepared, "dev") == (1, 6, 2, 0, 0)
    assert prepared.report["splits"]["train"]["dropped"] == {"without a gold label": 1}
    assert prepared.report["splits"]["train"]["labels"] == {"entailment": 1, "neutral": 1}
    assert prepared.report["vocabulary"] == {"training": 10, "extra": 0}
    assert prepared.report["vectors"] == {}
    assert prepared.vectors is None
    assert prepared.splits["train"].words.dtype == np.uint16
    # the tokenizer of the model assigns the same ids
    for row, record in enumerate([SNLI[0], SNLI[2]]):
        expected = [prepared.tokenizer.encode(record[f"sentence{i}"]).ids for i in (1, 2)]
        assert ids_of(prepared.splits["train"].batch([row]).sentences) == expected


def test_long_training_examples_can_be_dropped(snli):
    with (snli / "snli_1.0_train.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({**SNLI_DEV, "sentence1": "A red ball.", "sentence2": "A ball."}))
    whole = prepare(recipe_of("snli-100d"), snli)
    for most, kept in ((5, [0, 1, 2]), (4, [2])):
        prepared = prepare(recipe_of("snli-100d", f"train_max_words={most}"), snli)
        assert words_of(prepared, "train") == [words_of(whole, "train")[row] for row in kept]
        # other splits keep their examples
        assert words_of(prepared, "dev") == words_of(whole, "dev")
    about = prepared.report["splits"]["train"]
    assert about["dropped"] == {"without a gold label": 1, "with more than 4 words": 2}
    assert (about["examples"], about["labels"]) == (1, {"contradiction": 1})
    with pytest.raises(ValueError, match=r"more than 2 words; increase `data\.train_max_words`"):
        prepare(recipe_of("snli-100d", "train_max_words=2"), snli)


def test_words_of_trees_are_counted_as_they_are(folder):
    # the tokenizer would split the first one
    parses = {"sentence1_binary_parse": "( don't go )", "sentence2_binary_parse": "( go now )"}
    pair = {"gold_label": "neutral", "sentence1": "Don't go", "sentence2": "Go now", **parses}
    for name in ("train", "dev"):
        written(folder / f"snli_1.0_{name}.jsonl", json.dumps(pair))
    prepared = prepare(recipe_of("spinn-pi-matched", "train_max_words=2"), folder)
    assert words_of(prepared, "train") == [("don't go", "go now", "neutral")]


def test_snli_with_capitals_and_compressed(snli):
    recipe = recipe_of("snli-100d", "lower=false")
    prepared = prepare(recipe, snli)
    assert words_of(prepared, "train")[1] == ("A dog 's ball .", "A ball .", "entailment")
    assert words_of(prepared, "dev") == [("A <unk> .", "<unk> <unk> <unk>", "contradiction")]
    path = snli / "snli_1.0_train.jsonl"
    path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert prepare(recipe, snli).fingerprint() == prepared.fingerprint()


@pytest.fixture
def sst(folder):
    written(folder / "trees/train.txt", "(3 (2 A) (4 (3 good) (2 film)))", "(0 (1 -LRB-) (2 B.C.))")
    written(folder / "trees/dev.txt", "(1 (2 a) (1 bad))", "(2 so (so))", "(2 (2 so) (2 so))")
    written(folder / "trees/test.txt", "(4 (2 Good) (2 don't))")
    return folder


def test_sst2(sst):
    with pytest.raises(BadLineError, match=r"dev\.txt, line 2"):
        prepare(recipe_of("sst2"), sst)
    prepared = prepare(recipe_of("sst2"), sst, skip_bad=True)
    assert prepared.labels == ("negative", "positive")
    # every phrase of the training trees that is not neutral, bottom up
    assert words_of(prepared, "train") == [
        ("good", "positive"),
        ("good film", "positive"),
        ("a good film", "positive"),
        ("(", "negative"),
        ("( b.c.", "negative"),
    ]
    # the vocabulary covers all splits
    assert words_of(prepared, "dev") == [("a bad", "negative")]
    assert words_of(prepared, "test") == [("good don't", "positive")]
    assert counts(prepared, "dev") == (1, 2, 0, 0, 1)
    assert prepared.report["splits"]["dev"]["dropped"] == {"neutral": 1}
    assert "dev.txt, line 2" in prepared.report["splits"]["dev"]["first_bad"][0]
    # the model splits plain text, but reads pretokenized text as it was prepared
    assert prepared.tokenizer.encode("A good film").tokens == ["a", "good", "film"]
    assert len(prepared.tokenizer.encode("don't").ids) == 2
    ids = ids_of(prepared.splits["test"].batch([0]).sentences)[0]
    assert pretokenized(prepared.tokenizer).encode("Good don't").ids == ids


def test_sst5(sst):
    prepared = prepare(recipe_of("sst5", "vocabulary=train"), sst, skip_bad=True)
    assert prepared.labels[0] == "very negative"
    assert counts(prepared, "train")[:2] == (8, 4 + 5 + 1 + 2 - 1 + 1)
    assert words_of(prepared, "test") == [("good <unk>", "very positive")]
    assert words_of(prepared, "dev") == [("a <unk>", "negative"), ("<unk> <unk>", "neutral")]
    assert counts(prepared, "dev")[:3] == (2, 4, 3)


def test_sick(folder):
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
    rows = "1\tA dog runs\tA dog\t4\tENTAILMENT", "2\ta\tb\t1\tNEUTRAL"
    written(folder / "SICK_train.txt", header, *rows)
    written(folder / "SICK_trial.txt", header, "3\tA dog\tA cat\t1\tCONTRADICTION")
    prepared = prepare(recipe_of("sick"), folder)
    assert words_of(prepared, "train") == [
        ("a dog runs", "a dog", "entailment"),
        ("a", "b", "neutral"),
    ]
    assert words_of(prepared, "dev") == [("a dog", "a <unk>", "contradiction")]


def test_listops(folder):
    # brackets are only checked for analysis
    written(folder / "train_d20s.tsv", "5\t( ( ( [SM 2 ( 3 ] )", "3\t[MAX 2 3 ]")
    written(folder / "test_d20s.tsv", "9\t9")
    prepared = prepare(recipe_of("listops", "dev_fraction=0.5", "vocabulary=all"), folder)
    assert sorted(words_of(prepared, "train") + words_of(prepared, "dev")) == [
        ("[MAX 2 3 ]", "3"),
        ("[SM 2 3 ]", "5"),
    ]
    assert words_of(prepared, "test") == [("9", "9")]
    assert prepared.labels == tuple("0123456789")


@pytest.mark.parametrize(
    ("name", "shares"), [("listops", {"dev": 10, "test": 10}), ("demo", {"dev": 20, "test": 40})]
)
def test_generated_data(name, shares):
    prepared = prepare(recipe_of(name, "generate=200"))
    assert sizes(prepared) == {"train": 200 - sum(shares.values()), **shares}
    for seed in (0, 1):
        every = prepare(recipe_of(name, "generate=200", "vocabulary=all", f"split_seed={seed}"))
        found = [example for split in every.splits for example in words_of(every, split)]
        generated = make_task(recipe_of(name)).generate(200, seed)
        assert sorted(found) == sorted((*example.texts, example.label) for example in generated)
        assert (words_of(every, "train") == words_of(prepared, "train")) == (seed == 0)


def test_generated_training_data_excludes_the_test_file(folder):
    generated = list(make_task(recipe_of("listops")).generate(50, 0))
    lines = [f"{example.label}\t{example.texts[0]}" for example in generated[:20]]
    written(folder / "test_d20s.tsv", *lines)
    prepared = prepare(recipe_of("listops", "generate=200"), folder)
    report = prepared.report["splits"]["train"]
    assert report["dropped"] == {"also in another split": 20}
    tests = set(words_of(prepared, "test"))
    assert not tests & {*words_of(prepared, "train"), *words_of(prepared, "dev")}


def test_rejects_missing_training_data(folder):
    for recipe in (recipe_of("demo", "generate=0"), recipe_of("snli-100d")):
        with pytest.raises(FileNotFoundError, match="--data"):
            prepare(recipe)
    written(folder / "snli_1.0_dev.jsonl", json.dumps(SNLI_DEV))
    with pytest.raises(FileNotFoundError, match="data: there is no snli training file"):
        prepare(recipe_of("snli-100d"), folder)


# tables

ROWS = [("the good film", "pos"), ("a bad film", "neg"), ("the film", "pos"), ("bad bad", "neg")]


def table(folder, name="train.csv", rows=ROWS, columns=("text", "label")):
    if name.endswith(".jsonl"):
        lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in rows]
    else:
        lines = [("," if "csv" in name else "\t").join(line) for line in (columns, *rows)]
    return written(folder / name, *lines)


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
    assert with_labels(text_recipe(), prepared).model.head.labels == ("neg", "pos")


def test_tables_of_pairs(folder):
    columns = ("text", "text2", "label")
    path = table(folder, "mine.tsv", [("a b", "c.", "x"), ("d", "a b", "y")], columns)
    dev = table(folder, "other.csv", [("c", "d d", "y")], ("text2", "text", "label"))
    test = table(folder, "third.jsonl", [("b", "b", "x")], columns)
    recipe = recipe_of("text-pair", "dev_fraction=0", "test_fraction=0")
    prepared = prepare(recipe, path, dev=dev, test=str(test))
    assert prepared.pair
    assert words_of(prepared, "train") == [("a b", "c .", "x"), ("d", "a b", "y")]
    assert words_of(prepared, "dev") == [("d d", "c", "y")]
    assert words_of(prepared, "test") == [("b", "b", "x")]
    assert prepared.splits["train"].sentences.tolist() == [[0, 1], [2, 0]]


def test_columns_by_name(folder):
    path = table(folder, rows=[("a", "x"), ("b", "y")], columns=("review", "stars"))
    with pytest.raises(BadLineError, match=r"'text'.*'review'"):
        prepare(text_recipe(), path, dev=path)
    prepared = prepare(text_recipe("data.text=review", "data.label=stars"), path, dev=path)
    assert words_of(prepared, "dev") == [("a", "x"), ("b", "y")]
    for name in ("text", "label"):
        with pytest.raises(ValueError, match=f"--{name} COLUMN"):
            prepare(text_recipe(f"data.{name}=''"), path, dev=path)


@pytest.mark.parametrize("tokenizer", ["whitespace", "treebank"])
def test_pretokenized_tables(folder, tokenizer):
    path = table(folder, rows=[("can't (stop) -LRB- 1\\/2", "x"), ("c. d", "y")])
    plain = prepare(text_recipe(), path, dev=path)
    assert words_of(plain, "train")[0][0].startswith("ca n't ( stop )")
    kept = prepare(text_recipe("pretokenized=true", f"tokenizer={tokenizer}"), path, dev=path)
    assert words_of(kept, "train") == [("can't (stop) ( 1/2", "x"), ("c. d", "y")]
    words = vocabulary(["can't (stop) ( 1/2", "c. d"], True, True)
    # the recipe's tokenizer is for plain text; the vocabulary is the same
    make = whitespace_tokenizer if tokenizer == "whitespace" else treebank_tokenizer
    assert kept.tokenizer.to_str() == make(words, True).to_str()


def test_labels_of_the_recipe(folder):
    path = table(folder)
    prepared = prepare(text_recipe("head.labels=['pos', 'neg']"), path, dev=path)
    assert prepared.labels == ("pos", "neg")
    assert prepared.splits["train"].labels.tolist() == [0, 1, 0, 1]
    with pytest.raises(BadLineError, match=r"\.csv, line 3.*'neg'"):
        prepare(text_recipe("head.labels=['pos']"), path, dev=path)


def test_rejects_a_single_label(folder):
    path = table(folder, rows=[("a", "x"), ("b", "x")])
    with pytest.raises(ValueError, match=r"two labels.* x;"):
        prepare(text_recipe(), path, dev=path)


def test_rejects_labels_that_training_lacks(folder):
    path = table(folder)
    dev = table(folder, "dev.csv", [("a", "pos"), ("b", "good")])
    with pytest.raises(BadLineError, match=r"dev\.csv, line 3.*'good'"):
        prepare(text_recipe(), path, dev=dev)
    prepared = prepare(text_recipe(), path, dev=dev, skip_bad=True)
    assert (counts(prepared, "dev")[0], counts(prepared, "dev")[-1]) == (1, 1)


def test_fractions(folder):
    rows = [(f"word{n} other{n}", "xyz"[n % 3]) for n in range(100)]
    path = table(folder, rows=rows)
    recipe = recipe_of("text", "dev_fraction=0.2", "test_fraction=0.1")
    prepared = prepare(recipe, path)
    assert sizes(prepared) == {"train": 70, "dev": 20, "test": 10}
    # no word occurs in two examples, so those of dev and test are unknown
    assert prepared.report["vocabulary"]["training"] == 140
    assert counts(prepared, "dev") == (20, 40, 40, 0, 0)
    everything = prepare(with_settings(recipe, ["vocabulary=all"]), path)
    parts = {name: set(words_of(everything, name)) for name in everything.splits}
    assert sum(map(len, parts.values())) == 100
    assert set.union(*parts.values()) == set(rows)
    other = prepare(with_settings(recipe, ["vocabulary=all", "split_seed=1"]), path)
    assert set(words_of(other, "dev")) != parts["dev"]
    # the training seed does not matter
    same = prepare(with_settings(recipe, ["training.seed=5"]), path)
    assert same.fingerprint() == prepared.fingerprint()


def test_fractions_apply_to_missing_splits_only(folder):
    path = table(folder, rows=[(f"w{n}", "xy"[n % 2]) for n in range(10)])
    with pytest.raises(FileNotFoundError, match=r"--dev.*dev_fraction=0\.1"):
        prepare(text_recipe(), path)
    table(folder, "test.csv", [("w1", "x")])
    prepared = prepare(recipe_of("text", "dev_fraction=0.2", "test_fraction=0.5"), folder)
    assert sizes(prepared) == {"train": 8, "dev": 2, "test": 1}


def test_rejects_fractions_without_examples(folder):
    path = table(folder)
    with pytest.raises(ValueError, match=r"4 examples.*0\.1.* dev"):
        prepare(recipe_of("text", "dev_fraction=0.1", "test_fraction=0"), path)
    with pytest.raises(ValueError, match="fractions"):
        prepare(recipe_of("text", "dev_fraction=0.8", "test_fraction=0.8"), path)


def test_bad_lines_are_reported_after_a_division(folder):
    path = table(folder, rows=[*ROWS, ("", "pos"), (" ", "neg"), *ROWS[:2], ("",)])
    recipe = recipe_of("text", "dev_fraction=0.3", "test_fraction=0")
    with pytest.raises(BadLineError, match="line 6"):
        prepare(recipe, path)
    prepared = prepare(recipe, path, skip_bad=True)
    assert sum(sizes(prepared).values()) == 6
    report = prepared.report["splits"]["train"]
    assert (report["bad"], len(report["first_bad"])) == (2, 2)
    assert report["dropped"] == {"blank lines": 1}
    assert "2 bad lines skipped" in "\n".join(prepared.lines())


def test_rejects_empty_and_missing_files(folder):
    path, dev = table(folder), table(folder, "dev.csv", [])
    for train, name in ((path, "dev"), (written(folder / "empty.csv"), "empty")):
        with pytest.raises(ValueError, match=rf"{name}\.csv contains no usable examples"):
            prepare(text_recipe(), train, dev=dev)
    with pytest.raises(OSError, match=r"no\.csv"):
        prepare(text_recipe(), folder / "no.csv")
    with pytest.raises(FileNotFoundError, match=r"no\.csv"):
        prepare(text_recipe(), path, dev=folder / "no.csv")
    said: list[str] = []
    with pytest.raises(FileNotFoundError, match=r"no\.txt does not exist; check the path"):
        prepare(text_recipe(), path, folder / "no.txt", say=said.append)
    assert not said
    with pytest.raises(FileNotFoundError, match=r"train\.tsv"):
        prepare(text_recipe(), folder / "..")


def test_examples_also_in_training_are_counted(folder):
    path = table(folder, rows=[("a", "x"), ("b", "y"), ("c", "x")])
    dev = table(folder, "dev.csv", [("a", "x"), ("d", "y"), ("b", "x")])
    prepared = prepare(text_recipe(), path, dev=dev)
    assert prepared.report["splits"]["dev"]["seen"] == 2
    assert "2 examples also in train" in "\n".join(prepared.lines())


# words


def test_long_sentences_are_truncated(folder):
    rows = [("a b c d e", "x"), ("a b c", "y"), ("f g h i", "x"), ("a b c d e", "y")]
    path = table(folder, rows=rows)
    prepared = prepare(text_recipe("max_words=3"), path, dev=path)
    assert [text for text, _ in words_of(prepared, "train")] == ["a b c", "a b c", "f g h", "a b c"]
    # a repeated sentence counts once
    assert counts(prepared, "train") == (4, 12, 0, 2, 0)
    assert "2 sentences truncated to 3 words" in next(prepared.lines())


def test_vocabulary_is_sorted_by_frequency():
    assert vocabulary(["b b a", "c b <unk> <pad>"], True, False) == ["b", "a", "c"]
    assert vocabulary(["Don't B", "b"], False, True) == ["b", "do", "n't"]
    assert vocabulary(["B b"], True, False) == ["B", "b"]


def test_words_of_all_splits(folder):
    path = table(folder)
    dev = table(folder, "dev.csv", [("new film", "pos")])
    known = prepare(text_recipe("vocabulary=all"), path, dev=dev)
    assert words_of(known, "dev") == [("new film", "pos")]
    assert known.report["vocabulary"]["training"] == 6
    assert counts(known, "dev")[2] == 0
    assert counts(prepare(text_recipe(), path, dev=dev), "dev")[2] == 1


def test_every_occurrence_of_an_unknown_word_counts(folder):
    rows = [("new new film", "pos"), ("film", "neg"), ("new new film", "neg")]
    prepared = prepare(text_recipe(), table(folder), dev=table(folder, "dev.csv", rows))
    assert counts(prepared, "dev") == (3, 7, 4, 0, 0)
    assert "dev: 3 examples, 7 words, 4 unknown (57.1%)" in list(prepared.lines())


def test_more_words(folder):
    dev = table(folder, "dev.csv", [("new film", "pos")])
    more = ["new", "film", "old", "new", "<pad>"]
    prepared = prepare(text_recipe(), table(folder), dev=dev, more_words=more)
    assert prepared.report["vocabulary"] == {"training": 5, "extra": 2}
    assert words_of(prepared, "dev") == [("new film", "pos")]
    ids = prepared.tokenizer.get_vocab()
    expected = ["bad", "film", "the", "a", "good", "new", "old", "<pad>", "<unk>"]
    assert sorted(ids, key=ids.__getitem__) == expected


def test_large_vocabularies_take_32_bits(folder):
    path = table(folder)
    more = [f"word{n}" for n in range(2**16)]
    # with five words, <pad> and <unk>, the last id of 16 bits is 65,535
    for count, kind in ((2**16 - 7, np.uint16), (2**16 - 6, np.uint32)):
        prepared = prepare(text_recipe(), path, dev=path, more_words=more[:count])
        assert prepared.splits["train"].words.dtype == kind
        assert words_of(prepared, "train") == ROWS


def test_ids_are_independent_of_chunks(folder, monkeypatch):
    path = table(folder, rows=[*ROWS, ("new words here too", "pos")])
    whole = prepare(text_recipe("max_words=2"), path, dev=path)
    monkeypatch.setattr(batches, "CHUNK_TEXTS", 2)
    parts = prepare(text_recipe("max_words=2"), path, dev=path)
    assert parts.fingerprint() == whole.fingerprint()
    assert parts.report == whole.report


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
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
    for text, ids in zip(texts, ids_of(batch.sentences), strict=True):
        assert prepared.tokenizer.encode(text.strip()).ids == ids
    # all words are known, except that a text can spell out the special ones
    unknown = prepared.report["splits"]["train"]["unknown"]
    assert unknown == 0 or any("<unk>" in text.lower() for text in texts)


# word vectors

GLOVE = "film 1 2", "The 3 3", "UN 4 4", "of 5 5", "the 6 6", "bad 7 7.5", "rare 8 8", "x 9 9"


def glove(folder, *lines):
    return written(folder / "glove.txt", *(lines or GLOVE))


def test_vectors(folder):
    path = table(folder)
    recipe = text_recipe("extra_words=0", "missing_vectors=zero", "test_fraction=0")
    prepared = prepare(recipe, path, glove(folder), dev=path)
    # bad, film, the, a, good, <pad>, <unk>
    expected = [[7, 7.5], [1, 2], [6, 6], [0, 0], [0, 0], [0, 0], [0, 0]]
    assert prepared.vectors.tolist() == expected
    assert prepared.vectors.dtype == np.float32
    # train and dev are the same file of 10 words, with one `a` and one `good`
    report = {"file": "glove.txt", "types": 3, "all_types": 5, "tokens": 16, "all_tokens": 20}
    assert prepared.report["vectors"] == report
    assert "3 of 5 words of the data, 80.0%" in list(prepared.lines())[-1]


def test_coverage_counts_all_splits_and_repeated_sentences(folder):
    path = table(folder, rows=[*ROWS, ("the film", "neg")])
    dev = table(folder, "dev.csv", [("good good new", "pos")])
    prepared = prepare(text_recipe("extra_words=3"), path, glove(folder), dev=dev)
    # 12 words of train and 2 known ones of dev; `a` once, `good` three times
    report = {"file": "glove.txt", "types": 3, "all_types": 5, "tokens": 10, "all_tokens": 14}
    assert prepared.report["vectors"] == report


def test_missing_vectors_start_at_random(folder):
    path, file = table(folder), glove(folder)
    recipe = text_recipe("extra_words=0", "missing_vectors=random")
    first, same, other = (
        prepare(with_settings(recipe, [f"split_seed={seed}"]), path, file, dev=path).vectors
        for seed in (0, 0, 1)
    )
    assert first[:3].tolist() == [[7, 7.5], [1, 2], [6, 6]]
    assert (first[3:5] != 0).all()
    assert np.abs(first[3:5]).max() < 0.06
    assert first[5:].tolist() == [[0, 0], [0, 0]]
    np.testing.assert_array_equal(first, same)
    assert (first[3:5] != other[3:5]).all()


def test_extra_words_come_from_the_start_of_the_file(folder):
    path, file = table(folder), glove(folder)
    prepared = prepare(text_recipe("extra_words=3"), path, file, dev=path)
    # capitals are never looked up in lower-cased text; film and the are known already
    ids = prepared.tokenizer.get_vocab()
    assert sorted(ids, key=ids.__getitem__)[5:] == ["of", "<pad>", "<unk>"]
    assert prepared.report["vocabulary"] == {"training": 5, "extra": 1}
    assert prepared.vectors[5].tolist() == [5, 5]
    cased = prepare(text_recipe("extra_words=3", "lower=false"), path, file, dev=path)
    ids = cased.tokenizer.get_vocab()
    assert sorted(ids, key=ids.__getitem__)[5:] == ["The", "UN", "<pad>", "<unk>"]
    # without vectors there are none
    assert prepare(text_recipe("extra_words=3"), path, dev=path).report["vocabulary"]["extra"] == 0


def test_special_words_are_no_extra_words(folder):
    path, file = table(folder), glove(folder, "<unk> 1 1", "<pad> 2 2", "film 3 3", "new 4 4")
    prepared = prepare(text_recipe("extra_words=4"), path, file, dev=path)
    assert prepared.report["vocabulary"]["extra"] == 1
    assert prepared.vectors[-2:].tolist() == [[0, 0], [0, 0]]
    assert prepared.tokenizer.get_vocab_size() == len(prepared.vectors) == 8


def test_width_selects_a_file_of_an_archive(folder):
    path = table(folder)
    with zipfile.ZipFile(folder / "glove.zip", "w") as archive:
        for dim in (3, 2):
            lines = "".join(f"{word}{' 1' * dim}\n" for word in ("film", "z"))
            archive.writestr(f"glove.{dim}d.txt", lines)
    prepared = prepare(text_recipe("extra_words=2"), path, folder / "glove.zip", dev=path)
    assert prepared.vectors[1].tolist() == [1, 1]
    assert prepared.report["vocabulary"]["extra"] == 1


def test_rejects_unsuitable_vectors(folder):
    path, recipe = table(folder), text_recipe("extra_words=0")
    with pytest.raises(ValueError, match=r"width 2.* embedding_dim=2"):
        prepare(text_recipe("embedding_dim=3"), path, glove(folder), dev=path)
    with pytest.raises(ValueError, match="no vector for any word"):
        prepare(recipe, path, glove(folder, "der 1 1", "die 2 2"), dev=path)
    with pytest.raises(FileNotFoundError, match=r"no\.txt"):
        prepare(recipe, path, folder / "no.txt", dev=path)
    with pytest.raises(ValueError, match="--vectors"):
        prepare(recipe, path, more_vectors=glove(folder), dev=path)


# fingerprints


@pytest.fixture
def small(folder):
    path, file = table(folder), glove(folder)
    dev = table(folder, "dev.csv", [("new film", "pos"), ("a", "neg"), ("", "neg")])
    return prepare(text_recipe("extra_words=4"), path, file, dev=dev, test=path, skip_bad=True)


def test_fingerprints_are_reproducible(folder):
    path, file = table(folder), glove(folder)
    prints = [
        prepare(text_recipe(*changes), path, file, dev=path).fingerprint()
        for changes in ([], [], ["lower=false"], ["max_words=2"], ["tokenizer=whitespace"])
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == len(prints) - 1


def test_fingerprints_cover_names_types_and_shapes(small):
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
    # the report and the order of the splits do not matter
    reordered = dict(reversed(small.splits.items()))
    same = dataclasses.replace(small, report={}, splits=reordered)
    assert same.fingerprint() == small.fingerprint()


# the file


@pytest.fixture
def saved(tmp_path, small):
    path = tmp_path / "new/folder/small.safetensors"
    save_prepared(small, path)
    return path


def check_equal(a, b):
    assert list(a.splits) == list(b.splits)
    for name, split in a.splits.items():
        for field in dataclasses.fields(split):
            x, y = getattr(split, field.name), getattr(b.splits[name], field.name)
            assert (x is None) == (y is None), field.name
            if x is not None:
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


def test_round_trip(saved, small, snli):
    check_equal(load_prepared(saved), small)
    assert [file.name for file in saved.parent.iterdir()] == [saved.name]
    save_prepared(load_prepared(str(saved)), str(saved))
    check_equal(load_prepared(saved), small)
    # pairs, without vectors
    pairs = prepare(recipe_of("snli-100d"), snli)
    save_prepared(pairs, saved)
    check_equal(load_prepared(saved), pairs)


@pytest.mark.parametrize("classes", [2, 300, 70_000])
def test_any_number_of_labels(folder, tmp_path, classes):
    path = table(folder, rows=[("a", f"label{n}") for n in range(classes)])
    recipe = text_recipe("any_labels=true")
    prepared = prepare(recipe, path, dev=table(folder, "dev.csv", [("a", "label1")]))
    save_prepared(prepared, tmp_path / "a.safetensors")
    loaded = load_prepared(tmp_path / "a.safetensors")
    assert loaded.splits["train"].labels.max() == classes - 1
    np.testing.assert_array_equal(loaded.splits["train"].labels, prepared.splits["train"].labels)


@pytest.mark.parametrize("name", ["no.safetensors", "."])
def test_rejects_missing_prepared_files(tmp_path, name):
    with pytest.raises(FileNotFoundError, match="gumbeltree data prepare"):
        load_prepared(tmp_path / name)


@pytest.mark.parametrize("content", [b"", b"text,label\n", b"\0" * 8, b"\xff" * 100])
def test_rejects_other_files(tmp_path, content):
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.safetensors is not a prepared file"):
        load_prepared(path)


def metadata_of(path):
    with safe_open(path, framework="numpy") as file:
        return file.metadata()


def test_rejects_other_formats(saved):
    arrays, metadata = load_file(saved), metadata_of(saved)
    for other, message in (
        ({**metadata, "format": '"gumbeltree-prepared-0"'}, "gumbeltree-prepared-0"),
        ({}, "format None"),
        ({"format": "pt"}, "not a prepared file"),
    ):
        save_file(arrays, saved, other)
        with pytest.raises(ValueError, match=message):
            load_prepared(saved)


@pytest.mark.parametrize("key", ["labels", "pair", "max_words", "data", "report", "fingerprint"])
def test_rejects_missing_metadata(saved, key):
    metadata = metadata_of(saved)
    del metadata[key]
    save_file(load_file(saved), saved, metadata)
    with pytest.raises(ValueError, match=r"small\.safetensors is damaged"):
        load_prepared(saved)


@pytest.mark.parametrize("changed", [True, False])
@pytest.mark.parametrize(
    "name", ["train.words", "dev.lengths", "dev.labels", "test.sentences", "vectors", "tokenizer"]
)
def test_rejects_changed_and_missing_arrays(saved, name, changed):
    arrays = load_file(saved)
    if changed:
        arrays[name].flat[0] += 1
    else:
        del arrays[name]
    save_file(arrays, saved, metadata_of(saved))
    with pytest.raises(ValueError, match=r"small\.safetensors is damaged"):
        load_prepared(saved)


def test_rejects_truncated_files(saved):
    whole = saved.read_bytes()
    for size in (1, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        saved.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="truncated"):
            load_prepared(saved)


def check_flip(path, whole, small, place, bit):
    """Check that a changed bit raises an error of one line, or has no effect."""
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
        check_equal(loaded, small)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.data())
def test_rejects_flipped_bits(saved, small, data):
    save_prepared(small, saved)
    whole = saved.read_bytes()
    # a change is hardest to detect in the header
    header = 8 + int.from_bytes(whole[:8], "little")
    place = data.draw(st.integers(0, header - 1) | st.integers(0, len(whole) - 1))
    check_flip(saved, whole, small, place, data.draw(st.integers(0, 7)))


@pytest.mark.slow
def test_rejects_every_flipped_bit(saved, small):
    whole = saved.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            check_flip(saved, whole, small, place, bit)


def test_an_interrupted_write_keeps_the_old_file(saved, small, monkeypatch):
    before = saved.read_bytes()

    def fails(arrays, path, metadata):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr("gumbeltree.data.prepared.save_file", fails)
    with pytest.raises(OSError, match="disk full"):
        save_prepared(small, saved)
    assert saved.read_bytes() == before
    assert [file.name for file in saved.parent.iterdir()] == [saved.name]


# fit


def test_fit_ignores_columns_and_fractions(small, folder):
    check_fit(small, text_recipe("data.text=other", "dev_fraction=0.5", "split_seed=3"))
    # any width fits data without vectors
    path = table(folder)
    prepared = prepare(text_recipe("own_vectors=false"), path, dev=path)
    check_fit(prepared, text_recipe("embedding_dim=7"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.task=snli", "data.task.*'table'.*'snli'"),
        ("data.lower=false", "data.lower.*True.*False"),
        ("data.tokenizer=whitespace", "data.tokenizer.*'treebank'.*'whitespace'"),
        ("max_words=7", "model.max_words.*256.*7"),
        ("embedding_dim=3", "width 2.*embedding_dim is 3"),
    ],
)
def test_rejects_recipes_that_do_not_fit(small, change, message):
    with pytest.raises(ValueError, match=message):
        check_fit(small, text_recipe(change))


def test_labels_must_fit_the_data(small):
    # the order is that of the data
    other = with_labels(text_recipe("head.labels=['pos', 'neg']"), small)
    assert other.model.head.labels == ("neg", "pos")
    with pytest.raises(ValueError, match=r"a, b.*neg, pos"):
        with_labels(text_recipe("head.labels=['a', 'b']"), small)
    with pytest.raises(ValueError, match=r"pairs.*single.*kind=single"):
        with_labels(recipe_of("text-pair"), small)
    with pytest.raises(ValueError, match=r"single.*pairs.*kind=pair"):
        with_labels(text_recipe(), dataclasses.replace(small, pair=True))


def test_frequent_words_get_short_vectors(folder):
    written(folder / "train.tsv", "text\tlabel", "a b\tx", "a c\ty", "a a\tx")
    written(folder / "dev.tsv", "text\tlabel", "c c\tx")
    vectors = written(folder / "v.txt", "a 1 2", "b 3 4", "c 5 6", "d 7 8")
    settings = ("own_vectors=false", "extra_words=4", "missing_vectors=zero", "test_fraction=0")
    plain = prepare(recipe_of("text", *settings), folder, vectors)
    weighted = prepare(recipe_of("text", *settings, "word_weights=0.25"), folder, vectors)
    # a has 4 of 6 words in the training texts; d is not in them, and dev does not count
    shares = {"a": 4 / 6, "b": 1 / 6, "c": 1 / 6, "d": 0}
    for word, share in shares.items():
        row = plain.tokenizer.token_to_id(word)
        expected = plain.vectors[row] * 0.25 / (0.25 + share)
        np.testing.assert_allclose(weighted.vectors[row], expected, rtol=1e-6)
    assert weighted.fingerprint() != plain.fingerprint()


def test_shares_can_come_from_the_vector_file(folder):
    written(folder / "train.tsv", "text\tlabel", "a b\tx", "a c\ty", "e a\tx")
    written(folder / "dev.tsv", "text\tlabel", "c c\tx")
    vectors = written(folder / "v.txt", "d 7 8", "c 5 6", "b 3 4", "a 1 2")
    settings = ("own_vectors=false", "extra_words=4", "missing_vectors=random", "test_fraction=0")
    plain = prepare(recipe_of("text", *settings), folder, vectors)
    settings = (*settings, "word_weights=0.25", "word_shares=file")
    weighted = prepare(recipe_of("text", *settings), folder, vectors)
    harmonic = 1 + 1 / 2 + 1 / 3 + 1 / 4
    # e is not in the file
    shares = {"d": 1, "c": 1 / 2, "b": 1 / 3, "a": 1 / 4, "e": 0}
    for word, share in shares.items():
        row = plain.tokenizer.token_to_id(word)
        expected = plain.vectors[row] * 0.25 / (0.25 + share / harmonic)
        np.testing.assert_allclose(weighted.vectors[row], expected, rtol=1e-6)


def test_removes_common_directions(folder, monkeypatch):
    # several chunks of sentences
    monkeypatch.setattr(data_compile, "SENTENCES_AT_ONCE", 2)
    generator = np.random.default_rng(0)
    names = [f"w{i}" for i in range(12)]
    texts = [
        " ".join(generator.choice(names[:9], size)) for size in generator.integers(1, 6, 7).tolist()
    ]
    assert len(set(texts)) == len(texts)
    written(folder / "train.tsv", "text\tlabel", *(f"{x}\t{'xy'[len(x) % 2]}" for x in texts))
    written(folder / "dev.tsv", "text\tlabel", "w10 w11\tx")
    rows = generator.normal(0.5, 1, (12, 4)).round(3)
    lines = [" ".join([name, *map(str, row)]) for name, row in zip(names, rows, strict=True)]
    vectors = written(folder / "v.txt", *lines)
    settings = ("own_vectors=false", "extra_words=12", "test_fraction=0", "embedding_dim=4")
    settings = (*settings, "word_weights=0.1")
    before = prepare(recipe_of("text", *settings), folder, vectors)
    after = prepare(recipe_of("text", *settings, "remove_directions=2"), folder, vectors)
    ids = before.tokenizer.get_vocab()
    old, new = (np.array([x.vectors[ids[name]] for name in names]) for x in (before, after))
    means = np.array([old[[names.index(w) for w in text.split()]].mean(0) for text in texts])
    common = np.linalg.svd(means)[2][:2]
    np.testing.assert_allclose(new, old - old @ common.T @ common, atol=1e-6)
    assert np.abs(new @ common.T).max() < 1e-5 < np.abs(old @ common.T).min()
    with pytest.raises(ValueError, match=r"remove_directions is 4.*only 4 dimensions"):
        prepare(recipe_of("text", *settings, "remove_directions=4"), folder, vectors)


def test_pairs_of_a_premise_stay_in_one_split(folder):
    lines = [
        json.dumps({"gold_label": label, "sentence1": f"w{i} a", "sentence2": f"w{i} {label}"})
        for i in range(40)
        for label in ("entailment", "contradiction")
    ]
    path = written(folder / "pairs.jsonl", *lines)
    recipe = recipe_of("embed", "hidden_dim=2", "dev_fraction=0.2", "test_fraction=0.1")
    prepared = prepare(recipe, path)
    assert sizes(prepared) == {"train": 56, "dev": 16, "test": 8}
    for split in prepared.splits.values():
        kinds, groups = split.labels.T
        assert sorted(kinds.tolist()) == [0] * (len(kinds) // 2) + [1] * (len(kinds) // 2)
        assert set(np.bincount(groups).tolist()) <= {0, 2}
