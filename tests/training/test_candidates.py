"""Training of several encoders, of which the best is kept."""

import json

import pytest

from gumbeltree import load
from gumbeltree.config import CANDIDATES, ENCODER_KINDS, load_recipe
from gumbeltree.training import candidates, loop
from gumbeltree.training.candidates import train_candidates
from gumbeltree.training.stopping import InterruptedRunError
from tests.commands import run
from tests.runs import SMALL, contents, small, table


@pytest.fixture(autouse=True)
def _short_measurements(monkeypatch):
    monkeypatch.setattr(candidates, "RATE_SECONDS", 0.0)


def recipes(*settings):
    kinds = {name: ENCODER_KINDS[name] for name in CANDIDATES}
    return {
        name: small("epochs=1", *settings, f"encoder.kind={kind}") for name, kind in kinds.items()
    }


def compare(demo, out, *settings, **options):
    return train_candidates(recipes(*settings), demo, out, quiet=True, **options)


@pytest.fixture(scope="module")
def finished(demo, tmp_path_factory):
    """The folder and the result of a comparison; not to be changed."""
    folder = tmp_path_factory.mktemp("candidates") / "auto"
    return folder, compare(demo, folder)


def test_keeps_the_best_on_the_development_split(finished):
    folder, result = finished
    rows = {row["encoder"]: row for row in result["candidates"]}
    assert list(rows) == ["bag", "lstm", "tree"]
    for name, row in rows.items():
        single = json.loads((folder / name / "result.json").read_text(encoding="utf-8"))
        assert row["value"] == single["dev_accuracy"]
        assert row["seconds"] == single["seconds"]
        assert row["bytes"] == (folder / name / "model/model.safetensors").stat().st_size
        assert row["sentences_per_second"] > 0
        # nobody looks at the test results of the others
        assert ("test_accuracy" in single) == (name == result["encoder"])
    assert rows["bag"]["parameters"] < rows["lstm"]["parameters"] < rows["tree"]["parameters"]
    best = rows[result["encoder"]]
    assert best["value"] == max(row["value"] for row in rows.values()) == result["dev_accuracy"]
    assert result == json.loads((folder / "result.json").read_text(encoding="utf-8"))
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        chosen = folder / result["encoder"] / "model" / name
        assert (folder / "model" / name).read_bytes() == chosen.read_bytes()
    metrics = load(folder).provenance["metrics"]
    assert metrics["test_accuracy"] == result["test_accuracy"]


def test_the_chosen_run_is_an_ordinary_one(demo, finished, tmp_path):
    folder, result = finished
    best = result["encoder"]
    loop.train(recipes()[best], demo, tmp_path / "run", quiet=True)
    assert contents(tmp_path / "run") == contents(folder / best)


def test_the_choice_depends_on_development_scores_alone(demo, tmp_path, monkeypatch):
    scores = {"bag": 0.5, "lstm": 0.75, "tree": 0.75}
    called = []

    def fake(recipe, prepared, folder, *, test, **options):
        called.append((folder.name, test))
        (folder / "model").mkdir(parents=True, exist_ok=True)
        for name in ("model.safetensors", "tokenizer.json", "config.json"):
            (folder / "model" / name).write_text(folder.name)
        value = scores[folder.name]
        return {"dev_accuracy": value, "measure": "accuracy", "seconds": 1.0, "test_accuracy": 0.1}

    monkeypatch.setattr(candidates, "train", fake)
    monkeypatch.setattr(candidates, "load", lambda folder, device: None)
    monkeypatch.setattr(candidates, "_rate", lambda model, split: 10.0)
    monkeypatch.setattr(candidates, "model_config", lambda folder: recipes()["bag"].model)
    result = compare(demo, tmp_path / "auto")
    # the first of the equals
    assert result["encoder"] == "lstm"
    assert called == [("bag", False), ("lstm", False), ("tree", False), ("lstm", True)]
    assert (tmp_path / "auto/model/config.json").read_text() == "lstm"


def test_resumes_where_it_was_interrupted(demo, finished, tmp_path, monkeypatch):
    out, update = tmp_path / "auto", loop._Run._update

    def interrupted(self, rows):
        update(self, rows)
        if self.folder.path.name == "lstm" and self.progress.step == 4:
            self._save()
            raise InterruptedRunError(2, self.folder.path)

    with monkeypatch.context() as patch:
        patch.setattr(loop._Run, "_update", interrupted)
        with pytest.raises(InterruptedRunError, match=r"lstm\. Pass --resume"):
            compare(demo, out)
    assert not (out / "tree").exists()
    assert not (out / "model").exists()
    with pytest.raises(FileExistsError, match="--resume"):
        compare(demo, out)
    bag = (out / "bag/result.json").stat().st_mtime_ns
    result = compare(demo, out, resume=True)
    assert (out / "bag/result.json").stat().st_mtime_ns == bag or result["encoder"] == "bag"
    assert result["encoder"] == finished[1]["encoder"]
    assert contents(out / result["encoder"]) == contents(finished[0] / result["encoder"])


def test_a_finished_comparison_is_left_unchanged(demo, finished):
    folder, result = finished
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    before = {path: path.stat().st_mtime_ns for path in files}
    assert compare(demo, folder, resume=True) == result
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_trains_a_finished_comparison_for_longer(demo, tmp_path):
    first = compare(demo, tmp_path / "auto")
    longer = compare(demo, tmp_path / "auto", "epochs=2", resume=True)
    steps = [json.loads((tmp_path / "auto" / name / "result.json").read_text())["steps"]
             for name in CANDIDATES]  # fmt: skip
    assert steps == [2 * first["steps"]] * 3
    assert longer["dev_accuracy"] >= first["dev_accuracy"]


def test_comparisons_and_ordinary_runs_have_different_folders(demo, finished, tmp_path):
    with pytest.raises(ValueError, match="its `encoder` is 'auto'"):
        loop.train(recipes()["tree"], demo, finished[0], quiet=True, resume=True)
    loop.train(recipes()["tree"], demo, tmp_path / "run", quiet=True)
    with pytest.raises(ValueError, match="its `encoder` is None, not 'auto'"):
        compare(demo, tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match=r"learning_rate` is 0\.05, not 0\.5"):
        compare(demo, finished[0], "learning_rate=0.5", resume=True)


def test_needs_a_single_process(demo, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="without torchrun"):
        compare(demo, tmp_path / "auto")


# the command line


def train(folder, *options, recipe="text"):
    path = table(folder / "table.csv", lambda text: "yes" if "w1" in text else "no", rows=120)
    sets = [word for setting in (*SMALL, "epochs=1") for word in ("--set", setting)]
    columns = ("--data", path, "--text", "body", "--label", "class", "--out", folder / "run")
    return run("train", recipe, *columns, *sets, "--device", "cpu", *options)


def test_auto_on_the_command_line(tmp_path):
    result = train(tmp_path, "--encoder", "auto")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    header = next(line for line in lines if "encoder" in line)
    for column in ("dev accuracy", "parameters", "size", "training", "sentences/s"):
        assert column in header
    for name in CANDIDATES:
        assert f"{name}: epoch" in result.err
        assert sum(line.lstrip("│ ").startswith((f"{name} ", f"{name} *")) for line in lines) == 1
    assert sum(" * " in line for line in lines) == 1
    assert f"The model is in {tmp_path / 'run/model'}." in result.out
    again = train(tmp_path, "--encoder", "auto", "--resume", "--json", "--quiet")
    report = json.loads(again.out)
    assert report["encoder"] in CANDIDATES
    assert load(tmp_path / "run").config.encoder.kind in ("bag", "lstm", "gumbel_tree")


@pytest.mark.parametrize(
    ("encoder", "kind"), [("tree", "gumbel_tree"), ("bag", "bag"), ("fixed_tree", "fixed_tree")]
)
def test_encoder_on_the_command_line(encoder, kind, tmp_path):
    result = train(tmp_path, "--encoder", encoder, "--quiet")
    assert result.code == 0, result.err
    assert load(tmp_path / "run").config.encoder.kind == kind


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("auto", "--seeds", "2"), "omit --seeds"),
        (("auto", "--init", "sst2-100d"), "omit --encoder"),
        (("lstm", "--init", "sst2-100d"), "omit --encoder"),
        (
            ("auto", "--set", "leaf=affine"),
            "fit bag: the setting leaf=affine: unknown key 'leaf'",
        ),
        (("trees",), "unknown encoder 'trees'"),
    ],
)
def test_rejects_other_options(options, message, tmp_path):
    assert message in train(tmp_path, "--encoder", *options).refused()


# settings of a recipe for single encoders


def write_recipe(folder, encoders):
    text = load_recipe_text() + f"\n[encoders]\n{encoders}\n"
    path = folder / "own.toml"
    path.write_text(text, encoding="utf-8")
    return path


def load_recipe_text():
    from importlib import resources

    path = resources.files("gumbeltree") / "recipes" / "text.toml"
    return path.read_text(encoding="utf-8").partition("\n[encoders]")[0]


def test_recipes_can_list_settings_for_an_encoder(tmp_path):
    changes = 'lstm = ["head.dropout=0.75", "learning_rate=0.5", "encoder.hidden_dim=7"]'
    path = write_recipe(tmp_path, changes)
    plain = load_recipe(path)
    for name in (None, "tree", "bag"):
        recipe = load_recipe(path, name)
        assert recipe.model.head == plain.model.head
        assert recipe.training == plain.training
    lstm = load_recipe(path, "lstm")
    assert lstm.model.encoder.kind == "lstm"
    assert lstm.model.encoder.hidden_dim == 7
    assert (lstm.model.head.dropout, lstm.training.learning_rate) == (0.75, 0.5)
    assert lstm.model.embedding == plain.model.embedding


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ('lstm = "head.dropout=1"', r"own\.toml: `encoders.lstm` must be a list"),
        ('lstm = ["dropot=1"]', r"own\.toml: the setting dropot=1: unknown key 'dropot'"),
    ],
)
def test_rejects_wrong_settings_for_an_encoder(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load_recipe(write_recipe(tmp_path, changes), "lstm")


def test_candidates_share_their_data(tmp_path):
    path = write_recipe(tmp_path, 'lstm = ["lower=false"]')
    assert not load_recipe(path, "lstm").data.lower
    with pytest.raises(ValueError, match="the recipe changes `data` for lstm"):
        candidates.candidate_recipes(lambda name: load_recipe(path, name))
