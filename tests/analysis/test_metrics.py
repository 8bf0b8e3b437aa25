"""Tree metrics checked by hand, and the command `trees`."""

import dataclasses
import json
from xml.etree import ElementTree

import numpy as np
import pytest

import gumbeltree
from gumbeltree.analysis import metrics
from gumbeltree.analysis.gold import Gold, GoldExample
from gumbeltree.analysis.metrics import Bracketing, TreeShape, bracketing, f1
from gumbeltree.analysis.metrics import plot as metrics_plot
from gumbeltree.analysis.metrics import report as metrics_report
from gumbeltree.config import HeadConfig, ModelConfig
from gumbeltree.model import SentenceModel
from gumbeltree.nn.heads.class_evaluation import Bucket
from gumbeltree.tasks import TASKS
from gumbeltree.tasks.task import Example
from gumbeltree.tree import Tree
from tests.commands import run
from tests.models import encoder_settings, tiny_model

# ((a b) (c d)), (a (b (c d))), (((a b) c) d), ((a (b c)) d)
HALVES, RIGHT, LEFT, MIDDLE = (
    [(0, 2), (2, 4)],
    [(1, 4), (2, 4)],
    [(0, 2), (0, 3)],
    [(1, 3), (0, 3)],
)


def four(*trees):
    return [bracketing("abcd", spans) for spans in trees]


def of_tree(tree):
    return bracketing(tree.words, tree.spans)


def gold_of(tree, place="here"):
    return Gold(tree.words, frozenset(tree.spans), place)


# spans and F1


def test_bracketing_adds_the_root_and_ignores_words():
    expected = Bracketing(4, frozenset({(0, 2), (2, 4), (0, 4)}))
    assert bracketing("abcd", HALVES) == expected
    assert bracketing("abcd", [*HALVES, (0, 4), (1, 2)]) == expected


@pytest.mark.parametrize(
    ("first", "second", "dropped", "kept"),
    [
        # one of two spans shared; with the root and four words 1 + 5 of 2 + 5
        (HALVES, RIGHT, 1 / 2, 6 / 7),
        (LEFT, RIGHT, 0, 5 / 7),
        (MIDDLE, LEFT, 1 / 2, 6 / 7),
        (MIDDLE, MIDDLE, 1, 1),
    ],
)
def test_f1_with_and_without_trivial_spans(first, second, dropped, kept):
    score = f1(four(first), four(second))
    assert score.sentence == score.corpus == score.precision == score.recall == dropped
    assert f1(four(first), four(second), keep_trivial=True).sentence == pytest.approx(kept)


def test_corpus_f1_pools_the_spans():
    # three words: one span, shared. Five words: three spans, none shared.
    short = bracketing("abc", [(0, 2)])
    score = f1(
        [short, of_tree(Tree.left_branching("a b c d e"))],
        [short, of_tree(Tree.right_branching("a b c d e"))],
    )
    assert (score.sentence, score.corpus) == (0.5, 0.25)
    assert (score.sentences, score.skipped) == (2, 0)


def test_gold_nodes_with_many_children_cost_precision_only():
    # (a b c (d e)) has one span, the binary tree three, including that one
    gold = [bracketing("abcde", [(3, 5)])]
    score = f1([of_tree(Tree.right_branching("a b c d e"))], gold)
    assert (score.precision, score.recall) == (pytest.approx(1 / 3), 1)
    assert score.sentence == 0.5
    assert metrics.best_f1(gold) == score
    flat = f1([bracketing("abc", [(0, 2)])], [bracketing("abc", [])])
    assert (flat.sentence, flat.precision, flat.recall) == (0, 0, None)


def test_sentences_without_a_span_are_skipped():
    trees = [bracketing("a", []), bracketing("ab", [])]
    score = f1(trees, trees)
    assert (score.sentence, score.corpus, score.sentences, score.skipped) == (None, None, 0, 2)
    assert f1(trees, trees, keep_trivial=True).sentence == 1
    assert metrics.best_f1(trees).skipped == 2


def test_removing_punctuation_merges_spans():
    # without the full stop ((a b) .) and (a (b .)) are both (a b)
    words = ("a", "b", ".")
    kept = [[bracketing(words, [span], keep_punctuation=True)] for span in ((0, 2), (1, 3))]
    assert f1(*kept).sentence == 0
    dropped = [bracketing(words, [span]) for span in ((0, 2), (1, 3))]
    assert dropped == 2 * [Bracketing(2, frozenset({(0, 2)}))]
    empty = bracketing((".", "--"), [])
    assert empty == Bracketing(0, frozenset())
    assert f1([empty], [empty], keep_trivial=True).skipped == 1


def test_punctuation_is_recognised():
    assert all(map(metrics.is_punctuation, [".", "--", "''", "``", "(", "...", "?!", "«", "'"]))
    words = ["a", "'s", "%", "$", "&", "3.5", "n't", "-LRB-", "…x", "+", "#"]
    assert not any(map(metrics.is_punctuation, words))


def test_f1_rejects_trees_of_different_sentences():
    with pytest.raises(ValueError, match="zip"):
        f1(four(LEFT), four(LEFT, RIGHT))
    with pytest.raises(ValueError, match="sentence 0 has 4 words in one tree and 3"):
        f1(four(LEFT), [bracketing("abc", [])])


def test_self_f1_averages_over_pairs():
    models = {"a": four(HALVES, LEFT), "b": four(LEFT, LEFT), "c": four(RIGHT, MIDDLE)}
    agreement = metrics.self_f1(models)
    pairs = {(pair.first, pair.second): pair.sentence for pair in agreement.pairs}
    # (1/2 + 1) / 2, (1/2 + 1/2) / 2, (0 + 1/2) / 2
    assert pairs == {("a", "b"): 0.75, ("a", "c"): 0.5, ("b", "c"): 0.25}
    assert (agreement.sentence, agreement.corpus) == (0.5, 0.5)


# baselines and shape


def test_baselines_have_the_trees_of_their_name():
    made = [metrics.baseline(kind, [tuple("abcd")]) for kind in ("left", "right", "balanced")]
    assert made == [four(LEFT), four(RIGHT), four(HALVES)]


def test_random_trees_differ_by_sentence_and_seed():
    sentences = [tuple("abcdefgh")] * 40
    first, second = (metrics.baseline("random", sentences, seed=seed) for seed in (0, 1))
    assert len(set(first)) > 20
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 10
    assert metrics.baseline("random", sentences, seed=1) == second


@pytest.mark.parametrize(
    ("trees", "expected"),
    [
        (four(LEFT), (3, 1, 0, 0)),
        (four(RIGHT), (3, 0, 1, 0)),
        (four(HALVES), (2, 0, 0, 1)),
        (four(MIDDLE), (3, 0.5, 0.5, 0)),
        # mean depth, shares of all nodes
        (four(LEFT, HALVES), (2.5, 2 / 3, 0, 1 / 3)),
        ([bracketing("a", []), bracketing("ab", [])], (0.5, None, None, None)),
        # nodes with three children count for depth only
        ([bracketing("abc", [])], (1, None, None, None)),
        ([bracketing("abcdef", [(0, 2), (2, 4), (4, 6)])], (2, None, None, None)),
        ([bracketing(".", [])], (None, None, None, None)),
    ],
)
def test_shape(trees, expected):
    assert metrics.shape(trees) == TreeShape(*expected)


def test_depth_agrees_with_the_tree():
    tree = Tree.random("a b c d e f g h i j k", 0)
    assert metrics.depth(of_tree(tree)) == tree.depth


# models


def test_accuracy_by_length_and_depth():
    model, task = tiny_model("single"), TASKS["sst2"]()
    texts = ["the dog sleeps now .", "the dog that barked all night sleeps .", "one dog", "now"]
    labels = [p.label for p in model.predict(texts, pretokenized=True)]
    labels[1] = "good" if labels[1] == "bad" else "bad"
    examples = [
        GoldExample(Example((text,), label, (None,)), (gold_of(Tree.right_branching(text)),))
        for text, label in zip(texts, labels, strict=True)
    ]
    result = metrics_report.accuracy(model, task, examples)
    assert (result.examples, result.correct) == (4, 3)
    assert result.by_length == [Bucket(1, 5, 3, 3), Bucket(6, 10, 1, 0)]
    wrong = model.parse(texts[1], pretokenized=True).depth
    (bucket,) = (b for b in result.by_depth if b.correct < b.examples)
    assert bucket.shortest <= wrong <= bucket.longest
    # right-branching trees have depth 4, 7, 1 and 0
    assert result.by_gold_depth == [Bucket(0, 3, 2, 2), Bucket(4, 5, 1, 1), Bucket(6, 7, 1, 0)]
    assert result.as_dict()["by_length"][0]["accuracy"] == 1
    examples.append(GoldExample(examples[0].example, (None,)))
    assert metrics_report.accuracy(model, task, examples).by_gold_depth == []


def test_compare():
    trees = [Tree.from_brackets(x) for x in ("( ( a b ) ( c d ) )", "( a ( b c ) )", "( d . )")]
    models = {"same": trees, "right": [Tree.right_branching(tree.words) for tree in trees]}
    comparison = metrics_report.compare(models, [gold_of(tree) for tree in trees])
    f1s = {(row.kind, row.name): row.f1.sentence for row in comparison.rows if row.f1}
    # of the two sentences with spans: 1/2 and 1
    assert f1s["model", "same"] == 1
    assert f1s["model", "right"] == f1s["baseline", "right"] == 0.75
    assert f1s["baseline", "left"] == 0.25
    assert 0 < f1s["baseline", "random"] < 1
    assert f1s["bound", "best binary tree"] == 1
    assert comparison.rows[0].f1_with["right"].sentence == 0.75
    assert comparison.self_f1.sentence == 0.75
    kinds = ["gold", *2 * ["model"], *4 * ["baseline"], "bound"]
    assert [row["kind"] for row in dataclasses.asdict(comparison)["rows"]] == kinds


def test_models_parse_the_words_of_the_gold_tree():
    model = tiny_model("single")
    gold = [gold_of(Tree.right_branching(["don't-split", "(", "the", "dog"]))]
    (tree,) = metrics_report.parse_gold(model, gold)
    assert tree == model.parse("don't-split ( the dog", pretokenized=True)
    assert tree.words == gold[0].words
    # the escape would be undone a second time
    odd = Gold(("a", r"\/"), frozenset(), "mine.txt, line 8")
    with pytest.raises(ValueError, match=r"mine\.txt, line 8: tiny does not keep"):
        metrics_report.parse_gold(model, [odd], "tiny")


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["a/b/c", "a/b/d"], ["c", "d"]),
        (["a/c/model", "a/d/model"], ["c", "d"]),
        (["sst2-100d", "snli-100d"], ["sst2-100d", "snli-100d"]),
        (["runs/a", "runs/a/b"], ["a", "a/b"]),
        (["runs/a/model"], ["runs/a/model"]),
    ],
)
def test_short_names(names, short):
    assert metrics_report.short_names(names) == short


# saved merges


def save_orders(path, **changes):
    arrays = {"sentence": [0], "length": [4], "order": [0, 1, 0], **changes}
    np.savez(path, **{key: np.array(x, int if x == [] else None) for key, x in arrays.items()})
    return path


@pytest.fixture
def orders(tmp_path):
    # ((a b) (c d)), a word, (a (b c)); then right and left
    common = {"sentence": [0, 1, 2], "length": [4, 1, 3]}
    return (
        save_orders(tmp_path / "a.npz", order=[0, 1, 0, 1, 0], **common),
        save_orders(tmp_path / "b.npz", order=[2, 1, 0, 0, 0], **common),
    )


def test_compares_saved_merges(orders):
    result = json.loads(run("trees", *orders, "--json", "-q").out)
    # (1/2 + 0) / 2
    assert result["self_f1"]["sentence"] == 0.25
    assert result["keep_punctuation"] is True
    assert [row["f1"] for row in result["rows"]] == [None] * 6
    assert result["rows"][1]["f1_with"]["right"]["sentence"] == 0.5
    assert run("trees", *orders).out.count("b.npz") == 2
    first = json.loads(run("trees", *orders, "--limit", 1, "--json", "-q").out)
    assert (first["sentences"], first["self_f1"]["sentence"]) == (1, 0.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"length": [4.0]},
        {"length": [5]},
        {"order": ["a", "b", "c"]},
        {"order": [0, 9, 0]},
        {"sentence": [], "length": [], "order": []},
    ],
)
def test_rejects_malformed_merges(tmp_path, changes):
    path = save_orders(tmp_path / "odd.npz", **changes)
    assert f"{path} is damaged or not a dev_orders.npz file" in run("trees", path).refused()


def test_rejects_files_that_are_not_merges(tmp_path):
    np.savez(tmp_path / "other.npz", other=np.zeros(3))
    (tmp_path / "text.npz").write_bytes(b"nothing")
    damaged = bytearray(save_orders(tmp_path / "damaged.npz").read_bytes())
    damaged[60:140] = b"\xff" * 80
    (tmp_path / "damaged.npz").write_bytes(damaged)
    for name in ("other.npz", "text.npz", "damaged.npz"):
        assert f"{name} is damaged or not a" in run("trees", tmp_path / name).refused()
    assert "nowhere.npz" in run("trees", tmp_path / "nowhere.npz").refused()


def test_rejects_merges_that_do_not_fit(tmp_path, orders):
    other = save_orders(tmp_path / "other.npz")
    message = run("trees", orders[0], other).refused()
    assert "different sentences" in message
    assert str(orders[0]) in message
    for arguments in (["--gold", "x"], ["model"]):
        assert "without the words" in run("trees", orders[0], *arguments).refused()


# the command


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trees")
    for kind, task in (("single", "sst2"), ("pair", "snli")):
        gumbeltree.save(tiny_model(kind), folder / kind, {"recipe": {"data": {"task": task}}})
    gumbeltree.save(tiny_model("single", leaf="affine"), folder / "other")
    old = tiny_model("single")
    head = HeadConfig("single", ("negative", "positive"), hidden_dim=7)
    config = ModelConfig(old.config.encoder, head, old.config.embedding)
    sentiment = SentenceModel(config, old.tokenizer).eval()
    gumbeltree.save(sentiment, folder / "sentiment", {"recipe": {"data": {"task": "sst2"}}})
    lines = [
        "(3 (2 (2 the) (2 dog)) (3 (3 sleeps) (2 .)))",
        "(1 (2 not) (1 (2 one) (2 cat)))",
        "(2 (2 one) (2 dog))",
        "(4 (2 the) (4 (2 dog) (4 (2 that) (3 (3 barked) (2 -LRB-)))))",
    ]
    (folder / "dev.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "mine.txt").write_text("( ( the dog ) sleeps )\n( not ( one cat ) )\n", "utf-8")
    return folder


def rows_of(result):
    return {row["name"]: row for row in result["rows"]}


def test_json(folder):
    path = folder / "sentiment"
    output = run("trees", path, "--data", folder, "--split", "dev", "--json")
    assert "3 examples read; 1 dropped (1 neutral)" in output.err
    result = json.loads(output.out)
    assert (result["task"], result["sentences"], result["parses"]) == ("sst2", 3, "binary")
    # without punctuation: ((the dog) sleeps) 0, (not (one cat)) 1, right-branching 1
    right = rows_of(result)["right"]["f1"]
    assert right["sentence"] == pytest.approx(2 / 3)
    assert right["corpus"] == pytest.approx(3 / 4)
    texts = ["the dog sleeps .", "not one cat", "the dog that barked ("]
    expected = f1(
        [of_tree(tree) for tree in gumbeltree.load(path).parse_many(texts, pretokenized=True)],
        [bracketing("abc", [(0, 2)]), bracketing("abc", [(1, 3)]), *four(RIGHT)],
    )
    assert rows_of(result)[str(path)]["f1"] == dataclasses.asdict(expected)
    (accuracy,) = result["accuracy"]
    assert accuracy["examples"] == sum(b["examples"] for b in accuracy["by_depth"]) == 3
    assert result["self_f1"] is None


def test_json_with_punctuation_and_trivial_spans(folder):
    data = ["--data", folder / "dev.txt", "--task", "sst5", "--limit", 3, "--json"]
    keep = ["--keep-punctuation", "--keep-trivial"]
    result = json.loads(run("trees", folder / "sentiment", *data, *keep).out)
    assert (result["sentences"], result["accuracy"]) == (3, [])
    assert "no accuracy" in result["notes"][0]
    # ((the dog) (sleeps .)) shares 1 + 5 of 7 spans with a right-branching tree, the others all
    assert rows_of(result)["right"]["f1"]["sentence"] == pytest.approx((6 / 7 + 1 + 1) / 3)


def test_tables(folder):
    both = ["--data", folder / "dev.txt", "--task", "sst2", "--gold", folder / "mine.txt"]
    output = run("trees", folder / "sentiment", folder / "other", *both)
    assert output.code == 0, output
    for name in ("sentiment", "other", "left", "right", "balanced", "random", "gold"):
        assert f"│ {name} " in output.out
    assert "F1 between the models: " in output.out
    assert "by depth of the gold tree:" in output.out
    assert f"{folder / 'dev.txt'} and {folder / 'mine.txt'}: 5 examples read" in output.err
    quiet = run("trees", folder / "single", "--gold", folder / "mine.txt", "-q")
    assert quiet.err == ""
    assert "Accuracy" not in quiet.out


def test_models_that_follow_gold_trees_are_not_compared(folder, tmp_path):
    model = tiny_model("single", trees="gold")
    gumbeltree.save(model, tmp_path / "follower", {})
    message = run("trees", tmp_path / "follower", "--gold", folder / "mine.txt").refused()
    assert "follower follows the gold trees of the data" in message
    assert "pass models that build trees of their own" in message


def test_tables_of_narrow_terminals_cut_no_figure(folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    output = run("trees", folder / "single", "--gold", folder / "mine.txt").out
    assert "…" not in output
    assert output.count("100.0") >= 3


def test_each_distinct_tree_counts_once(folder, tmp_path):
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
    result = json.loads(run("trees", folder / "pair", "--data", path, "--json").out)
    assert result["sentences"] == 3
    assert result["accuracy"][0]["examples"] == 2


def test_listops_keeps_brackets(tmp_path, folder):
    path = tmp_path / "test_d20s.tsv"
    path.write_text("8\t( ( ( [MAX 2 ) 8 ) ] )\n", encoding="utf-8")
    command = ["trees", folder / "single", "--task", "listops", "--data", tmp_path, "--json"]
    result = json.loads(run(*command).out)
    assert result["keep_punctuation"] is True
    assert rows_of(result)["left"]["f1"]["sentence"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gold", "nowhere.txt"], "nowhere.txt"),
        ([], "--gold"),
        (["--task", "sst2", "--gold", "x"], "pass --data"),
        (["--data", "x", "--task", "sick"], "'sick' has no gold trees"),
        (["--data", "x", "--task", "sst2", "--parses", "full"], "only binary trees"),
        (["--gold", "x", "--plot", "y.docx"], "y.docx"),
    ],
)
def test_rejects_options(folder, arguments, message):
    assert message in run("trees", folder / "single", *arguments).refused()


def test_rejects_models(folder, tmp_path):
    single, gold = folder / "single", ["--gold", folder / "mine.txt"]
    both = run("trees", single, folder / "pair", "--data", "x").refused()
    assert "snli, sst2; pass the task" in both
    assert "more than once" in run("trees", single, f"{folder}/./single", *gold).refused()
    old = tiny_model("single")
    config = dataclasses.replace(old.config, encoder=encoder_settings(kind="lstm"))
    gumbeltree.save(SentenceModel(config, old.tokenizer), tmp_path / "lstm")
    assert "'lstm'" in run("trees", single, tmp_path / "lstm", *gold).refused()


def test_malformed_and_long_trees(folder, tmp_path):
    path = tmp_path / "trees.txt"
    command = ["trees", folder / "single", "--gold", path]
    path.write_text("( a b )\n( a ( b c )\n", encoding="utf-8")
    assert "trees.txt, line 2: " in run(*command).refused()
    assert "1 bad line skipped" in run(*command, "--skip-bad").err
    most = tiny_model("single").config.max_words
    long = "( " + " ".join(["a"] * (most + 1)) + " )\n"
    path.write_text(f"( a ( b c ) )\n{long}", encoding="utf-8")
    assert f"the {most + 1} words of this tree" in run(*command).refused()
    result = json.loads(run(*command, "--skip-bad", "--json").out)
    assert result["sentences"] == 1
    assert f"1 tree with more than {most} words" in result["notes"][0]
    path.write_text(long, encoding="utf-8")
    assert f"at most {most} words" in run(*command, "--skip-bad").refused()


# images


def drawn_text(path):
    return [text.strip() for text in ElementTree.parse(path).getroot().itertext()]


def test_plots(folder, tmp_path, orders):
    png, svg = tmp_path / "trees.png", tmp_path / "trees.svg"
    data = ["--data", folder / "dev.txt", "--task", "sst2"]
    assert run("trees", folder / "sentiment", folder / "other", *data, "--plot", png).code == 0
    assert png.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert run("trees", *orders, "--plot", svg, "-q").code == 0
    assert "a.npz, balanced" in drawn_text(svg)


def test_trees_without_a_span_have_no_figure(folder, tmp_path):
    path, svg = tmp_path / "pairs.txt", tmp_path / "trees.svg"
    path.write_text("( one dog )\n", encoding="utf-8")
    models = [folder / "single", folder / "other"]
    output = run("trees", *models, "--gold", path, "--plot", svg, "-q").out
    assert "F1 between the models: no spans" in output
    assert drawn_text(svg).count("no spans") == 6
    assert "0.0" not in drawn_text(svg)


def test_plots_any_model_name(tmp_path, recwarn):
    svg, names = tmp_path / "trees.svg", ["one", "$two", "\U00013000"]
    buckets = [Bucket(1, 5, 40, 30), Bucket(6, None, 20, 10), Bucket(6, 10, 2, 1)]
    accuracies = [metrics_report.Accuracy(x, 60, 40, buckets, buckets, []) for x in names]
    tree = Tree("a b c", [0, 0])
    comparison = metrics_report.compare({name: [tree] for name in names}, [gold_of(tree)])
    metrics_plot.draw(svg, comparison, accuracies)
    # beside the bars and in the legends of both other panels
    drawn = drawn_text(svg)
    assert [drawn.count(name) for name in names] == [3, 3, 3]
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]
