"""Settings that version 1 wrote, or users of it, are read; what cannot go on says so."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from gumbeltree.config import (
    AffineLeafConfig,
    BagConfig,
    EncoderConfig,
    FixedTreeConfig,
    LSTMConfig,
    Recipe,
    TreeLSTMConfig,
    load_recipe,
    with_settings,
)
from gumbeltree.data.prepared import load_prepared
from gumbeltree.migrate import current_encoder, current_recipe, first_encoder
from gumbeltree.parts import ENCODERS
from gumbeltree.settings import from_dict, part_settings
from gumbeltree.training.folder import RunFolder
from gumbeltree.training.loop import train

FROZEN = Path(__file__).parent / "frozen"

# as `dataclasses.asdict` of version 1 wrote it
FIRST = {
    "embedding_dim": 7, "hidden_dim": 8, "leaf": "lstm", "leaf_init": "he", "cell": "treelstm",
    "cell_init": "orthogonal", "forget_offset": 0.0, "score": "scaled_dot", "estimator": "soft",
    "temperature": 0.5, "attention": True, "impl": "reference", "trees": "learned",
    "kind": "gumbel_tree",
}  # fmt: skip
CELL = TreeLSTMConfig("orthogonal", 0.0)
LEAF = {"init": "he"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, EncoderConfig(7, 8, LEAF, CELL, True, "reference", "scaled_dot", "soft", 0.5)),
        ({"trees": "left"}, FixedTreeConfig(7, 8, LEAF, CELL, True, "reference", "left")),
        ({"kind": "lstm"}, LSTMConfig(7, 8, "he", "reference")),
        ({"kind": "lstm", "trees": "left"}, LSTMConfig(7, 8, "he", "reference")),
        ({"kind": "bag"}, BagConfig(7, 8)),
        (
            {"leaf": "affine"},
            EncoderConfig(
                7, 8, AffineLeafConfig(), CELL, True, "reference", "scaled_dot", "soft", 0.5
            ),
        ),
    ],
)
def test_encoders_of_version_1(changes, expected):
    first = {**FIRST, **changes}
    now = current_encoder(first)
    found = part_settings(ENCODERS, "gumbel_tree", now, "encoder")
    assert found == expected
    # what is in today's form stays
    assert current_encoder(dataclasses.asdict(found)) == dataclasses.asdict(found)
    # and back, but for what the encoder did not read
    back = first_encoder(dataclasses.asdict(found))
    assert list(back) == list(FIRST)
    assert current_encoder(back) == current_encoder({**back})
    assert part_settings(ENCODERS, "gumbel_tree", current_encoder(back), "encoder") == expected


@pytest.mark.parametrize("biases", [1, 2])
@pytest.mark.parametrize("kind", ["gumbel_tree", "lstm", "parser_composer"])
def test_a_later_setting_of_a_part_changes_digests_only_if_it_is_used(kind, biases):
    leaf = {"kind": "lstm", "biases": biases}
    parts = {"lstm": {"biases": biases}, "parser_composer": {"parser": {"leaf": leaf}}}
    settings = {"kind": kind, **parts.get(kind, {"leaf": leaf})}
    first = first_encoder(
        dataclasses.asdict(part_settings(ENCODERS, "gumbel_tree", settings, "encoder"))
    )
    assert ("biases" in json.dumps(first)) == (biases == 1)


def test_a_recipe_file_of_version_1(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        "description = 'mine'\n[model.encoder]\nleaf = 'bilstm'\nleaf_init = 'he'\n"
        "cell_init = 'orthogonal'\nforget_offset = 0.0\ntrees = 'right'\n"
    )
    leaf = {"kind": "bilstm", "init": "he"}
    assert load_recipe(path).model.encoder == FixedTreeConfig(leaf=leaf, cell=CELL, trees="right")


@pytest.mark.parametrize("prefix", ["", "encoder.", "model.encoder."])
def test_names_of_set_of_version_1(prefix):
    recipe = load_recipe("demo")
    old = ["leaf_init=he", "cell_init=orthogonal", "forget_offset=0.5", "trees=left"]
    new = ["leaf.init=he", "cell.init=orthogonal", "cell.forget_offset=0.5"]
    new += ["encoder.kind=fixed_tree", "encoder.trees=left"]
    changed = with_settings(recipe, [prefix + x for x in old])
    assert changed == with_settings(recipe, new)
    assert changed.model.encoder.trees == "left"
    assert with_settings(changed, [f"{prefix}trees=learned"]) == with_settings(recipe, new[:3])


def test_parts_of_another_kind_keep_what_both_have():
    recipe = with_settings(load_recipe("demo"), ["impl=exact", "leaf.init=he", "leaf=bilstm"])
    assert dataclasses.asdict(recipe.model.encoder.leaf) == {
        "kind": "bilstm",
        "init": "he",
        "biases": 2,
    }
    encoder = with_settings(recipe, ["encoder.kind=lstm"]).model.encoder
    assert encoder == LSTMConfig(64, 64, impl="exact")
    assert with_settings(recipe, ["leaf=affine"]).model.encoder.leaf == AffineLeafConfig()
    # version 1 took it, and it had no effect
    affine = with_settings(recipe, ["leaf=affine", "leaf_init=he"])
    assert affine.model.encoder.leaf == AffineLeafConfig()


def test_an_unfinished_run_with_fixed_trees_is_refused(tmp_path):
    run = shutil.copytree(FROZEN / "run", tmp_path / "run")
    settings = json.loads((run / "settings.json").read_text("utf-8"))
    settings["recipe"]["model"]["encoder"]["trees"] = "left"
    (run / "settings.json").write_text(json.dumps(settings))
    recipe = from_dict(Recipe, current_recipe(settings["recipe"]))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"of gumbeltree 0\.1\.0.*finish the run with version"):
        train(recipe, load_prepared(FROZEN / "prepared.safetensors"), run, resume=True)
    assert all(path.read_bytes() == content for path, content in before.items())


def test_a_run_of_a_later_version_is_refused(tmp_path):
    run = shutil.copytree(FROZEN / "run", tmp_path / "run")
    settings = json.loads((run / "settings.json").read_text("utf-8"))
    (run / "settings.json").write_text(json.dumps({**settings, "format_version": 3}))
    with (
        pytest.raises(
            ValueError, match="has format version 3, but this gumbeltree reads versions 1"
        ),
        RunFolder(run, settings, True),
    ):
        pass


def test_a_run_of_version_1_may_stop_again_before_it_is_saved(tmp_path):
    """Its settings are then of today, and its state still of version 1."""
    run = shutil.copytree(FROZEN / "run", tmp_path / "run")
    old = json.loads((run / "settings.json").read_text("utf-8"))
    recipe = from_dict(Recipe, current_recipe(old["recipe"]))
    now = {"format_version": 2, **old, "recipe": json.loads(json.dumps(dataclasses.asdict(recipe)))}
    with RunFolder(run, now, True) as folder:
        state = folder.load_checkpoint()
        folder.write("settings.json", folder.settings)
    with RunFolder(run, now, True) as folder:
        assert folder.load_checkpoint().keys() == state.keys()
        folder.save_checkpoint(state)
    # as one of several processes reads it, which does not hold the folder
    assert RunFolder(run, now, True).load_checkpoint().keys() == state.keys()
    other = {**now, "data_digest": "another"}
    with pytest.raises(ValueError, match="belongs to another run"):
        RunFolder(run, other, True).load_checkpoint()


@pytest.mark.parametrize("swap", [False, True])
def test_names_of_version_1_mean_what_the_encoder_is(swap):
    def changed(*settings):
        settings = settings[::-1] if swap else settings
        return with_settings(load_recipe("demo"), settings).model.encoder

    assert changed("leaf_init=he", "encoder.kind=lstm") == LSTMConfig(64, 64, "he")
    assert changed("forget_offset=0", "encoder.kind=bag") == BagConfig(64, 64)
    for trees in ("left", "learned"):
        found = with_settings(load_recipe("demo"), ["encoder.kind=bag", f"trees={trees}"])
        assert found.model.encoder == BagConfig(64, 64)


@pytest.mark.parametrize("setting", ["trees=gold", "leaf_init=he", "forget_offset=0"])
def test_later_encoders_refuse_names_of_version_1(setting):
    with pytest.raises(ValueError, match=f"unknown key '{setting.partition('=')[0]}'"):
        with_settings(load_recipe("cyk"), [setting])


def test_both_forms_beside_each_other():
    now = current_encoder(
        {"cell_init": "orthogonal", "leaf_init": "he", "cell": {"forget_offset": 0.0}, "leaf": {}}
    )
    found = part_settings(ENCODERS, "gumbel_tree", now, "encoder")
    assert found == EncoderConfig(leaf=LEAF, cell=CELL)


@pytest.mark.parametrize(
    "encoder",
    [
        {"kind": "fixed_tree", "trees": "left", "cell_init": "he", "score": "bogus"},
        {**FIRST, "kind": "bag", "leaf": []},
        {**FIRST, "kind": []},
        {"kind": "bag", "leaf": "affine"},
    ],
)
def test_what_makes_no_sense_is_refused_in_any_form(encoder):
    with pytest.raises(ValueError, match=r"unknown key|must be"):
        part_settings(ENCODERS, "gumbel_tree", current_encoder(encoder), "encoder")


def test_a_run_with_fixed_trees_that_ended_is_left_as_it_is(tmp_path):
    run = shutil.copytree(FROZEN / "run", tmp_path / "run")
    settings = json.loads((run / "settings.json").read_text("utf-8"))
    settings["recipe"]["model"]["encoder"]["trees"] = "left"
    (run / "settings.json").write_text(json.dumps(settings))
    (run / "result.json").write_text('{"dev_accuracy": 0.5}')
    recipe = from_dict(Recipe, current_recipe(settings["recipe"]))
    data = load_prepared(FROZEN / "prepared.safetensors")
    found = train(recipe, data, run, recipe_name="demo", resume=True)
    assert found == {"dev_accuracy": 0.5}


def test_losses_by_set():
    recipe = load_recipe("demo")
    assert with_settings(recipe, ["losses.a.b=1"]).training.losses == {"a.b": 1.0}
    assert with_settings(recipe, ["training.losses={a=2}"]).training.losses == {"a": 2.0}
    with pytest.raises(ValueError, match=r"unknown key 'losses\.'"):
        with_settings(recipe, ["losses.=1"])
    assert isinstance(hash(recipe), int)
