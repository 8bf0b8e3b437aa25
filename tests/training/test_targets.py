"""Train on numbers, tags and weighted classes, and select the best model by any metric."""

import json
import random

import numpy as np
import pytest
import torch

import gumbeltree
from gumbeltree.config import TARGETS, load_recipe, with_settings, with_target
from gumbeltree.data.compile import prepare, with_labels
from gumbeltree.data.prepared import load_prepared, save_prepared
from gumbeltree.evaluation import evaluate
from gumbeltree.training.loop import train
from gumbeltree.training.start import new_model
from tests.runs import SMALL, contents, metrics

COLUMNS = ("data.text=body", "data.label=label", "dev_fraction=0.2", "test_fraction=0.2")
QUICK = (
    *(x for x in SMALL if not x.startswith(("data.", "dev_", "test_", "max_words"))),
    *("learning_rate=0.02", "embedding.dropout=0", "head.dropout=0", "extra_words=0"),
    *("encoder.hidden_dim=12", "head.hidden_dim=16", "max_words=8", "encoder.kind=bag"),
)
PAIRS = ("data.text2=other",)


def written(path, label, rows=300, words=9):
    """Write random texts with `label(words of the text, words of the second)` as label."""
    generator = random.Random(7)

    def text():
        return [generator.randrange(words) for _ in range(generator.randint(1, 6))]

    lines = ["body\tother\tlabel"]
    for _ in range(rows):
        first, second = text(), text()
        columns = (" ".join(f"w{i}" for i in x) for x in (first, second))
        lines.append("\t".join([*columns, str(label(first, second))]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def mean_of(first, second):
    # far from zero, and on a large scale
    return 5000 + 100 * sum(first) / len(first)


def difference(first, second):
    return abs(sum(first) / len(first) - sum(second) / len(second))


def tags_of(first, second):
    names = {1: "one", 2: "two", 3: "three"}
    return "|".join(sorted({names[i] for i in first if i in names}))


def recipe_of(kind, *settings):
    name = "text-pair" if kind.startswith("pair") else "text"
    columns = (*COLUMNS, *(PAIRS if name == "text-pair" else ()))
    return with_settings(load_recipe(name), [f"head.kind={kind}", *columns, *QUICK, *settings])


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    path = written(tmp_path_factory.mktemp("numbers") / "a.tsv", mean_of)
    return prepare(recipe_of("single_number"), path)


@pytest.fixture(scope="module")
def tags(tmp_path_factory):
    path = written(tmp_path_factory.mktemp("tags") / "a.tsv", tags_of)
    return prepare(recipe_of("single_tags"), path)


@pytest.fixture(scope="module")
def rare(tmp_path_factory):
    # one example in twelve is of the second class, and no word settles it
    noise = random.Random(3)
    path = tmp_path_factory.mktemp("rare") / "a.tsv"
    written(path, lambda first, _: "rare" if 0 in first and noise.random() < 0.3 else "usual")
    return prepare(recipe_of("single"), path)


@pytest.mark.parametrize("kind", ["single_number", "single_bins"])
def test_learns_numbers_of_any_scale(kind, numbers, tmp_path):
    result = train(
        recipe_of(kind, "epochs=6", "encoder.kind=gumbel_tree"),
        numbers,
        tmp_path / "run",
        quiet=True,
    )
    assert result["measure"] == "pearson"
    assert result["test_pearson"] > 0.8
    assert result["test_spearman"] > 0.8
    gold = numbers.splits["test"].labels
    assert result["test_mse"] < 0.4 * gold.var()
    model = gumbeltree.load(tmp_path / "run")
    low, high = (x.value for x in model.predict(["w0 w0", "w8 w8"]))
    assert 4900 < low < high < 5900
    assert model.labels == ()
    found = evaluate(model, numbers.splits["test"])
    assert found.pearson == pytest.approx(result["test_pearson"])


@pytest.mark.parametrize("kind", ["pair_number", "pair_bins"])
def test_learns_numbers_of_pairs(kind, tmp_path):
    data = prepare(recipe_of(kind), written(tmp_path / "a.tsv", difference, words=4))
    settings = ["epochs=10", "evaluations=1"]
    if kind == "pair_bins":
        settings += ["head.bins=4", "head.low=0", "head.high=3"]
    result = train(recipe_of(kind, *settings), data, tmp_path / "run", quiet=True)
    assert result["test_pearson"] > 0.8


def test_learns_tags(tags, tmp_path):
    assert tags.labels == ("one", "three", "two")
    assert tags.report["splits"]["train"]["labels"].keys() == set(tags.labels)
    result = train(recipe_of("single_tags", "epochs=15"), tags, tmp_path / "run", quiet=True)
    assert result["measure"] == "micro_f1"
    assert result["test_micro_f1"] > 0.8
    assert {"test_macro_f1", "test_exact_match", "dev_micro_recall"} <= result.keys()
    model = gumbeltree.load(tmp_path / "run")
    answer, none = model.predict(["w1 w2", "w5 w6"])
    assert answer.labels == ("one", "two")
    assert none.labels == ()
    found = gumbeltree.evaluate(model, ["w1 w2", "w5", "w3"], [["two", "one"], [], "three"])
    assert found.exact_match == 1


@pytest.mark.parametrize("kind", ["single_number", "single_bins", "single_tags"])
def test_prepared_files_keep_targets(kind, numbers, tags, tmp_path):
    data = tags if kind == "single_tags" else numbers
    save_prepared(data, tmp_path / "a.safetensors")
    again = load_prepared(tmp_path / "a.safetensors")
    for name, split in data.splits.items():
        assert again.splits[name].labels.dtype == split.labels.dtype
        assert np.array_equal(again.splits[name].labels, split.labels)
    assert again.labels == data.labels
    completed = with_labels(recipe_of(kind), again).model.head
    assert completed == with_labels(recipe_of(kind), data).model.head


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("single_number", ("best_by=mse",)),
        ("single_bins", ()),
        ("single_tags", ("best_by=recall:one",)),
        ("single", ("best_by=macro_f1", "head.class_weights=balanced")),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(kind, settings, numbers, tags, rare, tmp_path):
    data = {"single_tags": tags, "single": rare}.get(kind, numbers)
    recipe = recipe_of(kind, *settings)
    train(recipe, data, tmp_path / "whole", quiet=True)

    def stop(step):
        if step == 11:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(recipe, data, tmp_path / "halves", on_step=stop, quiet=True)
    train(recipe, data, tmp_path / "halves", resume=True, quiet=True)
    assert contents(tmp_path / "halves") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("metric", "pick"), [("mse", min), ("loss", min), ("spearman", max), ("", max)]
)
def test_best_model_by_any_metric(metric, pick, numbers, tmp_path):
    settings = (f"best_by={metric}", "learning_rate=0.1", "patience=0", "epochs=5")
    result = train(recipe_of("single_number", *settings), numbers, tmp_path / "run", quiet=True)
    name = metric or "pearson"
    lines = metrics(tmp_path / "run")
    values = [line[f"dev_{name}"] for line in lines]
    assert result["measure"] == name
    assert result[f"dev_{name}"] == pytest.approx(pick(values), rel=1e-5)
    assert lines[-1][f"best_{name}"] == pick(values)
    assert {"dev_pearson", "dev_spearman", "dev_mse", "dev_loss"} <= lines[0].keys()
    # with a patience of 0, the learning rate is halved after every evaluation without improvement
    rate, best = 0.1, None
    for value, line in zip(values, lines, strict=True):
        assert line["learning_rate"] == pytest.approx(rate)
        threshold = None if best is None else best * (1.0001 if pick is max else 0.9999)
        if best is None or (value > threshold if pick is max else value < threshold):
            best = value
        else:
            rate /= 2
    assert rate < 0.1
    about = json.loads((tmp_path / "run" / "model" / "config.json").read_text("utf-8"))
    assert about["provenance"]["metrics"][f"dev_{name}"] == pytest.approx(pick(values), rel=1e-5)


def test_early_stopping_follows_the_metric(numbers, tmp_path):
    # a loss that only rises at this learning rate
    settings = ("best_by=loss", "learning_rate=0.3", "stop_after=2", "epochs=20", "patience=100")
    train(recipe_of("single_number", *settings), numbers, tmp_path / "run", quiet=True)
    losses = [line["dev_loss"] for line in metrics(tmp_path / "run")]
    assert len(losses) < 60
    assert min(losses) == losses[-3]


def test_best_by_is_checked_before_training(rare, tmp_path):
    with pytest.raises(ValueError, match=r"macro_f1, .*loss, f1:LABEL.*, got 'pearson'"):
        train(recipe_of("single", "best_by=pearson"), rare, tmp_path / "run")
    with pytest.raises(
        ValueError, match="'none' is not a label of the data, which has rare, usual"
    ):
        train(recipe_of("single", "best_by=recall:none"), rare, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_balanced_weights_find_the_rare_class(rare, tmp_path):
    recalls = {}
    for weights in ("none", "balanced"):
        settings = (f"class_weights={weights}", "epochs=4", "best_by=recall:rare")
        result = train(recipe_of("single", *settings), rare, tmp_path / weights, quiet=True)
        recalls[weights] = result["test_recall:rare"]
    assert recalls["balanced"] > recalls["none"] + 0.3
    # the weights are stored in the model
    model = gumbeltree.load(tmp_path / "balanced")
    train_labels = rare.splits["train"].labels
    expected = len(train_labels) / (2 * np.bincount(train_labels))
    assert list(model.config.head.class_weights.values()) == pytest.approx(expected.tolist())
    assert torch.allclose(model.head.class_weights, torch.from_numpy(expected).float())


def test_weights_of_one_change_nothing(rare, tmp_path):
    train(recipe_of("single", "epochs=1"), rare, tmp_path / "none", quiet=True)
    settings = ("epochs=1", "class_weights.rare=1")
    train(recipe_of("single", *settings), rare, tmp_path / "ones", quiet=True)
    weights = [gumbeltree.load(tmp_path / name).state_dict() for name in ("none", "ones")]
    assert weights[1].pop("head.class_weights").tolist() == [1, 1]
    assert weights[0].keys() == weights[1].keys()
    for name, x in weights[0].items():
        torch.testing.assert_close(weights[1][name], x)


def test_data_must_fit_the_target(numbers, tags, rare):
    with pytest.raises(ValueError, match="classifies, but the data was prepared for a head that"):
        with_labels(recipe_of("single"), numbers)
    with pytest.raises(ValueError, match="classifies, but the data was prepared for a head that"):
        with_labels(recipe_of("single"), tags)
    with pytest.raises(ValueError, match="predicts numbers, but the data was prepared"):
        with_labels(recipe_of("single_number"), rare)
    with pytest.raises(ValueError, match=r"single sentences; .*head\.kind=single_tags"):
        with_labels(recipe_of("pair_tags"), tags)


def test_initial_weights_of_a_number_model_predict_the_mean(numbers):
    recipe = with_labels(recipe_of("single_number"), numbers)
    model = new_model(recipe.model, numbers, 0)
    values = [x.value for x in model.predict(["w0", "w8"])]
    targets = numbers.splits["train"].labels
    assert values == pytest.approx([targets.mean()] * 2, abs=0.2 * targets.std())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["text", "text-pair"])
def test_recipes_for_every_target(name, target):
    recipe = with_target(load_recipe(name), target)
    plain = load_recipe(name).model.head
    assert recipe.model.head.kind == TARGETS[target][name == "text-pair"]
    assert recipe.model.head.hidden_dim == plain.hidden_dim
    assert recipe.model.head.dropout == plain.dropout
    with pytest.raises(ValueError, match=r"known: classes, number, tags\. Did you mean 'number'"):
        with_target(recipe, "numbers")


def test_training_in_one_call():
    texts = ["w1 w2", "w3", "w2 w2 w1", "w3 w4"] * 10
    options = {"settings": ["encoder.kind=bag", "epochs=2", "extra_words=0"], "quiet": True}
    model = gumbeltree.train_text(texts, [1.5, 7, 2, 6.25] * 10, target="number", **options)
    assert model.config.head.kind == "single_number"
    assert 1.5 < model.config.head.mean < 7
    tags = [["a", "b"], [], ("b",), {"a"}] * 10
    dev = (texts[:4], ["a|b", "", ["b"], np.array(["a"])])
    model = gumbeltree.train_text(texts, tags, target="tags", dev=dev, **options)
    assert model.config.head.tags == ("a", "b")
    assert evaluate(model, *dev).count == 4
    with pytest.raises(ValueError, match="dev: the label of row 1 is 'c', but must be one of a, b"):
        gumbeltree.train_text(texts, tags, target="tags", dev=(texts[:2], ["a", "b|c"]), **options)
    with pytest.raises(ValueError, match="the label of row 0: expected tags as label, got 3"):
        gumbeltree.train_text(texts, [3] * 40, target="tags", **options)
    with pytest.raises(ValueError, match=r"'high' is not a finite number"):
        gumbeltree.train_text(texts, ["high"] * 40, target="number", **options)
