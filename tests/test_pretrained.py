"""Packaged models, word vectors in half precision, and the script that packages a model."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import ship_model
from huggingface_hub import ModelCard
from safetensors.torch import load_file

import gumbeltree
from gumbeltree import SentenceModel, load, packaged, pretrained_models, save
from gumbeltree.card import model_card
from gumbeltree.config import load_recipe, with_settings
from gumbeltree.data.compile import prepare
from gumbeltree.data.prepared import save_prepared
from gumbeltree.describe import describe
from gumbeltree.evaluation import evaluate
from gumbeltree.store import find_model, has_half_embeddings
from gumbeltree.tasks.listops import tree_of
from tests.commands import run
from tests.models import TEXTS, WORDS, tiny_model
from tests.runs import SMALL, table
from tests.test_imports import imported_by
from tests.test_store import FILES, assert_same, edit_weights

SHIPPED = packaged.packaged_names()
MOST_BYTES = 21_000_000
PROVENANCE = {
    "recipe_name": "sst2-100d",
    "recipe": {"data": {"task": "sst2", "lower": True}},
    "seed": 3,
    "metrics": {"dev_accuracy": 0.875, "test_accuracy": 0.86},
    "data": {
        "splits": {"train": {"examples": 98794}},
        "vocabulary": {"training": 9, "extra": 2},
        "vectors": {"file": "glove.6B.100d.txt"},
    },
}


@pytest.fixture(autouse=True)
def _place(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("GUMBELTREE_HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.chdir(tmp_path_factory.mktemp("here"))


@pytest.fixture(scope="module")
def single():
    model = tiny_model("single")
    model.provenance = {**PROVENANCE, "license": "mit"}
    return model


@pytest.fixture(scope="module")
def pretrained(single, tmp_path_factory):
    """A folder of two models: one has the name of a recipe."""
    folder = tmp_path_factory.mktemp("package") / "pretrained"
    save(single, folder / "sst2-100d")
    save(tiny_model("pair"), folder / "tiny-pairs")
    return folder


@pytest.fixture
def package(pretrained, monkeypatch):
    """Let these two be the models that come with the package."""
    monkeypatch.setattr(packaged, "FOLDER", pretrained)
    return pretrained


# names


def test_loads_by_name(package, single):
    assert_same(load("sst2-100d"), single)
    assert_same(load(Path("sst2-100d")), single)
    assert_same(SentenceModel.from_pretrained("sst2-100d"), single)
    assert find_model("sst2-100d") == package / "sst2-100d"
    assert load("sst2-100d").provenance["metrics"] == PROVENANCE["metrics"]


def test_folder_takes_precedence_over_a_packaged_model(package, single, caplog):
    other = tiny_model("pair")
    save(other, "sst2-100d")
    with caplog.at_level(logging.INFO, "gumbeltree.store"):
        assert_same(load("sst2-100d"), other)
    (message,) = caplog.messages
    assert "sst2-100d" in message
    assert_same(SentenceModel.from_pretrained("sst2-100d"), other)
    # so does a run folder
    shutil.rmtree("sst2-100d")
    save(other, "sst2-100d/model")
    assert_same(load("sst2-100d"), other)


@pytest.mark.usefixtures("package")
def test_error_names_a_folder_that_hides_a_model():
    Path("sst2-100d").mkdir()
    with pytest.raises(FileNotFoundError, match="shadows the packaged model sst2-100d"):
        load("sst2-100d")


@pytest.mark.usefixtures("package")
def test_unknown_name_suggests_the_closest():
    expected = r"packaged models: sst2-100d, tiny-pairs\. Did you mean 'sst2-100d'\?"
    with pytest.raises(FileNotFoundError, match=rf"^sst2-10d .*{expected}$"):
        load("sst2-10d")
    assert "Did you mean 'sst2-100d'?" in run("parse", "sst2-10d", "the dog").refused()
    with pytest.raises(ValueError, match=r"packaged models: .*Did you mean 'tiny-pairs'\?"):
        describe("tiny-pair")


@pytest.mark.parametrize("name", ["", "..", "../pretrained/sst2-100d", "./sst2-100d"])
@pytest.mark.usefixtures("package")
def test_paths_are_not_names(name):
    assert packaged.packaged_folder(name) is None
    with pytest.raises(FileNotFoundError):
        load(name)


@pytest.mark.usefixtures("package")
def test_rejects_a_revision_of_a_packaged_model():
    with pytest.raises(ValueError, match=r"`revision`.*sst2-100d is a packaged model"):
        SentenceModel.from_pretrained("sst2-100d", revision="main")


# commands


@pytest.mark.usefixtures("package")
def test_commands_accept_a_name(single, tmp_path):
    trees = "".join(f"{tree}\n" for tree in single.parse_many(TEXTS))
    assert run("parse", "sst2-100d", *TEXTS, "--quiet") == (0, trees, "")
    labels = [line.split("\t")[0] for line in run("predict", "sst2-100d", *TEXTS).out.splitlines()]
    assert labels == [prediction.label for prediction in single.predict(TEXTS)]
    out = tmp_path / "vectors.npy"
    assert run("encode", "sst2-100d", *TEXTS, "--out", out).code == 0
    np.testing.assert_allclose(np.load(out), single.encode(TEXTS), atol=1e-5)
    rows = "".join(f"{text}\t{label}\n" for text, label in zip(TEXTS, labels, strict=True))
    Path("table.tsv").write_text("text\tlabel\n" + rows, encoding="utf-8")
    options = ("--data", "table.tsv", "--text", "text", "--label", "label", "--json")
    result = json.loads(run("evaluate", "sst2-100d", *options).out)
    assert (result["model"], result["accuracy"]) == ("sst2-100d", 1.0)


def test_push_accepts_a_name_and_keeps_half_precision(package, single, monkeypatch, tmp_path):
    sent = {}
    monkeypatch.setattr(
        SentenceModel, "push_to_hub", lambda self, name, **options: sent.update(options) or name
    )
    result = run("push", "sst2-100d", "org/name", "--dry-run")
    assert result.code == 0, result
    assert "license: mit" in result.out
    size = (package / "sst2-100d" / "model.safetensors").stat().st_size
    assert f"model.safetensors, {size:,} bytes" in result.out
    assert run("push", "sst2-100d", "org/name").out == "org/name\n"
    assert sent["half_embeddings"] is False
    save(single, "half", half_embeddings=True)
    assert run("push", "half", "org/name").code == 0
    assert sent["half_embeddings"] is True


def test_info_shows_recipe_and_model(package):
    about = json.loads(run("info", "sst2-100d", "--json").out)
    assert about["recipe"] == "sst2-100d"
    assert about["model"]["encoder"]["hidden_dim"] == 100
    assert about["training"]["batch_size"] == 64
    assert about["pretrained"]["test_accuracy"] == 0.86
    assert about["pretrained"]["folder"] == str(package / "sst2-100d")
    out = run("info", "sst2-100d").out
    assert "100D" in out
    assert "sst2, 98,794 examples, accuracy dev 87.50%, test 86.00%" in " ".join(out.split())
    # the name of a model only
    assert describe("tiny-pairs")["model"]["encoder"]["hidden_dim"] == 6
    # a local folder takes precedence, as in loading
    save(tiny_model("pair"), "sst2-100d")
    folder = describe("sst2-100d")
    assert folder["model"]["encoder"]["hidden_dim"] == 6
    assert not {"recipe", "pretrained"} & set(folder)


def test_lists_models(package):
    first, second = pretrained_models()
    assert (first.name, first.kind, first.labels) == ("sst2-100d", "single", ("bad", "good"))
    assert (first.task, first.examples, first.license) == ("sst2", 98794, "mit")
    assert (first.dev_accuracy, first.test_accuracy) == (0.875, 0.86)
    assert first.folder == package / "sst2-100d"
    assert first.bytes == sum(path.stat().st_size for path in first.folder.iterdir())
    assert (second.task, second.examples, second.test_accuracy) == (None, None, None)
    listed = json.loads(run("models", "--json").out)
    assert [model["bytes"] for model in listed] == [first.bytes, second.bytes]
    out = " ".join(run("models").out.split())
    assert "sentences: bad, good sst2, 98,794 examples" in out
    assert "dev 87.50%, test 86.00%" in out
    assert "pairs: neutral, entailment, " in out
    assert "not recorded" in out


def test_lists_models_without_classes(monkeypatch, tmp_path):
    metrics = {"step": 7, "dev_triplets": 0.75, "test_triplets": 0.5}
    save(tiny_model("similarity"), tmp_path / "near", {**PROVENANCE, "metrics": metrics})
    monkeypatch.setattr(packaged, "FOLDER", tmp_path)
    (about,) = pretrained_models()
    assert (about.kind, about.labels, about.dev_accuracy) == ("similarity", (), None)
    assert (about.measure, about.dev_value, about.test_value) == ("triplets", 0.75, 0.5)
    out = " ".join(run("models").out.split())
    assert "pairs: similarity" in out
    assert "dev 75.00%, test 50.00%" in out
    assert "(triplets)" in out


def test_listing_does_not_import_torch():
    packages = imported_by("import gumbeltree\ngumbeltree.pretrained_models()")
    assert packages == {"gumbeltree"}


# word vectors in half precision


def test_half_precision_rounds_only_the_word_vectors(tmp_path):
    model = tiny_model()
    save(model, tmp_path / "full")
    model.save_pretrained(tmp_path / "half", half_embeddings=True)
    assert (tmp_path / "half" / "README.md").is_file()
    assert has_half_embeddings(tmp_path / "half")
    assert not has_half_embeddings(tmp_path / "full")
    stored = load_file(tmp_path / "half" / "model.safetensors")
    assert stored["embedding.weight"].dtype == torch.float16
    loaded = load(tmp_path / "half")
    for name, value in model.state_dict().items():
        rounded = loaded.state_dict()[name]
        assert rounded.dtype == value.dtype, name
        if name == "embedding.weight":
            assert not torch.equal(rounded, value)
            assert torch.equal(rounded, value.half().float())
            assert ((rounded - value).abs() <= value.abs() / 2048 + 3e-8).all()
        else:
            assert torch.equal(rounded, value), name
            assert stored[name].dtype == value.dtype
    # saving leaves the model unchanged, and rounding twice changes nothing more
    assert_same(model, load(tmp_path / "full"))
    save(loaded, tmp_path / "again", half_embeddings=True)
    assert_same(load(tmp_path / "again"), loaded)


def test_half_precision_keeps_float64_elsewhere(tmp_path):
    model = tiny_model().double()
    save(model, tmp_path, half_embeddings=True)
    assert {x.dtype for x in load(tmp_path).parameters()} == {torch.float64}
    assert torch.equal(load(tmp_path).head.output.weight, model.head.output.weight)


def test_rejects_values_beyond_float16(tmp_path):
    model = tiny_model()
    with torch.no_grad():
        model.embedding.weight[3, 2] = 7e4
    with pytest.raises(ValueError, match=r"65,504"):
        save(model, tmp_path / "model", half_embeddings=True)
    assert not (tmp_path / "model").exists()


def test_rejects_half_embeddings_of_a_half_precision_model(tmp_path):
    with pytest.raises(ValueError, match="bfloat16"):
        save(tiny_model().bfloat16(), tmp_path / "model", half_embeddings=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_number_type_survives_saving(tmp_path, dtype):
    save(tiny_model().to(dtype), tmp_path)
    loaded = load(tmp_path)
    assert {x.dtype for x in loaded.parameters()} == {dtype}
    assert torch.equal(loaded.embedding.weight, tiny_model().to(dtype).embedding.weight)
    assert not has_half_embeddings(tmp_path)


@pytest.mark.parametrize(
    ("vectors", "others"),
    [
        ("int8", "float32"),
        ("float32", "float16"),
        ("float8_e5m2", "float8_e5m2"),
    ],
)
def test_rejects_other_number_types(tmp_path, vectors, others):
    save(tiny_model(), tmp_path)

    def change(weights):
        for name, x in weights.items():
            kind = vectors if name == "embedding.weight" else others
            if x.is_floating_point():
                weights[name] = x.to(getattr(torch, kind))

    edit_weights(tmp_path, change)
    with pytest.raises(ValueError, match=rf"embedding\.weight .*{vectors} .*{others}"):
        load(tmp_path)


def test_rejects_other_weights_in_half_precision(tmp_path):
    save(tiny_model(), tmp_path, half_embeddings=True)
    query = "encoder.query"
    edit_weights(tmp_path, lambda weights: weights.update({query: weights[query].half()}))
    with pytest.raises(ValueError, match=rf"{query}: .*float16"):
        load(tmp_path)


# the card


def test_card_states_licence_and_sources(single):
    model = tiny_model("single")
    model.provenance = {
        **PROVENANCE,
        "license": "cc-by-sa-4.0",
        "language": "en",
        "sources": [{"name": "snli", "licence": "CC BY-SA 4.0", "citation": "Bowman | 2015"}, 3],
        "shipped": {"measured": True},
    }
    card = model_card(model, "snli-100d")
    data = ModelCard(card).data
    assert (data.license, data.language) == ("cc-by-sa-4.0", "en")
    assert "- `snli`: licence `CC BY-SA 4.0`, citation `Bowman | 2015`" in card
    assert "Measured with these files" in card
    assert "not measured again" not in card
    assert 'from_pretrained("snli-100d")' in card
    # arguments override the provenance
    assert ModelCard(model_card(model, license="mit")).data.license == "mit"
    assert "not measured again" in model_card(single)


def test_card_shows_no_result_of_the_paper():
    model = tiny_model("single")
    recipe = {"description": "SNLI, 100D (Table 1: 82.6 %)", "data": {"task": "snli"}}
    splits = {"dev": {"examples": 9842}}
    model.provenance = {
        "recipe": recipe,
        "metrics": {"dev_accuracy": 0.75},
        "data": {"splits": splits},
    }
    card = model_card(model)
    assert "- dev accuracy: 75.00% on 9,842 examples\n" in card
    assert '"description": "SNLI, 100D",' in card
    assert "82.6" not in card
    assert model.provenance["recipe"] is recipe


# packaging a model


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs of two seeds on a table whose label is a word, and the prepared file."""
    folder = tmp_path_factory.mktemp("trained")
    settings = [*SMALL, "data.text=body", "data.label=class", "epochs=8", "learning_rate=0.02"]
    recipe = with_settings(load_recipe("text"), settings)
    data = table(folder / "table.csv", lambda text: "yes" if "w1" in text else "no")
    generator = np.random.default_rng(0)
    vectors = folder / "glove.6B.8d.txt"
    words = [*(f"extra{i}" for i in range(30)), *(f"w{i}" for i in range(9))]
    rows = [" ".join([word, *(f"{x:.4f}" for x in generator.normal(0, 0.5, 8))]) for word in words]
    vectors.write_text("\n".join(rows) + "\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GUMBELTREE_HOME", str(folder / "home"))
        prepared = prepare(recipe, data, vectors)
    save_prepared(prepared, folder / "data.safetensors")
    for seed in (0, 1):
        one = with_settings(recipe, [f"training.seed={seed}"])
        gumbeltree.train(one, prepared, folder / "runs" / f"seed-{seed}", recipe_name="text")
    return folder


def ship(*arguments):
    ship_model.main([str(x) for x in arguments])


def refused(*arguments):
    """Assert that the script fails and return its message."""
    with pytest.raises(SystemExit) as end:
        ship(*arguments)
    assert str(end.value.code).startswith("ship_model: error: ")
    return str(end.value.code)


def test_packages_the_best_seed(trained, tmp_path, capsys, monkeypatch):
    out, prepared = tmp_path / "pretrained", trained / "data.safetensors"
    options = ("--name", "mine", "--out", out, "--license", "mit", "--check", prepared)
    ship(trained / "runs", *options, "--extra-words", 10)
    printed = capsys.readouterr().out
    monkeypatch.setattr(packaged, "FOLDER", out)
    folder = out / "mine"
    assert sorted(path.name for path in folder.iterdir()) == sorted([*FILES, "README.md"])
    assert has_half_embeddings(folder)
    model = load("mine")
    runs = [load(trained / "runs" / f"seed-{seed}") for seed in (0, 1)]
    best = max(runs, key=lambda run: run.provenance["metrics"]["dev_accuracy"])
    about = model.provenance
    assert about["seed"] == best.provenance["seed"]
    # nine words of the data and ten of the thirty others
    ids, before = model.tokenizer.get_vocab(), best.tokenizer.get_vocab()
    assert len(before) == 9 + 30 + 2
    extra = {f"extra{i}" for i in range(10)}
    assert set(ids) == {f"w{i}" for i in range(9)} | extra | {"<pad>", "<unk>"}
    assert "of 39 words" in printed
    for word, place in ids.items():
        expected = best.embedding.weight[before[word]].half().float()
        assert torch.equal(model.embedding.weight[place], expected), word
    for name, x in best.state_dict().items():
        assert name == "embedding.weight" or torch.equal(model.state_dict()[name], x), name
    # accuracies are measured again with the packaged files
    metrics = about["metrics"]
    data = ship_model.load_prepared(prepared)
    for split in ("dev", "test"):
        ids = ship_model.mapped(data.splits[split], data.tokenizer, model.tokenizer)
        assert metrics[f"{split}_accuracy"] == evaluate(model, ids).accuracy
        assert f"{split}_accuracy: " in printed
    assert metrics["dev_accuracy"] > 0.9
    assert metrics["step"] == best.provenance["metrics"]["step"]
    assert about["shipped"]["measured"] is True
    assert about["shipped"]["words_left_out"] == 20
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert ModelCard(card).data.license == "mit"
    assert f"test accuracy: {metrics['test_accuracy']:.2%}" in card
    assert "Measured with these files" in card
    assert "`PDDL 1.0 (public domain)`" in card
    (listed,) = pretrained_models()
    assert (listed.task, listed.dev_accuracy) == ("table", metrics["dev_accuracy"])
    # --replace overwrites only the four files
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    assert "pass --replace" in refused(trained / "runs", *options)
    ship(trained / "runs", *options, "--replace")
    assert len(load("mine").tokenizer.get_vocab()) == 41
    assert (folder / "notes.txt").read_text(encoding="utf-8") == "mine"


def test_packages_a_model_of_similarities(tmp_path, capsys):
    pairs = [(f"w{i} w{j}", f"w{j} w{i}") for i in range(5) for j in range(i)]
    lines = [
        json.dumps({"gold_label": label, "sentence1": first, "sentence2": second})
        for first, other in pairs
        for label, second in (("entailment", other), ("contradiction", "w7 w8 w9"))
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines), encoding="utf-8")
    recipe = with_settings(
        load_recipe("embed"), ["embedding_dim=4", "hidden_dim=4", "dev_fraction=0.4", "epochs=1"]
    )
    data = prepare(recipe, tmp_path / "pairs.jsonl")
    save_prepared(data, tmp_path / "data.safetensors")
    gumbeltree.train(recipe, data, tmp_path / "run", recipe_name="embed")
    ship(
        *(tmp_path / "run", "--name", "mine", "--out", tmp_path / "out"),
        *("--check", tmp_path / "data.safetensors"),
    )
    assert "dev_triplets: " in capsys.readouterr().out
    about = load(tmp_path / "out" / "mine").provenance
    assert about["license"] == "cc-by-sa-4.0"
    assert about["shipped"]["original"].keys() == {"dev_triplets"}
    found = evaluate(load(tmp_path / "out" / "mine"), data.splits["dev"])
    assert about["metrics"]["dev_triplets"] == found.triplets


def test_best_seed_and_ties(tmp_path):
    for seed, accuracy in ((4, 0.8), (2, 0.9), (3, 0.9), (1, 0.7)):
        about = {**PROVENANCE, "seed": seed, "metrics": {"dev_accuracy": accuracy}}
        save(tiny_model("single"), tmp_path / "runs" / f"seed-{seed}" / "model", about)
    folders = ship_model.candidates([tmp_path / "runs"])
    assert len(folders) == 4
    assert ship_model.best_of(folders).parent.name == "seed-2"
    assert ship_model.best_of(folders[::-1]).parent.name == "seed-2"
    assert ship_model.candidates([tmp_path / "runs" / "seed-3"]) == [
        tmp_path / "runs" / "seed-3" / "model"
    ]


def test_licence_follows_the_data(tmp_path):
    save(tiny_model("single"), tmp_path / "model", PROVENANCE)
    ship(tmp_path / "model", "--name", "sst2-100d", "--out", tmp_path / "out")
    card = (tmp_path / "out" / "sst2-100d" / "README.md").read_text(encoding="utf-8")
    assert ModelCard(card).data.license == "other"
    assert "citation `Socher, " in card
    assert "- `glove.6B`: licence `PDDL 1.0 (public domain)`" in card
    assert "not measured again" in card
    assert load(tmp_path / "out" / "sst2-100d").provenance["metrics"] == PROVENANCE["metrics"]
    about = {**PROVENANCE, "recipe": {"data": {"task": "table"}}}
    save(tiny_model("single"), tmp_path / "table", about)
    message = refused(tmp_path / "table", "--name", "x", "--out", tmp_path / "out")
    assert "pass --license" in message


@pytest.mark.parametrize(("lost", "allowed"), [(0.001, True), (0.0011, False)])
def test_allows_a_loss_of_a_tenth_of_a_point(trained, tmp_path, monkeypatch, lost, allowed):
    measured = [{"dev_accuracy": 0.9 - lost}, {"dev_accuracy": 0.9}]
    monkeypatch.setattr(ship_model, "measure", lambda *arguments: measured.pop(0))
    arguments = (trained / "runs", "--name", "x", "--license", "mit", "--out", tmp_path / "out")
    arguments = (*arguments, "--check", trained / "data.safetensors")
    if allowed:
        ship(*arguments)
        metrics = load(tmp_path / "out" / "x").provenance["metrics"]
        assert metrics["dev_accuracy"] == 0.9 - lost
    else:
        assert "dev accuracy" in refused(*arguments)
        assert not (tmp_path / "out").exists()


def test_extra_words_need_recorded_counts(tmp_path):
    save(tiny_model("single"), tmp_path / "model", {**PROVENANCE, "data": {}})
    options = ("--name", "x", "--out", tmp_path / "out", "--extra-words", 1)
    assert f"which of the {len(WORDS)} words" in refused(tmp_path / "model", *options)
    save(tiny_model("single"), tmp_path / "model", PROVENANCE)
    ship(tmp_path / "model", *options)
    assert ship_model.ordered_words(load(tmp_path / "out" / "x").tokenizer) == WORDS[:10]


# the packaged models


def test_packaged_models_are_small():
    assert sum(model.bytes for model in pretrained_models()) < MOST_BYTES


@pytest.mark.parametrize("name", SHIPPED)
def test_packaged_model_is_complete(name):
    folder = packaged.FOLDER / name
    assert sorted(path.name for path in folder.iterdir()) == sorted([*FILES, "README.md"])
    assert has_half_embeddings(folder)
    model = load(name)
    about, metrics = model.provenance, model.provenance["metrics"]
    recipe = load_recipe(name)
    assert recipe.model.encoder == model.config.encoder
    assert recipe.model.head.kind == model.config.head.kind
    assert set(getattr(recipe.model.head, "labels", ())) == set(model.labels)
    measure = model.head.measure
    assert 0.5 < metrics[f"dev_{measure}"] <= 1
    assert about["shipped"]["measured"] is True
    lost = about["shipped"]["original"][f"dev_{measure}"] - metrics[f"dev_{measure}"]
    assert lost <= ship_model.MOST_LOST + 1e-9
    card = (folder / "README.md").read_text(encoding="utf-8")
    data = ModelCard(card).data
    assert data.license == about["license"]
    measured = [metrics[x] for x in (f"dev_{measure}", f"test_{measure}") if x in metrics]
    assert f"- dev {measure}: {measured[0]:.2%}" in card
    # the header is for classifiers
    listed = [result.metric_value for result in data.eval_results or ()]
    assert listed == (measured if model.labels else [])
    assert "Table" not in card
    if name == "listops-64d":
        # its data are generated
        assert not about["sources"]
        text = "[SM 2 [MAX 3 9 ] 4 ]"
        assert model.parse(text) == tree_of(text.split())
        assert [answer.label for answer in model.predict([text, "[MIN 8 6 ]"])] == ["5", "6"]
        return
    assert f"`{about['sources'][0]['licence']}`" in card
    assert any(source["name"].startswith("glove") for source in about["sources"])
    assert model.parse("i love this very much .").words[1] == "love"
    if model.config.head.kind == "single":
        good, bad = model.predict(["i love this very much .", "a dull , stupid waste of time ."])
        assert (good.label, bad.label) == ("positive", "negative")


def test_docs_show_the_trees_of_figure_4() -> None:
    page = (Path(__file__).parents[1] / "docs" / "pretrained.md").read_text(encoding="utf-8")
    drawings = [
        load(name).parse("i love this very much .").draw() for name in ("sst2-100d", "snli-100d")
    ]
    assert drawings[0] != drawings[1]
    for drawing in drawings:
        assert f"```text\n{drawing}\n```" in page


def test_models_selected_by_their_loss_show_another_metric():
    assert packaged.main_metric(["dev_loss", "test_loss", "dev_accuracy"]) == "accuracy"
    assert packaged.main_metric(["dev_macro_f1", "dev_accuracy"]) == "macro_f1"
    assert packaged.main_metric(["seconds", "dev_loss"]) == "loss"
    assert packaged.main_metric([]) is None
