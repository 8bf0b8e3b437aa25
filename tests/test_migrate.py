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
    assert dataclasses.asdict(recipe.model.encoder.leaf) == {"kind": "bilstm", "init": "he"}
    encoder = with_settings(recipe, ["encoder.kind=lstm"]).model.encoder
    assert encoder == LSTMConfig(64, 64, impl="exact")
    assert with_settings(recipe, ["leaf=affine"]).model.encoder.leaf == AffineLeafConfig()
    with pytest.raises(ValueError, match=r"unknown key 'encoder\.leaf\.init'"):
        with_settings(recipe, ["leaf=affine", "leaf_init=he"])


def test_an_unfinished_run_with_fixed_trees_is_refused(tmp_path):
    run = shutil.copytree(FROZEN / "run", tmp_path / "run")
    settings = json.loads((run / "settings.json").read_text("utf-8"))
    settings["recipe"]["model"]["encoder"]["trees"] = "left"
    (run / "settings.json").write_text(json.dumps(settings))
    recipe = from_dict(Recipe, current_recipe(settings["recipe"]))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=r"of gumbeltree 0\.1\.0.*finish it with that version"):
        train(recipe, load_prepared(FROZEN / "prepared.safetensors"), run, resume=True)
    assert all(path.read_bytes() == content for path, content in before.items())


def test_a_run_of_a_later_version_is_refused(tmp_path):
    run = shutil.copytree(FROZEN / "run", tmp_path / "run")
    settings = json.loads((run / "settings.json").read_text("utf-8"))
    (run / "settings.json").write_text(json.dumps({**settings, "format_version": 3}))
    with (
        pytest.raises(ValueError, match="has format version 3, this gumbeltree reads versions 1"),
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
