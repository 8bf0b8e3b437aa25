"""Test reading model files in NumPy: what fits, what is refused, and in which words."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gumbeltree import pretrained_models
from gumbeltree.answers import softmax
from gumbeltree.layout import Sentences
from gumbeltree.light.network import Network
from gumbeltree.model import load, save
from gumbeltree.packaged import packaged_folder
from gumbeltree.store import model_config
from tests.light.test_numerics import compare, made
from tests.models import tiny_model
from tests.test_store import edit_weights

FROZEN = Path(__file__).parent.parent / "frozen" / "models"


def read(folder, words=13):
    return Network.read(folder / "model.safetensors", model_config(folder), words)


@pytest.fixture
def folder(tmp_path):
    save(tiny_model(), tmp_path / "model")
    return tmp_path / "model"


CHANGES = {
    "missing": lambda weights: weights.pop("encoder.query"),
    "more": lambda weights: weights.update(more=torch.ones(2)),
    "shape": lambda weights: weights.update({"encoder.query": torch.ones(1, 6)}),
    "words": lambda weights: weights.update({"embedding.weight": torch.ones(12, 5)}),
    "one in half": lambda w: w.update({"encoder.query": w["encoder.query"].half()}),
    "vectors in int8": lambda w: w.update({"embedding.weight": w["embedding.weight"].char()}),
    "others in half": lambda weights: weights.update(
        {name: x.half() for name, x in weights.items() if "embedding" not in name}
    ),
    "all in float8": lambda weights: weights.update(
        {name: x.to(torch.float8_e5m2) for name, x in weights.items() if x.is_floating_point()}
    ),
    "not a number": lambda weights: weights["encoder.cell.bias"].view(-1)[-1].fill_(math.nan),
    "infinite": lambda weights: weights["embedding.weight"].view(-1)[3].fill_(-math.inf),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_both_runtimes_refuse_the_same_weights(folder, change):
    edit_weights(folder, change)
    with pytest.raises(ValueError, match=r"model\.safetensors") as expected:
        load(folder)
    with pytest.raises(ValueError, match=r"model\.safetensors") as found:
        read(folder)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("size", [0, 5, 100, -1], ids=["empty", "length", "header", "weights"])
def test_truncated_weights_are_refused(folder, size):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged or truncated"):
        read(folder)


def test_pickled_weights_are_refused(folder):
    torch.save({"encoder.query": torch.ones(6)}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged or truncated"):
        read(folder)


def test_large_finite_weights_are_accepted(folder):
    def change(weights):
        # all scores overflow to -inf
        weights["encoder.query"].fill_(-3e38)
        weights["encoder.cell.bias"].fill_(50)

    edit_weights(folder, change)
    network = read(folder)
    ids = [[1, 2, 3, 4, 5], [6, 7, 8, 9], [10, 11, 12]]
    for few in (0, 3):
        network.encoder.few = few
        assert (network.encode(ids).order >= 0).sum(1).tolist() == [4, 3, 2]


def test_word_vectors_stay_in_half_precision(tmp_path):
    network = made(tmp_path, half=True).numpy
    assert network.vectors.dtype == np.float16
    assert network.encode([[1, 2]]).vector.dtype == np.float32


@pytest.mark.parametrize("name", sorted(path.name for path in FROZEN.iterdir()))
def test_models_of_version_1_agree_with_torch(name):
    model = load(FROZEN / name)
    words = model.tokenizer.get_vocab_size()
    agree(model.float(), read(FROZEN / name, words))


@pytest.mark.parametrize("name", [model.name for model in pretrained_models()])
def test_packaged_models_agree_with_torch(name):
    model = load(name)
    agree(model, read(packaged_folder(name), model.tokenizer.get_vocab_size()))


def agree(model, network):
    """Assert that both runtimes give the same vectors, trees and probabilities."""
    chance = np.random.default_rng(0)
    words = model.tokenizer.get_vocab_size()
    lengths = [1, 2, 3, *chance.integers(1, 30, size=9)]
    ids = [chance.integers(words, size=length).tolist() for length in lengths]
    # the scores of beams are large
    tolerance = 3e-5 if model.config.encoder.kind == "beam_tree" else 1e-5
    compare(SimpleNamespace(torch=model, numpy=network), ids, tolerance=tolerance)
    sentences = model.head.sentences
    with torch.inference_mode():
        encoding = model.encode_batch(Sentences.of(ids))
        expected = model.head(*[encoding] * sentences).softmax(-1).numpy()
    found = softmax(network.head.output(*[network.encode(ids).vector] * sentences))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
