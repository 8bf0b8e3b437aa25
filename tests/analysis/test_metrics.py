"""How alike trees are and what they look like, by hand; the command `trees`."""

import dataclasses
import io
import json
import re
import shutil
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

import gumbeltree
from gumbeltree.analysis import metrics
from gumbeltree.analysis.gold import Gold, GoldExample
from gumbeltree.analysis.metrics import Bracketing, TreeShape, bracketing, f1
from gumbeltree.analysis.metrics import plot as metrics_plot
from gumbeltree.analysis.metrics import report as metrics_report
from gumbeltree.analysis.metrics.report import ParsedSentence
from gumbeltree.cli.trees import _print
from gumbeltree.config import HeadConfig, ModelConfig
from gumbeltree.data.compile import prepare
from gumbeltree.model import SentenceModel
from gumbeltree.nn.heads.class_evaluation import Bucket
from gumbeltree.tasks import TASKS
from gumbeltree.tasks.task import Example
from gumbeltree.training.loop import train
from gumbeltree.tree import Tree
from tests.commands import run
from tests.models import encoder_settings, tiny_model
from tests.runs import small

# ((a b) (c d)), (a (b (c d))), (((a b) c) d), ((a (b c)) d)
HALVES, RIGHT, LEFT, MIDDLE = ([(0, 2), (2, 4)], [(1, 4), (2, 4)], [(0, 2), (0, 3)], [(1, 3)])
MIDDLE = [*MIDDLE, (0, 3)]
FOUR = tuple("abcd")


def four(*trees):
    return [bracketing(FOUR, spans) for spans in trees]


# spans and F1


def test_a_tree_is_its_spans_with_the_root():
    assert bracketing(FOUR, HALVES) == Bracketing(4, frozenset({(0, 2), (2, 4), (0, 4)}))
    assert metrics.of_tree(Tree("a b c d", [0, 1, 0])) == bracketing(FOUR, HALVES)
    # the root given or not, words given or not
    assert bracketing(FOUR, [*HALVES, (0, 4), (1, 2)]) == bracketing(FOUR, HALVES)


def test_f1_by_hand():
    # two spans each beside the root, one of them shared
    found = f1(four(HALVES), four(RIGHT))
    assert found == (0.5, 0.5, 0.5, 0.5, 1, 0)
    assert f1(four(LEFT), four(RIGHT)).sentence == 0
    assert f1(four(MIDDLE), four(LEFT)).sentence == 0.5
    # with the root and four words: 1 + 5 of 2 + 5
    assert f1(four(HALVES), four(RIGHT), keep_trivial=True).sentence == pytest.approx(6 / 7)
    assert f1(four(LEFT), four(RIGHT), keep_trivial=True).sentence == pytest.approx(5 / 7)


def test_sentence_and_corpus_level_differ():
    # three words: one span, shared. Five words: three spans, none shared.
    short, long = ("a", "b", "c"), tuple("abcde")
    ours = [bracketing(short, [(0, 2)]), metrics.of_tree(Tree.left_branching(long))]
    gold = [bracketing(short, [(0, 2)]), metrics.of_tree(Tree.right_branching(long))]
    found = f1(ours, gold)
    assert found.sentence == 0.5
    assert found.corpus == pytest.approx(1 / 4)
    assert (found.sentences, found.skipped) == (2, 0)


def test_gold_nodes_with_many_children_cost_precision_alone():
    # (a b c (d e)): one span; the model has three, that one among them
    words = tuple("abcde")
    gold = [bracketing(words, [(3, 5)])]
    ours = [metrics.of_tree(Tree.right_branching(words))]
    found = f1(ours, gold)
    assert (found.precision, found.recall) == (pytest.approx(1 / 3), 1)
    assert found.sentence == pytest.approx(2 * 1 / (3 + 1))
    # no binary tree does better
    assert metrics.best_f1(gold) == found
    assert metrics.best_f1(four(HALVES)).sentence == 1


def test_a_flat_gold_tree_gives_nothing_to_find():
    flat = [bracketing(("a", "b", "c"), [])]
    ours = [bracketing(("a", "b", "c"), [(0, 2)])]
    assert f1(ours, flat)[:4] == (0, 0, 0, None)


def test_identical_trees_give_one():
    trees = [metrics.of_tree(Tree.random("a b c d e f g"[: 2 * n], n)) for n in range(3, 8)]
    for keep in (False, True):
        found = f1(trees, trees, keep)
        assert found.sentence == found.corpus == found.precision == found.recall == 1


def test_sentences_without_a_span_are_skipped():
    one, two = bracketing(("a",), []), bracketing(("a", "b"), [])
    assert f1([one, two], [one, two]) == (None, None, None, None, 0, 2)
    assert f1([one, two, *four(LEFT)], [one, two, *four(LEFT)])[4:] == (1, 2)
    # each word, and the whole if that is more
    assert f1([one, two], [one, two], keep_trivial=True) == (1, 1, 1, 1, 2, 0)


def test_punctuation_taken_out_makes_spans_trivial():
    # ((a b) .) and (a (b .)): without the full stop both are (a b), which is the whole sentence
    words = ("a", "b", ".")
    first, second = [(0, 2)], [(1, 3)]
    kept = [[bracketing(words, spans, keep_punctuation=True)] for spans in (first, second)]
    assert f1(*kept).sentence == 0
    dropped = [[bracketing(words, spans)] for spans in (first, second)]
    assert dropped[0] == dropped[1] == [Bracketing(2, frozenset({(0, 2)}))]
    assert f1(*dropped) == (None, None, None, None, 0, 1)
    # ((a ,) (b c)): (a ,) is a word without its comma; (0, 2) must not become another span
    assert bracketing(("a", ",", "b", "c"), [(0, 2), (2, 4)]) == bracketing("abc", [(1, 3)])
    # ((a b) .) c: (0, 2) and (0, 3) are one
    assert bracketing(("a", "b", ".", "c"), [(0, 2), (0, 3)]) == bracketing("abc", [(0, 2)])
    assert bracketing((".", "--"), []) == Bracketing(0, frozenset())
    assert f1([bracketing((".",), [])], [bracketing((".",), [])], True).skipped == 1


@pytest.mark.parametrize("word", [".", ",", "--", "''", "``", "(", "...", "?!", "«", "'"])
def test_punctuation(word):
    assert metrics.is_punctuation(word)


@pytest.mark.parametrize("word", ["a", "'s", "%", "$", "&", "3.5", "n't", "-LRB-", "…x", "+", "#"])
def test_no_punctuation(word):
    assert not metrics.is_punctuation(word)


def test_trees_of_other_sentences_are_refused():
    with pytest.raises(ValueError, match="got 1 and 2 of them"):
        f1(four(LEFT), four(LEFT, RIGHT))
    with pytest.raises(ValueError, match="got 4 and 3 words in sentence 0"):
        f1(four(LEFT), [bracketing("abc", [])])


# baselines


@pytest.mark.parametrize(
    ("kind", "expected"), [("left", 0.5), ("right", 0.5), ("balanced", 1), ("random", None)]
)
def test_baselines_by_hand(kind, expected):
    # gold ((a b) (c d)): left shares (a b), right shares (c d)
    gold = four(HALVES)
    found = f1(metrics.baseline(kind, [FOUR]), gold).sentence
    assert found == expected or (kind == "random" and found in (0, 0.5, 1))


def test_baselines_are_the_trees_of_their_name():
    made = {kind: metrics.baseline(kind, [FOUR])[0] for kind in metrics.BASELINES}
    assert [made["left"]] == four(LEFT)
    assert [made["right"]] == four(RIGHT)
    assert [made["balanced"]] == four(HALVES)
    with pytest.raises(ValueError, match="one of left, right, balanced, random, got 'rigth'"):
        metrics.baseline("rigth", [FOUR])


def test_random_trees_differ_by_sentence_and_by_seed():
    sentences = [tuple("abcdefgh")] * 40
    first, second = (metrics.baseline("random", sentences, seed=seed) for seed in (0, 1))
    assert len(set(first)) > 20
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 10
    assert metrics.baseline("random", sentences, seed=1) == second


def test_random_trees_of_three_words_are_fair():
    trees = metrics.baseline("random", [tuple("abc")] * 2000)
    share = sum((0, 2) in tree.spans for tree in trees) / 2000
    # five standard deviations
    assert abs(share - 0.5) < 5 * 0.5 / 2000**0.5


# agreement of models


def test_self_f1_of_three_hand_made_models():
    # sentence 1: halves, left, right; sentence 2: left, left, middle
    models = [four(HALVES, LEFT), four(LEFT, LEFT), four(RIGHT, MIDDLE)]
    found = metrics.self_f1(models)
    pairs = {(i, j): each.sentence for i, j, each in found.pairs}
    # (1/2 + 1) / 2, (1/2 + 1/2) / 2, (0 + 1/2) / 2
    assert pairs == {(0, 1): 0.75, (0, 2): 0.5, (1, 2): 0.25}
    assert found.sentence == pytest.approx(0.5)
    assert found.corpus == pytest.approx(0.5)
    with pytest.raises(ValueError, match="two models or more, got 1"):
        metrics.self_f1(models[:1])


# shape


def test_depth_and_branching_by_hand():
    assert metrics.shape(four(LEFT)) == TreeShape(3, 1, 0, 0)
    assert metrics.shape(four(RIGHT)) == TreeShape(3, 0, 1, 0)
    assert metrics.shape(four(HALVES)) == TreeShape(2, 0, 0, 1)
    # ((a (b c)) d): right below, left above
    assert metrics.shape(four(MIDDLE)) == TreeShape(3, 0.5, 0.5, 0)
    # means of depths, shares of all nodes: left 2 of 3, both 1 of 3
    assert metrics.shape(four(LEFT, HALVES)) == TreeShape(2.5, pytest.approx(2 / 3), 0, 1 / 3)


def test_shape_of_small_and_flat_trees():
    word, pair = bracketing(("a",), []), bracketing(("a", "b"), [])
    assert metrics.shape([word, pair]) == TreeShape(0.5, None, None, None)
    # three children: depth counts, branching does not
    assert metrics.shape([bracketing("abc", [])]) == TreeShape(1, None, None, None)
    assert metrics.shape([]) == TreeShape(None, None, None, None)
    assert metrics.shape([bracketing((".",), [])]) == TreeShape(None, None, None, None)


@pytest.mark.parametrize("seed", range(20))
def test_depth_is_the_trees_own(seed):
    tree = Tree.random("a b c d e f g h i j k", seed)
    assert metrics.depth(tree.spans, len(tree)) == tree.depth
    nodes = list(metrics.nodes(metrics.of_tree(tree)))
    assert len(nodes) == 10
    assert all(len(children) == 2 for _, _, children in nodes)


# accuracy in bins


def test_binned_accuracy_by_hand():
    values = [0, 3, 4, 5, 9, 9]
    correct = [True, False, True, True, False, True]
    assert metrics.binned(values, correct, (3, 5, 7)) == [
        Bucket(0, 3, 2, 1),
        Bucket(4, 5, 2, 2),
        Bucket(8, None, 2, 1),
    ]
    assert metrics.binned(values, correct, (3, 5, 7))[-1].name == "8+"
    assert metrics.binned([], [], (3,)) == []
    with pytest.raises(ValueError, match="got 2 and 1"):
        metrics.binned([1, 2], [True], (3,))


def test_accuracy_by_length_and_depth_of_a_model():
    model, task = tiny_model("single"), TASKS["sst2"]()
    texts = ["the dog sleeps now .", "the dog that barked all night sleeps .", "one dog", "now"]
    labels = [p.label for p in model.predict(texts, pretokenized=True)]
    # the second one is made wrong
    labels[1] = "good" if labels[1] == "bad" else "bad"
    examples = [
        GoldExample(Example((text,), label, (None,)), (_gold(Tree.right_branching(text)),))
        for text, label in zip(texts, labels, strict=True)
    ]
    found = metrics_report.accuracy(model, task, examples)
    assert (found.examples, found.correct) == (4, 3)
    assert found.by_length == [Bucket(1, 5, 3, 3), Bucket(6, 10, 1, 0)]
    own = [tree.depth for tree in model.parse_many(texts, pretokenized=True)]
    expected = metrics.binned(own, [True, False, True, True], metrics_report.DEEPEST)
    assert found.by_depth == expected
    # right-branching: 4, 7, 1 and 0
    assert found.by_gold_depth == [Bucket(0, 3, 2, 2), Bucket(4, 5, 1, 1), Bucket(6, 7, 1, 0)]
    # an example without a gold tree
    examples.append(GoldExample(examples[0].example, (None,)))
    assert metrics_report.accuracy(model, task, examples).by_gold_depth == []


# models


def _gold(tree, place="here"):
    return Gold(tree.words, frozenset(tree.spans), place)


def _sentence(tree):
    return ParsedSentence(tree.words, tree.spans)


def test_a_comparison():
    trees = [Tree.from_brackets(x) for x in ("( ( a b ) ( c d ) )", "( a ( b c ) )", "( d . )")]
    right = [Tree.right_branching(tree.words) for tree in trees]
    models = {"same": [_sentence(tree) for tree in trees], "right": [_sentence(t) for t in right]}
    found = metrics_report.compare(models, [_gold(tree) for tree in trees], random_seeds=3)
    f1s = {row.name: row.f1.sentence for row in found.rows if row.f1 and row.kind == "model"}
    # of the two sentences with spans: 1/2 and 1
    assert f1s == {"same": 1, "right": 0.75}
    baseline = {row.name: row.f1.sentence for row in found.of("baseline")}
    assert baseline["right"] == 0.75
    assert baseline["left"] == 0.25
    assert 0 <= baseline["random"] <= 1
    assert found.rows[0].kind == "gold"
    assert found.rows[0].likeness["right"].sentence == 0.75
    assert found.of("bound")[0].f1.sentence == 1
    assert found.self_f1.sentence == 0.75
    about = json.loads(json.dumps(found.as_dict()))
    assert about["punctuation"] == about["trivial_spans"] == "dropped"
    assert about["self_f1"]["pairs"][0]["first"] == "same"
    assert [row["kind"] for row in about["rows"]] == [
        "gold",
        *2 * ["model"],
        *4 * ["baseline"],
        "bound",
    ]
    with pytest.raises(ValueError, match="at least 1, got 0"):
        metrics_report.compare(models, random_seeds=0)


def test_a_model_parses_the_words_of_the_tree():
    model = tiny_model("single")
    gold = [_gold(Tree.right_branching(["don't-split", "(", "the", "dog"]))]
    found = metrics_report.parse_gold(model, gold)
    assert found[0].words == gold[0].words
    assert found[0].spans == model.parse("don't-split ( the dog", pretokenized=True).spans


def test_words_that_a_model_reads_otherwise_are_refused():
    model = tiny_model("single")
    most = model.config.max_words
    long = _gold(Tree.left_branching(["a"] * (most + 1)), "mine.txt, line 7")
    with pytest.raises(ValueError, match=rf"mine.txt, line 7.*most {most} words.*got {most + 1}"):
        metrics_report.parse_gold(model, [long])
    # an escape that is undone once more
    odd = Gold(("a", r"\/"), frozenset(), "mine.txt, line 8")
    with pytest.raises(ValueError, match=r"line 8.*tiny reads.* at word 1, and 2 words for 2"):
        metrics_report.parse_gold(model, [odd], "tiny")


def test_a_model_without_trees_is_refused():
    with pytest.raises(ValueError, match="mine builds no tree: its encoder is 'lstm'"):
        metrics_report.parse_gold(_without_trees(), [], "mine")


def test_short_names():
    short = metrics_report.short_names
    assert short(["a/b/c", "a/b/d"]) == ["c", "d"]
    assert short(["a/c/model", "a/d/model"]) == ["c", "d"]
    assert short(["sst2-100d", "snli-100d"]) == ["sst2-100d", "snli-100d"]
    assert short(["runs/a", "runs/a/b"]) == ["a", "a/b"]
    assert short(["runs/a/model"]) == ["runs/a/model"]


# saved merges


def save_orders(path, orders, lengths, numbers=None):
    numbers = list(range(len(lengths))) if numbers is None else numbers
    np.savez_compressed(
        path,
        sentence=np.array(numbers, np.int32),
        length=np.array(lengths, np.uint16),
        order=np.array(orders, np.uint16),
    )
    return path


def test_merges_of_runs(tmp_path):
    # ((a b) (c d)), a word, (a (b c))
    first = save_orders(tmp_path / "a.npz", [0, 1, 0, 1, 0], [4, 1, 3])
    numbers, trees = metrics_report.read_orders(first)
    assert numbers == [0, 1, 2]
    assert [set(tree.spans) for tree in trees] == [
        {(0, 2), (2, 4), (0, 4)},
        set(),
        {(1, 3), (0, 3)},
    ]
    second = save_orders(tmp_path / "b.npz", [2, 1, 0, 0, 0], [4, 1, 3])
    # right and left: (1/2 + 0) / 2
    found = metrics_report.compare(
        metrics_report.same_sentences([first, second]), keep_punctuation=True
    )
    assert found.self_f1.sentence == 0.25
    assert found.of("model")[1].likeness["right"].sentence == 0.5
    result = run("trees", first, second, "--json", "-q")
    assert result.code == 0
    about = json.loads(result.out)
    assert about["self_f1"]["sentence"] == 0.25
    assert about["punctuation"] == "kept"
    assert [row["f1"] for row in about["rows"]] == [None] * 6
    assert run("trees", first, second).out.count("b.npz") == 2
    # of the first sentence alone: 1/2
    about = json.loads(run("trees", first, second, "--limit", 1, "--json", "-q").out)
    assert (about["sentences"], about["self_f1"]["sentence"]) == (1, 0.5)
    assert run("trees", first, "--limit", 1).out.startswith("1 sentence; ")
    upper = first.rename(tmp_path / "A.NPZ")
    assert json.loads(run("trees", upper, second, "--json", "-q").out)["sentences"] == 3


def test_merges_that_do_not_fit(tmp_path):
    first = save_orders(tmp_path / "a.npz", [0, 1, 0], [4])
    other = save_orders(tmp_path / "b.npz", [0, 1, 0, 0], [5])
    assert "expected merges of the same sentences" in run("trees", first, other).refused()
    short = save_orders(tmp_path / "c.npz", [0, 1], [4])
    assert "got 2 merges for 1 sentences of 4 words" in run("trees", short).refused()
    wrong = save_orders(tmp_path / "d.npz", [0, 9, 0], [4])
    assert "`order[1]` must lie in 0..1, got 9" in run("trees", wrong).refused()
    (tmp_path / "e.npz").write_bytes(b"nothing")
    assert "dev_orders.npz" in run("trees", tmp_path / "e.npz").refused()
    np.savez(tmp_path / "f.npz", other=np.zeros(3))
    assert "f.npz: expected merges" in run("trees", tmp_path / "f.npz").refused()
    assert "got nothing there" in run("trees", tmp_path / "g.npz").refused()
    assert "leave --data" in run("trees", first, "--gold", "x").refused()
    assert "and --parses out" in run("trees", first, "--parses", "full").refused()
    assert "about --gold, got none" in run("trees", first, "--gold-format", "plain").refused()
    assert "pass one kind" in run("trees", first, "model").refused()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": [[4]]}, "expected rows of whole numbers.* int64 [1], int64 [1, 1], int64 [3]"),
        ({"length": 4}, "expected rows of whole numbers"),
        ({"length": [4.0]}, "float64 [1]"),
        ({"sentence": [[0]]}, "int64 [1, 1], int64 [1], int64 [3]"),
        ({"order": ["a", "b", "c"]}, "<U1 [3]; pass dev_orders.npz of a run"),
        ({"sentence": [0, 1], "length": [6, -1]}, "expected merges of words, but"),
        ({"sentence": [], "length": [], "order": []}, "expected merges of sentences, got none"),
    ],
)
def test_odd_files_of_merges(tmp_path, changes, message):
    arrays = {"sentence": [0], "length": [4], "order": [0, 1, 0], **changes}
    path = tmp_path / "odd.npz"
    np.savez(path, **{k: np.array(v, int if v == [] else None) for k, v in arrays.items()})
    error = run("trees", path).refused()
    assert error.startswith(f"gumbeltree: error: {path}: ")
    assert all(part in error for part in message.split(".*"))


def test_files_of_merges_that_cannot_be_read(tmp_path):
    with (tmp_path / "array.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    numbers = np.random.default_rng(0).integers(0, 1000, 5000)
    np.savez_compressed(tmp_path / "damaged.npz", sentence=numbers, length=numbers, order=numbers)
    content = bytearray((tmp_path / "damaged.npz").read_bytes())
    content[60:140] = b"\xff" * 80
    (tmp_path / "damaged.npz").write_bytes(content)
    for name in ("array.npz", "damaged.npz"):
        error = run("trees", tmp_path / name).refused()
        assert f"{name}: expected merges as `gumbeltree train` writes them" in error


def test_runs_without_trees_have_no_merges(tmp_path, monkeypatch):
    monkeypatch.setenv("GUMBELTREE_HOME", str(tmp_path / "home"))
    recipe = small("encoder.kind=bag", "epochs=1", "evaluations=1")
    path = tmp_path / "run" / "dev_orders.npz"
    train(recipe, prepare(recipe), path.parent)
    assert (path.parent / "result.json").exists()
    assert not path.exists()
    # as runs were left before
    save_orders(path, [0, 0, 0], [4])
    assert "a run with the encoder 'bag', which mean nothing" in run("trees", path).refused()
    shutil.rmtree(path.parent / "model")
    gumbeltree.save(tiny_model("single", trees="left"), path.parent / "model")
    assert run("trees", path).code == 0


# the command


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trees")
    for kind, task in (("single", "sst2"), ("pair", "snli")):
        gumbeltree.save(tiny_model(kind), folder / kind, {"recipe": {"data": {"task": task}}})
    gumbeltree.save(tiny_model("single", leaf="affine"), folder / "other")
    lines = [
        "(3 (2 (2 the) (2 dog)) (3 (3 sleeps) (2 .)))",
        "(1 (2 not) (1 (2 one) (2 cat)))",
        "(2 (2 one) (2 dog))",
        "(4 (2 the) (4 (2 dog) (4 (2 that) (3 (3 barked) (2 -LRB-)))))",
    ]
    (folder / "dev.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "mine.txt").write_text("( ( the dog ) sleeps )\n( not ( one cat ) )\n", "utf-8")
    return folder


@pytest.fixture(scope="module")
def sentiment(tmp_path_factory):
    """A model of SST's labels."""
    folder = tmp_path_factory.mktemp("sentiment")
    old = tiny_model("single")
    head = HeadConfig("single", ("negative", "positive"), hidden_dim=7)
    config = ModelConfig(old.config.encoder, head, old.config.embedding)
    model = SentenceModel(config, old.tokenizer).eval()
    gumbeltree.save(model, folder, {"recipe": {"data": {"task": "sst2"}}})
    return folder


def test_the_command_as_json(folder, sentiment):
    # neutral sentences are dropped by sst2, kept by sst5
    result = run("trees", sentiment, "--data", folder, "--split", "dev", "--json")
    assert result.code == 0, result
    assert "3 examples read; 1 dropped (1 neutral)" in result.err
    about = json.loads(result.out)
    assert set(about) == {
        *("models", "task", "file", "gold", "parses", "sentences", "punctuation", "notes"),
        *("trivial_spans", "random_seeds", "rows", "self_f1", "random_self_f1", "accuracy"),
        "bad_lines",
    }
    assert (about["task"], about["sentences"], about["parses"]) == ("sst2", 3, "binary")
    rows = {row["name"]: row for row in about["rows"]}
    right = rows["right"]["f1"]
    # without punctuation: ((the dog) sleeps) 0, (not (one cat)) 1, right-branching 1
    assert right["sentence"] == pytest.approx(2 / 3)
    assert right["corpus"] == pytest.approx(3 / 4)
    model = gumbeltree.load(sentiment)
    trees = model.parse_many(
        ["the dog sleeps .", "not one cat", "the dog that barked ("], pretokenized=True
    )
    expected = f1(
        [metrics.of_tree(tree) for tree in trees],
        [
            bracketing("abc", [(0, 2)]),
            bracketing("abc", [(1, 3)]),
            bracketing("abcd", [(1, 4), (2, 4)]),
        ],
    )
    assert rows[str(sentiment)]["f1"]["sentence"] == pytest.approx(expected.sentence)
    (accuracy,) = about["accuracy"]
    assert accuracy["examples"] == 3
    assert sum(b["examples"] for b in accuracy["by_depth"]) == 3
    assert about["self_f1"] is None
    more = ["--task", "sst5", "--keep-punctuation", "--keep-trivial", "--limit", 3]
    result = run("trees", sentiment, "--data", folder / "dev.txt", *more, "--json")
    about = json.loads(result.out)
    assert (about["sentences"], about["punctuation"], about["trivial_spans"]) == (3, "kept", "kept")
    assert about["accuracy"] == []
    assert "labels that it does not know" in about["notes"][0]
    # right: ((the dog) (sleeps .)) 1 + 5 of 7; then all, all
    rows = {row["name"]: row for row in about["rows"]}
    assert rows["right"]["f1"]["sentence"] == pytest.approx((6 / 7 + 1 + 1) / 3)


def test_the_command_as_a_table(folder):
    two = [folder / "single", folder / "other"]
    result = run("trees", *two, "--gold", folder / "mine.txt")
    assert result.code == 0, result
    assert "2 sentences; punctuation dropped, trivial spans dropped" in result.out
    for name in ("single", "other", "left", "right", "balanced", "random", "gold"):
        assert f"│ {name} " in result.out
    assert "F1 of the models with each other: " in result.out
    assert "Accuracy" not in result.out
    assert run("trees", *two, "--gold", folder / "mine.txt", "-q").err == ""


@pytest.mark.parametrize("gold", [True, False])
@pytest.mark.parametrize("width", [20, 45, 50, 71, 72, 100])
def test_tables_of_narrow_terminals_cut_no_figure(gold, width):
    tree = Tree.left_branching("a b c d e f g h i j k l")
    trees = [_gold(tree)] if gold else None
    models = {"runs/a-long-name": [_sentence(tree)], "other": [_sentence(tree)]}
    found = metrics_report.compare(models, trees)
    text = io.StringIO()
    _print(Console(file=text, width=width), found, [])
    lines = text.getvalue().splitlines()
    assert max(map(len, lines[1:-2])) <= max(width, 46)
    assert "\u2026" not in text.getvalue()
    # depth, left, right, both; before them both F1, of gold trees
    figures = r"11\.00\W+100\.0\W+0\.0\W+0\.0"
    row = r"left\W+" + r"100\.0\W+" * (2 if gold else 0) + figures
    assert sum(re.search(row, line) is not None for line in lines) == 1
    assert ("\u2502" in text.getvalue()) == (width >= 72)


def test_trees_without_a_span_have_no_figure(folder, tmp_path):
    path, svg = tmp_path / "pairs.txt", tmp_path / "trees.svg"
    path.write_text("( one dog )\n", encoding="utf-8")
    two = [folder / "single", folder / "other"]
    result = run("trees", *two, "--gold", path, "--plot", svg, "-q")
    assert "each other: no spans to compare; random trees with each other no spans" in result.out
    drawn = svg.read_text(encoding="utf-8")
    assert drawn.count(">no spans<") == 6
    assert ">0.0<" not in drawn
    assert "best binary tree" not in drawn
    orders = save_orders(tmp_path / "a.npz", [0], [2])
    assert run("trees", orders, "--plot", svg, "-q").code == 0
    assert svg.read_text(encoding="utf-8").count(">no spans<") == 4


def test_names_that_no_font_has_are_no_warning(tmp_path, recwarn):
    found = metrics_report.compare({"\U00013000": [_sentence(Tree("a b c", [0, 0]))]})
    metrics_plot.draw(tmp_path / "trees.png", found)
    assert not [each for each in recwarn if "Glyph" in str(each.message)]


def test_names_that_matplotlib_would_leave_out(tmp_path):
    svg, names = tmp_path / "trees.svg", ["_one", "_two", "three"]
    sentence = _sentence(Tree("a b c", [0, 0]))
    buckets = [Bucket(1, 5, 40, 30), Bucket(6, None, 20, 10)]
    accuracies = [metrics_report.Accuracy(x, 60, 40, buckets, buckets, []) for x in names]
    metrics_plot.draw(svg, metrics_report.compare({x: [sentence] for x in names}), accuracies)
    drawn = [text.strip() for text in ElementTree.parse(svg).getroot().itertext()]
    # below the bars, and in both panels of accuracy
    assert sorted(x for x in drawn if x in names) == sorted(3 * names)


def test_both_files_are_named(folder, sentiment):
    data = ["--data", folder / "dev.txt", "--gold", folder / "mine.txt"]
    err = run("trees", sentiment, *data).err
    assert f"{folder / 'dev.txt'} and {folder / 'mine.txt'}: 5 examples read" in err


def test_pairs_count_each_sentence_once(folder, tmp_path):
    line = {
        "gold_label": "neutral",
        "sentence1": "the dog sleeps",
        "sentence2": "one dog barked",
        "sentence1_binary_parse": "( ( the dog ) sleeps )",
        "sentence2_binary_parse": "( ( one dog ) barked )",
    }
    other = {**line, "sentence2": "not one cat", "sentence2_binary_parse": "( not ( one cat ) )"}
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(x) + "\n" for x in (line, other)), encoding="utf-8")
    about = json.loads(run("trees", folder / "pair", "--data", path, "--json").out)
    assert about["sentences"] == 3
    assert about["accuracy"][0]["examples"] == 2
    bare = {key: value for key, value in line.items() if "parse" not in key}
    path.write_text(json.dumps(bare) + "\n", encoding="utf-8")
    message = run("trees", folder / "pair", "--data", path).refused()
    assert "expected gold trees with the texts, got none" in message
    result = run("trees", folder / "single", "--task", "snli", "--data", path).refused()
    assert "expected gold trees" in result


def test_brackets_of_listops_stay(tmp_path, folder):
    path = tmp_path / "test_d20s.tsv"
    path.write_text("8\t( ( ( [MAX 2 ) 8 ) ] )\n", encoding="utf-8")
    command = ["trees", folder / "single", "--task", "listops", "--data", tmp_path, "--json"]
    about = json.loads(run(*command).out)
    assert about["punctuation"] == "kept"
    assert {row["name"]: row for row in about["rows"]}["left"]["f1"]["sentence"] == 1
    assert json.loads(run(*command, "--drop-punctuation").out)["punctuation"] == "dropped"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gold", "nowhere.txt"], "nowhere.txt: expected a file"),
        ([], "expected gold trees, got neither --data nor --gold"),
        (["--task", "sst2", "--gold", "x"], "are about --data"),
        (["--data", "x", "--task", "sick"], "expected a task with gold trees"),
        (["--data", "x", "--split", "training"], "must be train, dev or test"),
        (["--data", "x", "--gold-format", "plain"], "--gold-format is about --gold, got none"),
        (["--gold", "x", "--plot", "y.docx"], "y.docx: expected a picture's file name"),
        (["--gold", "x", "--plot", "/nowhere/y.png"], "expected a folder /nowhere"),
    ],
)
def test_refusals(folder, arguments, message):
    assert message in run("trees", folder / "single", *arguments).refused()


def test_more_refusals(folder, tmp_path):
    both = [folder / "single", folder / "pair"]
    assert "say with --task" in run("trees", *both, "--data", "x").refused()
    assert (
        "builds no tree: its encoder is"
        in run("trees", *both[:1], _lstm(tmp_path), "--gold", "x").refused()
    )
    assert "expected each model once" in run("trees", both[0], both[0], "--gold", "x").refused()
    bad = tmp_path / "bad.txt"
    bad.write_text("( a b )\n( a ( b c )\n", encoding="utf-8")
    assert "bad.txt, line 2: expected 1 more ')'" in run("trees", both[0], "--gold", bad).refused()
    result = run("trees", both[0], "--gold", bad, "--skip-bad")
    assert result.code == 0
    assert "1 bad line skipped" in result.err
    bad.write_text("\n\n", encoding="utf-8")
    assert "expected a tree a line, got none" in run("trees", both[0], "--gold", bad).refused()


def test_trees_that_are_too_long(folder, tmp_path):
    most = tiny_model("single").config.max_words
    path = tmp_path / "long.txt"
    long = "( " + " ".join(["a"] * (most + 1)) + " )\n"
    path.write_text(f"( a ( b c ) )\n{long}", encoding="utf-8")
    message = run("trees", folder / "single", "--gold", path).refused()
    assert f"long.txt, line 2: expected a tree of at most {most} words" in message
    result = run("trees", folder / "single", "--gold", path, "--skip-bad", "--json")
    about = json.loads(result.out)
    assert about["sentences"] == 1
    assert about["notes"] == [f"trees of more than {most} words left out: 1"]
    path.write_text(long, encoding="utf-8")
    assert "pass others" in run("trees", folder / "single", "--gold", path, "--skip-bad").refused()


def _without_trees():
    old = tiny_model("single")
    encoder = encoder_settings(kind="lstm")
    return SentenceModel(dataclasses.replace(old.config, encoder=encoder), old.tokenizer)


def _lstm(folder):
    gumbeltree.save(_without_trees(), folder / "lstm")
    return folder / "lstm"


def test_pictures(folder, sentiment, tmp_path):
    png, svg = tmp_path / "trees.png", tmp_path / "trees.svg"
    data = ["--data", folder / "dev.txt", "--task", "sst2"]
    assert run("trees", sentiment, folder / "other", *data, "--plot", png, "-q").code == 0
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert run("trees", sentiment, folder / "other", *data, "--plot", svg, "-q").code == 0
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    text = svg.read_text(encoding="utf-8")
    assert all(name in text for name in ("other", "left", "balanced", "F1 with the gold trees"))
    orders = save_orders(tmp_path / "a.npz", [0, 1, 0], [4])
    assert run("trees", orders, "--plot", svg, "-q").code == 0
    assert "F1 with the baseline" in svg.read_text(encoding="utf-8")
