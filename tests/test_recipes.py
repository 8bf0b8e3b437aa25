import dataclasses
import tomllib
from importlib import resources

import pytest

from gumbeltree.config import (
    EncoderConfig,
    HeadConfig,
    LSTMConfig,
    ModelConfig,
    load_recipe,
    recipe_names,
    with_settings,
)
from gumbeltree.data.compile import make_task
from gumbeltree.describe import count_parameters, describe, published, without_published
from gumbeltree.model import SentenceModel
from gumbeltree.tasks import TASKS
from gumbeltree.text.tokenizer import whitespace_tokenizer

PARTS = ("leaf", "composition", "query", "mlp", "output", "batch_norm", "total")
COUNTS = {
    "snli-100d-affine": (20_200, 100_500, 100, 80_200, 603, 0, 201_603),
    "snli-100d": (80_800, 100_500, 100, 80_200, 603, 0, 262_203),
    "snli-300d-affine": (180_600, 901_500, 300, 1_229_824, 3_075, 4_448, 2_319_747),
    "snli-300d": (722_400, 901_500, 300, 1_229_824, 3_075, 4_448, 2_861_547),
    "snli-600d": (2_164_800, 3_603_000, 600, 4_557_824, 3_075, 6_848, 10_336_147),
    "sst2": (722_400, 901_500, 300, 90_300, 602, 0, 1_715_102),
    "sst5": (722_400, 901_500, 300, 308_224, 5_125, 0, 1_937_549),
}
SNLI = ("neutral", "entailment", "contradiction")
TUNED = ("snli-100d-tuned", "snli-300d-tuned", "sst2-tuned", "sst5-tuned")
# trained parameters of the systems that the paper compares itself with, without word vectors; see
# tests/nn for those that its authors' papers and code state differently
PEERS = {
    "lstm": 3_010_195,
    "spinn-pi-nt": 3_372_295,
    "spinn-pi": 3_698_523,
    "spinn": 2_749_145,
    "nse": 3_395_899,
    "nse compose=false": 3_035_299,
    "nse-sst2": 2_473_274,
    "nse-sst5": 2_476_349,
    "cyk": 231_403,
    "latent-syntax": 232_105,
    "latent-syntax tracker=100": 412_105,
    "gated-attention": 11_633_658,
    "gated-attention skip=true": 13_793_658,
    "shortcut-stacked": 140_201_795,
    "residual-stacked": 28_352_003,
    "rntn-sst2": 63_827,
    "rntn-sst5": 63_905,
    "constituency-sst2": 316_800 + 453,
    "constituency-sst5": 316_800 + 755,
    "constituency-dropout-sst5": 1_353_005,
    "nti-sst2": 1_753_874,
    "nti-sst5": 1_756_949,
    "dmn-sst2": 2_885_101 + 602,
    "dmn-sst5": 2_885_101 + 1_505,
    "bcn-sst2": 20_992_509,
    "bcn-sst5": 20_999_721,
    "byte-mlstm-small-sst2": 5_863_680 + 2_050,
    "byte-mlstm-small-sst5": 5_863_680 + 5_125,
}
OF_300D = ("lstm", "spinn-pi-nt", "spinn-pi", "spinn", "nse", "gated-attention")
OF_300D += ("shortcut-stacked", "residual-stacked")
ON_SST = ("nse", "constituency", "constituency-dropout", "nti", "dmn", "bcn")
MATCHED = {
    **{f"{name}-matched": "snli-300d" for name in OF_300D},
    **{f"{name}-matched": "snli-100d" for name in ("cyk", "latent-syntax")},
    **{f"{name}-{task}-matched": task for name in ON_SST for task in ("sst2", "sst5")},
    "latent-syntax-sst2-matched": "sst2",
}
OTHERS = (
    *("demo", "listops", "listops-beams", "sick", "snli-100d-reference", "sst2-100d"),
    *("listops-64d", "listops-gated", "listops-gold", "listops-random", "listops-recurrent"),
    *("listops-policy", "logic-policy"),
    *("logic-beams", "logic-gold", "logic-random", "logic-recurrent"),
    *("text", "text-pair", "embed", "embed-100d", "sick-relatedness", "parser"),
    *(name for name in PEERS if " " not in name),
    *MATCHED,
    *TUNED,
)
# optimizer, learning rate, batch size, evaluations per epoch, patience
TRAINING = {
    **dict.fromkeys([n for n in COUNTS if n.startswith("snli")], ("adam", 1e-3, 128, 10, 10)),
    "sst2": ("adadelta", 1.0, 32, 20, 40),
    "sst5": ("adadelta", 1.0, 64, 20, 40),
}
# published optimizer, learning rate, batch size, weight decay, norm that gradients are clipped to
# (0 for none), epochs, dropout of the head, whether word vectors are tuned
AUTHORS = {
    "lstm": ("rmsprop", 0.00465, 32, 8.85e-6, 0, 15, 0.117, False),
    "spinn-pi-nt": ("rmsprop", 2.98e-4, 32, 7e-6, 0, 15, 0.056, False),
    "spinn-pi": ("rmsprop", 7.02e-3, 32, 4e-5, 0, 15, 0.065, False),
    "spinn": ("rmsprop", 2e-3, 32, 6e-5, 0, 15, 0.06, False),
    "nse": ("adam", 3e-4, 128, 3e-5, 15, 40, 0.3, False),
    "gated-attention": ("adam", 4e-4, 32, 0, 10, 50, 0.5, False),
    "shortcut-stacked": ("adam", 2e-4, 32, 0, 0, 6, 0.1, True),
    # a rate of 0.01 and a norm of 5 for the loss summed over 16 pairs
    "cyk": ("sgd", 0.16, 16, 0, 0.3125, 15, 0, False),
    "rntn-sst5": ("adagrad", 0.01, 27, 1e-3, 0, 400, 0, True),
    "constituency-sst5": ("adagrad", 0.05, 25, 1e-4, 0, 10, 0.5, True),
    "constituency-dropout-sst5": ("adagrad", 0.05, 100, 0, 0, 20, 0.25, True),
    "bcn-sst5": ("adam", 1e-3, 100, 0, 5, 40, None, False),
}
DETAILS = {
    "lstm": ("decay=0.75", "decay_steps=10_000", "patience=1_000_000"),
    "spinn-pi": ("decay=0.75", "decay_steps=10_000", "patience=1_000_000"),
    "spinn": ("training.losses.actions=3.9", "tracker=79"),
    "gated-attention": ("restore=true", "evaluations=1", "encoder.dropout=0.5"),
    "rntn-sst5": ("eps=1e-3", "reset_every=1", "word_decay=1e-4", "embedding.std=0.1"),
    "constituency-sst5": ("word_optimizer=sgd", "word_rate=0.1"),
    "constituency-dropout-sst5": ("accumulator=0.1", "word_accumulator=10.0", "loss_scale=100.0"),
}
"""Further published settings, which `--set` would not change."""


def test_lists_all_recipes():
    assert recipe_names() == sorted([*COUNTS, *OTHERS])


@pytest.mark.parametrize("name", [*COUNTS, *OTHERS])
def test_recipe_fits_its_task(name):
    recipe = load_recipe(name)
    data, head = recipe.data, recipe.model.head
    assert data.task in TASKS
    task = make_task(recipe)
    assert task.name == data.task
    number = data.task == "sick_relatedness"
    heads = {"snli_similarity": "similarity", "parses": "merges"}
    if head.kind == "nodes":
        assert not task.pair
        assert task.nodes
    elif data.task in heads:
        assert head.kind == heads[data.task]
    else:
        kind = ("pair" if task.pair else "single") + ("_number" if number else "")
        assert head.kind.removesuffix("_maxout") == kind
    if hasattr(head, "labels"):
        # the labels of a table come from its training file
        assert head.labels == (("?",) if data.task == "table" else task.labels)
    # formulas and generated text consist of words; everything else is tokenized
    words = hasattr(task, "generate") or data.task == "logic"
    assert data.tokenizer == ("whitespace" if words else "treebank")
    assert (data.generate > 0) == hasattr(task, "generate")
    assert data.dev_fraction + data.test_fraction < 0.5
    assert recipe.description
    assert "\n" not in recipe.description
    assert count_parameters(recipe.model)["total"] > 0


@pytest.mark.parametrize("name", AUTHORS)
def test_settings_of_authors(name):
    recipe = load_recipe(name)
    t, head = recipe.training, recipe.model.head
    assert AUTHORS[name] == (
        *(t.optimizer, t.learning_rate, t.batch_size, t.weight_decay, t.clip, t.epochs),
        *(getattr(head, "dropout", None), recipe.model.embedding.tuned),
    )
    assert with_settings(recipe, DETAILS.get(name, ())) == recipe


@pytest.mark.parametrize("name", ["spinn", "spinn-pi", "spinn-pi-nt"])
def test_spinn_initialises_its_head_as_the_lstm_of_its_authors(name):
    head, other = (load_recipe(x).model.head for x in (name, "lstm"))
    for setting in ("hidden_init", "output_range", "normalise", "difference", "batch_norm"):
        assert getattr(head, setting) == getattr(other, setting)


def test_cyk_follows_the_mean_as_its_authors_follow_the_sum():
    training = load_recipe("cyk").training
    assert training.learning_rate == training.batch_size * 0.01
    assert training.clip * training.batch_size == 5


@pytest.mark.parametrize("name", [*COUNTS, *OTHERS])
def test_recipe_states_every_setting(name):
    # a recipe must not depend on defaults, which may change
    folder = resources.files("gumbeltree") / "recipes"
    content = {"base": name}
    while base := content.get("base"):
        # a recipe may leave settings to the recipe that it is based on
        content = tomllib.loads((folder / f"{base}.toml").read_text(encoding="utf-8"))
    assert set(content["training"]) >= {
        *("optimizer", "learning_rate", "batch_size", "epochs", "clip"),
        *("evaluations", "patience", "stop_after"),
    }
    assert set(content["data"]) >= {
        *("task", "tokenizer", "lower", "vocabulary", "extra_words", "missing_vectors")
    }
    assert "max_words" in content["model"]


@pytest.mark.parametrize("name", [*COUNTS, *OTHERS])
def test_published_results_are_not_those_of_a_model(name):
    description = load_recipe(name).description
    assert "%" not in without_published(description)
    assert ("%" in published(description)) == ("%" in description)


@pytest.mark.parametrize("name", COUNTS)
def test_training_settings_match_the_authors_code(name):
    recipe = load_recipe(name)
    training = recipe.training
    assert TRAINING[name] == (
        training.optimizer,
        training.learning_rate,
        training.batch_size,
        training.evaluations,
        training.patience,
    )
    assert training.clip == 5.0
    assert training.anneal_rate == 0.0
    assert training.precision == "tf32"
    assert training.seed == 0
    # training stops only after the learning rate was halved twice
    assert training.stop_after > 2 * (training.patience + 1)


@pytest.mark.parametrize("name", COUNTS)
def test_data_settings_match_the_authors_code(name):
    data = load_recipe(name).data
    assert data.task == name.partition("-")[0]
    assert data.lower
    assert data.missing_vectors == "zero"
    assert data.vocabulary == ("train" if name.startswith("snli") else "all")
    assert (data.dev_fraction, data.test_fraction, data.generate) == (0, 0, 0)


@pytest.mark.parametrize("name", COUNTS)
def test_dropout_and_output_layer_match_the_paper(name):
    model = load_recipe(name).model
    width = name.removesuffix("-affine").partition("-")[2]
    dropout = {"100d": 0.0, "300d": 0.1, "600d": 0.2, "": 0.5}[width]
    assert model.embedding.dropout == model.head.dropout == dropout
    assert model.head.output_range == (0.005 if name.startswith("snli") else 0.002)


@pytest.mark.parametrize("name", COUNTS)
def test_counts_parameters_by_part(name):
    about = describe(name)
    counts = {part: count for part, count in zip(PARTS, COUNTS[name], strict=True) if count}
    assert about["parameters"] == counts
    assert list(about["parameters"]) == list(counts)
    assert about["recipe"] == name
    assert about["description"] == load_recipe(name).description
    assert about["implementation"]["name"] == "exact"


@pytest.mark.parametrize("name", COUNTS)
def test_model_settings_match_the_paper(name):
    recipe = load_recipe(name)
    encoder, head = recipe.model.encoder, recipe.model.head
    assert encoder == encoder.with_variant("paper")
    assert encoder.leaf.kind == ("affine" if name.endswith("affine") else "lstm")
    assert encoder.estimator.kind == "st_gumbel"
    assert encoder.temperature == 1.0
    if name.startswith("snli"):
        assert f"{encoder.hidden_dim}d" in name
        assert f"{encoder.hidden_dim}D" in recipe.description
        assert (head.kind, head.labels) == ("pair", SNLI)
        assert head.batch_norm == (encoder.hidden_dim > 100)
    else:
        assert head.kind == "single"
        assert len(head.labels) == int(name[-1])
        assert not head.batch_norm
    # the 100D models and those for SST tune their word vectors
    assert recipe.model.embedding.tuned == (encoder.hidden_dim == 100 or name.startswith("sst"))


# totals as published, or as the equations give them
@pytest.mark.parametrize("name", PEERS)
def test_counts_parameters_of_other_systems(name):
    recipe, *settings = name.split()
    model = with_settings(load_recipe(recipe), settings).model
    assert count_parameters(model)["total"] == PEERS[name]


@pytest.mark.parametrize("name", MATCHED)
def test_matched_recipes_differ_in_the_encoder_alone(name):
    recipe, base = load_recipe(name), load_recipe(MATCHED[name])
    assert recipe.data == base.data
    # weights of the encoder's own losses
    assert dataclasses.replace(recipe.training, losses={}) == base.training
    assert recipe.model.encoder != base.model.encoder
    assert dataclasses.replace(recipe.model, encoder=base.model.encoder) == base.model


def test_parameter_counts_add_up_to_the_model_without_word_vectors():
    config = ModelConfig(
        EncoderConfig(5, 6, leaf="bilstm"), HeadConfig(hidden_dim=7, batch_norm=True)
    )
    model = SentenceModel(config, whitespace_tokenizer(["a", "b"]))
    total = sum(x.numel() for x in model.parameters()) - model.embedding.weight.numel()
    counts = count_parameters(config)
    assert counts["total"] == total
    # two LSTMs of width 3 over 5D words, two bias vectors each
    assert counts["leaf"] == 2 * 12 * (5 + 3 + 2)


@pytest.mark.parametrize("name", [*TUNED, "snli-100d-reference"])
def test_recipe_variants_train_on_the_same_data(name):
    recipe, published = load_recipe(name), load_recipe(name.rsplit("-", 1)[0])
    assert recipe != published
    assert recipe.training == published.training
    assert recipe.data in (
        published.data,
        dataclasses.replace(published.data, missing_vectors="parts"),
    )
    assert recipe.model.head.labels == published.model.head.labels
    assert recipe.model.encoder.hidden_dim == published.model.encoder.hidden_dim


@pytest.mark.parametrize("trees", ["learned", "left"])
def test_implementation_fits_this_machine(tmp_path, trees):
    path = tmp_path / "mine.toml"
    path.write_text(f"description = 'mine'\n[model.encoder]\ntrees = '{trees}'\n")
    implementation = describe(str(path))["implementation"]
    assert implementation["name"] == "exact"
    assert "CUDA" in implementation["reason"]


BASED = """
description = "Based on another recipe"
base = "{base}"
[model.encoder]
kind = "lstm"
embedding_dim = 300
hidden_dim = 20
[training]
epochs = 3
"""


def test_recipe_changes_settings_of_its_base(tmp_path):
    (tmp_path / "mine.toml").write_text(BASED.format(base="snli-300d"))
    mine, base = load_recipe(tmp_path / "mine.toml"), load_recipe("snli-300d")
    assert mine.description == "Based on another recipe"
    assert mine.data == base.data
    assert mine.model.head == base.model.head
    assert mine.training == dataclasses.replace(base.training, epochs=3)
    # an encoder of another kind keeps no settings of the base's encoder
    assert mine.model.encoder == LSTMConfig(hidden_dim=20)
    again = tmp_path / "again.toml"
    again.write_text(f'base = "{tmp_path}/mine.toml"\n[model.encoder]\nhidden_dim = 30\n')
    assert load_recipe(again).model.encoder == LSTMConfig(hidden_dim=30)
    assert load_recipe(again).training == mine.training


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("snli-30d", r"mine.toml: unknown recipe 'snli-30d'.*snli-300d"),
        ("{path}", "which is based on this recipe itself"),
    ],
)
def test_impossible_base_is_named(tmp_path, base, message):
    path = tmp_path / "mine.toml"
    path.write_text(BASED.format(base=base.format(path=path)))
    with pytest.raises(ValueError, match=message):
        load_recipe(path)
