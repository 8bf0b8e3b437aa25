import pytest

from gumbeltree.config import EncoderConfig, HeadConfig, ModelConfig, load_recipe, recipe_names
from gumbeltree.describe import count_parameters, describe
from gumbeltree.model import SentenceModel
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


def test_all_recipes_are_there():
    assert recipe_names() == sorted(COUNTS)


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_by_part(name):
    about = describe(name)
    assert about["parameters"] == dict(zip(PARTS, COUNTS[name], strict=True))
    assert list(about["parameters"]) == list(PARTS)
    assert about["recipe"] == name
    assert about["description"] == load_recipe(name).description


@pytest.mark.parametrize("name", COUNTS)
def test_recipes_follow_the_paper(name):
    recipe = load_recipe(name)
    encoder, head = recipe.model.encoder, recipe.model.head
    assert encoder == encoder.with_variant("paper")
    assert encoder.leaf == ("affine" if name.endswith("affine") else "lstm")
    assert encoder.estimator == "st_gumbel"
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
    # the words of the two 100D models and of SST are trained
    assert recipe.model.embedding.tuned == (encoder.hidden_dim == 100 or name.startswith("sst"))
    assert "\n" not in recipe.description


@pytest.mark.parametrize("name", COUNTS)
def test_recipes_run_with_the_fast_implementation(name):
    assert describe(name)["implementation"]["name"] == "exact"


def test_the_parts_add_up_to_the_model_less_its_word_vectors():
    config = ModelConfig(
        EncoderConfig(5, 6, leaf="bilstm"), HeadConfig(hidden_dim=7, batch_norm=True)
    )
    model = SentenceModel(config, whitespace_tokenizer(["a", "b"]))
    total = sum(x.numel() for x in model.parameters()) - model.embedding.weight.numel()
    counts = count_parameters(config)
    assert counts["total"] == total
    # two LSTMs of width 3 over 5D words, two bias vectors each
    assert counts["leaf"] == 2 * 12 * (5 + 3 + 2)
