import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from gumbeltree.config import (
    AffineLeafConfig,
    DataConfig,
    EmbeddingConfig,
    EncoderConfig,
    HeadConfig,
    ModelConfig,
    Recipe,
    TrainingConfig,
    TreeLSTMConfig,
    load_recipe,
    recipe_names,
    to_json,
    with_settings,
)
from gumbeltree.nn.encoders.gumbel_tree import GumbelTreeEncoder
from gumbeltree.nn.heads.classes import PairHead
from gumbeltree.registry import Registry, UnknownNameError, suggest
from gumbeltree.settings import from_dict

OTHER = ModelConfig(
    EncoderConfig(
        *(7, 9, {"kind": "bilstm", "init": "he"}, {"init": "orthogonal", "forget_offset": 0.0}),
        *(True, "exact", "scaled_dot", "soft", 0.5),
    ),
    HeadConfig("single", ("schlecht", "très bien"), 11, 3, True, 0.25, 0.002),
    EmbeddingConfig(0.5, True),
)


@pytest.mark.parametrize("config", [ModelConfig(), OTHER])
def test_json_round_trip(config):
    assert from_dict(ModelConfig, json.loads(to_json(config))) == config


def test_json_keeps_letters_readable():
    assert "très bien" in to_json(OTHER)


def test_empty_tables_give_the_defaults():
    assert from_dict(ModelConfig, {}) == ModelConfig()
    assert from_dict(ModelConfig, {"encoder": {}, "head": {}}) == ModelConfig()


def test_settings_are_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        EncoderConfig().hidden_dim = 5


@pytest.mark.parametrize(
    ("data", "dotted", "nearest"),
    [
        ({"encodr": {}}, "model.encodr", "encoder"),
        ({"encoder": {"hiden_dim": 3}}, "model.encoder.hiden_dim", "hidden_dim"),
        ({"embedding": {"tunned": True}}, "model.embedding.tunned", "tuned"),
    ],
)
def test_rejects_unknown_keys_and_suggests_the_nearest(data, dotted, nearest):
    with pytest.raises(ValueError, match=f"'{dotted}'.*Did you mean '{nearest}'"):
        from_dict(ModelConfig, data, "model")


def test_lists_the_known_keys():
    with pytest.raises(ValueError, match=r"'model.zzz'.* encoder, head, embedding, max_words\.$"):
        from_dict(ModelConfig, {"zzz": 1}, "model")


@pytest.mark.parametrize(
    ("table", "key", "value", "expected"),
    [
        ("encoder", "hidden_dim", 3.0, "whole number, got 3.0"),
        ("encoder", "hidden_dim", True, "whole number, got True"),
        ("encoder", "hidden_dim", "300", "whole number, got '300'"),
        ("encoder", "hidden_dim", None, "whole number, got None"),
        ("encoder", "temperature", "warm", "number, got 'warm'"),
        ("encoder", "attention", 1, "true or false, got 1"),
        ("encoder", "leaf", 5, "leaf.*got 5"),
        ("encoder", "cell", ["treelstm"], r"cell.*got \['treelstm'\]"),
        ("head", "labels", "positive", "list of strings, got 'positive'"),
        ("head", "labels", ["good", 1], r"list of strings, got \['good', 1\]"),
    ],
)
def test_rejects_values_of_the_wrong_type(table, key, value, expected):
    with pytest.raises(ValueError, match=f"`model.{table}.{key}` must be .*{expected}"):
        from_dict(ModelConfig, {table: {key: value}}, "model")


@pytest.mark.parametrize("key", ["hidden_dim", "temperature"])
def test_rejects_numbers_too_large_for_a_float(key):
    # JSON and TOML have integers of any length
    with pytest.raises(ValueError, match=key):
        GumbelTreeEncoder(from_dict(EncoderConfig, {"hidden_dim": 4, key: 10**400}))


@pytest.mark.parametrize("value", [None, 3, [1, 2]])
def test_rejects_a_value_in_place_of_a_table(value):
    with pytest.raises(ValueError, match=r"`model\.encoder` must be .* table"):
        from_dict(ModelConfig, {"encoder": value}, "model")
    with pytest.raises(ValueError, match="`ModelConfig` must be a table"):
        from_dict(ModelConfig, value)


def test_integers_become_floats():
    temperature = from_dict(EncoderConfig, {"temperature": 2}).temperature
    assert temperature == 2.0
    assert type(temperature) is float


@pytest.mark.parametrize(
    ("table", "key", "value", "nearest"),
    [
        ("encoder.leaf", "init", "ortogonal", "orthogonal"),
        ("encoder", "score", "scaled-dot", "scaled_dot"),
    ],
)
def test_rejects_unknown_choices_and_suggests_the_nearest(table, key, value, nearest):
    message = f"`model.{table}.{key}` .*'{value}'. Did you mean '{nearest}'?"
    with pytest.raises(ValueError, match=message):
        from_dict(ModelConfig, nested(table, {key: value}), "model")


def nested(path, value):
    for step in reversed(path.split(".")):
        value = {step: value}
    return value


@pytest.mark.parametrize(
    ("path", "kind", "nearest"),
    [
        ("head", "pairs", "pair"),
        ("encoder", "gumbeltree", "gumbel_tree"),
        ("encoder.leaf", "lsmt", "lstm"),
        ("encoder.estimator", "sft", "soft"),
    ],
)
def test_rejects_unknown_parts_and_suggests_the_nearest(path, kind, nearest):
    message = f"`model.{path}.kind`: unknown .* '{kind}'; known: .*'{nearest}'"
    for value in (kind, {"kind": kind}):
        with pytest.raises(ValueError, match=message):
            from_dict(ModelConfig, nested(path, value), "model")


def test_a_part_is_given_by_kind_table_or_settings():
    by_name = from_dict(EncoderConfig, {"leaf": "affine", "cell": {"init": "orthogonal"}})
    assert by_name == EncoderConfig(leaf=AffineLeafConfig(), cell=TreeLSTMConfig("orthogonal"))
    assert by_name == EncoderConfig(leaf="affine", cell={"init": "orthogonal"})
    with pytest.raises(ValueError, match=r"unknown key 'encoder\.leaf\.init'"):
        from_dict(ModelConfig, {"encoder": {"leaf": {"kind": "affine", "init": "he"}}})


def test_rejects_missing_settings():
    with pytest.raises(ValueError, match="`Recipe` is missing description, model"):
        from_dict(Recipe, {})


# settings constructed in Python
@pytest.mark.parametrize(
    ("setting", "pattern"),
    [
        ({"score": "scaled"}, "score.*'scaled'"),
        ({"cell": {"init": "ortho"}}, "cell.init.*'ortho'"),
        ({"leaf": "lsmt"}, "leaf.*'lsmt'.*Did you mean 'lstm'"),
        ({"leaf": None}, "leaf.*None"),
        ({"impl": "exat"}, "impl.*'exat'.*Did you mean 'exact'"),
        ({"hidden_dim": 0}, "hidden_dim.* 0"),
        ({"embedding_dim": -1}, "embedding_dim.*-1"),
        ({"hidden_dim": 2.5}, "hidden_dim.*2.5"),
        ({"temperature": 0}, "temperature.*positive.* 0"),
        ({"temperature": float("nan")}, "temperature.*nan"),
        ({"cell": {"forget_offset": float("inf")}}, "forget_offset.*inf"),
        ({"leaf": "bilstm", "hidden_dim": 5}, "even.*got 5"),
    ],
)
def test_encoders_reject_invalid_settings(setting, pattern):
    with pytest.raises((ValueError, TypeError), match=pattern):
        GumbelTreeEncoder(EncoderConfig(**{"embedding_dim": 3, "hidden_dim": 4, **setting}))


@pytest.mark.parametrize(
    ("setting", "pattern"),
    [
        ({"labels": ()}, r"labels?.*\(\)"),
        ({"labels": "abc"}, "labels.*'abc'"),
        ({"labels": ("good", "bad", "good")}, "labels.*'good'"),
        ({"hidden_layers": -1}, "hidden_layers.*-1"),
        ({"dropout": 1.5}, "dropout.*1.5"),
        ({"dropout": float("nan")}, "dropout.*nan"),
        ({"output_range": -1.0}, "output_range.*-1.0"),
    ],
)
def test_heads_reject_invalid_settings(setting, pattern):
    with pytest.raises((ValueError, TypeError), match=pattern):
        PairHead(HeadConfig(**setting), 4)


@pytest.mark.parametrize("dropout", [-0.1, 1.1, float("nan")])
def test_rejects_invalid_embedding_dropout(dropout):
    with pytest.raises(ValueError, match=f"dropout.*{dropout}"):
        EmbeddingConfig(dropout=dropout)


def test_variants():
    encoder = EncoderConfig(7, 9, leaf="affine", temperature=0.5)
    paper, reference = encoder.with_variant("paper"), encoder.with_variant("reference")
    assert (paper.score, paper.cell.init) == ("dot", "he")
    assert (reference.score, reference.cell.init) == ("scaled_dot", "orthogonal")
    assert dataclasses.replace(reference, score="dot", cell={"init": "he"}) == paper
    assert (paper.embedding_dim, paper.leaf.kind, paper.temperature) == (7, "affine", 0.5)


def test_rejects_an_unknown_variant():
    with pytest.raises(ValueError, match=r"'papper'.*Did you mean 'paper'"):
        EncoderConfig().with_variant("papper")


def test_the_score_is_scaled_by_the_root_of_the_width():
    scales = [
        GumbelTreeEncoder(EncoderConfig(3, 16, score=score)).scale
        for score in ("dot", "scaled_dot")
    ]
    assert scales == [1.0, 0.25]


# recipes


def test_reads_a_recipe_from_a_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('description = "mine"\n[model.encoder]\nhidden_dim = 12\n', encoding="utf-8")
    recipe = load_recipe(str(path))
    assert recipe == Recipe("mine", ModelConfig(EncoderConfig(hidden_dim=12)))
    assert load_recipe(path) == recipe


def test_rejects_an_unknown_recipe_and_suggests_the_nearest():
    with pytest.raises(ValueError, match=r"'snli300d'.*Did you mean 'snli-300d'"):
        load_recipe("snli300d")


@pytest.mark.parametrize("name", ["", ".", "../recipes/sst2", "recipes/sst2", "zzz"])
def test_looks_up_recipes_only_in_the_package(name):
    with pytest.raises(UnknownNameError, match=r"unknown recipe .* demo, "):
        load_recipe(name)


@pytest.mark.parametrize(
    ("content", "pattern"),
    [
        (b"description = 'x' y", "at line 1, column 19"),
        (b"description = '\xff'", "utf-8"),
        (b"", "missing description, model"),
        (b"description = 'x'\n[model.encoder]\nhiden_dim = 3", "'model.encoder.hiden_dim'.*hidden"),
        (b"description = 3\n[model]", "`description` .*got 3"),
        (b"description = 'x'\nmodel = 'sst2'", "`model` must be a table.*'sst2'"),
    ],
)
def test_rejects_an_invalid_recipe_file(tmp_path, content, pattern):
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=pattern) as error:
        load_recipe(str(path))
    assert "mine.toml" in str(error.value)


def test_rejects_a_missing_recipe_file():
    with pytest.raises(FileNotFoundError, match=r"nowhere\.toml"):
        load_recipe("nowhere.toml")


def test_recipe_files_match_recipe_names():
    folder = Path(load_recipe.__code__.co_filename).parent / "recipes"
    assert recipe_names() == sorted(path.stem for path in folder.glob("*.toml"))


# --set


def changed(*settings):
    return with_settings(load_recipe("sst2"), settings)


def test_settings_are_replaced():
    recipe = changed(
        "training.batch_size=64",
        "learning_rate=1",
        "tuned=false",
        "head.labels=['a', 'b']",
        "task=table",
        "model.encoder.hidden_dim = 12 ",
    )
    assert recipe.training.batch_size == 64
    assert recipe.training.learning_rate == 1.0
    assert type(recipe.training.learning_rate) is float
    assert recipe.model.embedding.tuned is False
    assert recipe.model.head.labels == ("a", "b")
    assert recipe.data.task == "table"
    assert recipe.model.encoder.hidden_dim == 12
    # nothing else changed
    labels = "labels=['negative', 'positive']"
    back = ["batch_size=32", "tuned=true", "task=sst2", "encoder.hidden_dim=300", labels]
    assert with_settings(recipe, back) == load_recipe("sst2")
    assert changed() == load_recipe("sst2")


def test_settings_in_a_mapping():
    settings = {"batch_size": 64, "tuned": False, "head.labels": ["a", "ü"], "learning_rate": 1e-5}
    settings |= {"data.text": "a=b", "precision": "64"}
    recipe = with_settings(load_recipe("sst2"), settings)
    text = ["batch_size=64", "tuned=false", "head.labels=['a', 'ü']", "learning_rate=1e-5"]
    assert recipe == changed(*text, "data.text=a=b", "precision=64")
    with pytest.raises(TypeError, match=r"one string; pass \['epochs=1'\]"):
        with_settings(load_recipe("sst2"), "epochs=1")


def test_numbers_of_numpy_in_a_mapping():
    recipe = load_recipe("demo")
    mapping = {"epochs": np.int64(3), "learning_rate": np.float32(0.5)}
    assert with_settings(recipe, mapping) == with_settings(
        recipe, ["epochs=3", "learning_rate=0.5"]
    )


def test_the_last_setting_wins():
    assert changed("batch_size=3", "training.batch_size=4").training.batch_size == 4


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("review", "review"),
        ("'review'", "review"),
        ('"star\\u0073"', "stars"),
        ("a=b", "a=b"),
        ("a#b", "a#b"),
        ("", ""),
        ("''", ""),
        (" spaced out ", "spaced out"),
        ("'12'", "12"),
        ("très bien", "très bien"),
        ('"😀"', "😀"),
        ("[", "["),
        ("x\ny", "x\ny"),
    ],
)
def test_text_needs_no_quotes(text, value):
    assert changed(f"data.text={text}").data.text == value


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("hidden_dim=3", r"hidden_dim.* model\.encoder\.hidden_dim or model\.head\.hidden_dim"),
        ("batchsize=3", r"'batchsize'.*mean 'training\.batch_size'"),
        ("zzz=3", "'zzz'.*gumbeltree info"),
        ("model=3", "unknown key 'model'"),
        ("size=3", "unknown key 'size'; see `gumbeltree info`"),
        ("baseline=rloo", "it is a setting of estimator=reinforce or estimator=ppo"),
        ("estimator.gap=2", "it is a setting of estimator=gapped"),
        ("batch_size", "KEY=VALUE, got 'batch_size'"),
        ("=3", "KEY=VALUE, got '=3'"),
        ("batch_size=3.0", r"`training\.batch_size` .*whole number, got 3\.0"),
        ("batch_size=many", r"`training\.batch_size` .*whole number, got 'many'"),
        ("batch_size=0", r"`training\.batch_size` .*at least 1, got 0"),
        ("learning_rate=nan", r"`training\.learning_rate` .*got nan"),
        ("learning_rate=inf", r"`training\.learning_rate` .*got inf"),
        ("optimizer=adm", r"`training\.optimizer` .* adam, adadelta, .*, got 'adm'.*'adam'"),
        ("tuned=yes", r"`model\.embedding\.tuned` .*true or false, got 'yes'"),
        ("labels=['a', 'a']", r"`model\.head\.labels` .*no duplicates"),
        ("dev_fraction=0.95", r"`data\.dev_fraction` .*0\.\.0\.9, got 0\.95"),
        ("labels=" + "[" * 50_000, r"`model\.head\.labels` must be a list of strings"),
    ],
)
def test_rejects_invalid_assignments(setting, message):
    with pytest.raises(ValueError, match=message):
        changed(setting)
    # among several settings, also of the same key, the message names the one that is wrong
    with pytest.raises(ValueError, match=message) as error:
        changed("batch_size=16", setting, "batch_size=17")
    assert setting[:60] in str(error.value)


def test_an_assignment_sets_one_key_only():
    recipe = changed("batch_size=3\nepochs=1")
    assert recipe.training.batch_size == 3
    assert recipe.training.epochs == 10


@pytest.mark.parametrize("kind", [DataConfig, TrainingConfig])
def test_json_round_trip_of_recipe_parts(kind):
    assert from_dict(kind, json.loads(to_json(kind()))) == kind()


# registries


def test_a_registry_imports_by_name():
    table = Registry("part", {"linear": "torch.nn:Linear", "gru": "torch.nn:GRU"})
    assert table["linear"] is torch.nn.Linear
    assert list(table) == ["linear", "gru"]
    assert len(table) == 2
    assert "gru" in table
    assert "grue" not in table


@pytest.mark.parametrize("kind", [KeyError, ValueError])
def test_a_registry_suggests_the_nearest_name(kind):
    table = Registry("part", {"linear": "torch.nn:Linear", "gru": "torch.nn:GRU"})
    # a plain KeyError would print the message in quotes
    with pytest.raises(kind, match=r"^unknown part 'liner'.*Did you mean 'linear'\?$"):
        table["liner"]


def test_no_suggestion_for_a_name_like_no_other():
    assert suggest("zzz", ["linear", "gru"]) == ""
    assert suggest("", ["linear", "gru"]) == ""
    assert suggest("grew", []) == ""


@pytest.mark.parametrize(
    ("assignment", "value"),
    [("data.text=12", "12"), ("text=2020-01-01", "2020-01-01"), ("text='a'", "a")],
)
def test_any_value_can_be_a_string(assignment, value):
    assert with_settings(load_recipe("text"), [assignment]).data.text == value


def test_precision_is_a_name():
    assert with_settings(load_recipe("text"), ["precision=64"]).training.precision == "64"


@pytest.mark.parametrize("name", ["text", "text-pair"])
def test_latent_syntax_has_an_estimator_of_its_actions(name):
    # that of the recipe's tree encoder does not apply to actions
    assert load_recipe(name, "latent_syntax").model.encoder.estimator.kind == "reinforce"
