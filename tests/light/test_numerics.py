"""Test that the NumPy runtime computes what torch computes, for every part."""

import dataclasses
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gumbeltree.config import HeadConfig
from gumbeltree.describe import count_parameters
from gumbeltree.layout import Sentences
from gumbeltree.light.network import Network
from gumbeltree.model import SentenceModel, load, save
from gumbeltree.parts import CELLS, ENCODERS, ESTIMATORS, HEADS, LEAVES
from gumbeltree.registry import NeedsTorchError
from gumbeltree.states import Draw, Encoding, Keep
from tests.models import encoder_settings, tiny_model

TREES = ["left", "right", "balanced", "random"]
SETTINGS = [
    *({"leaf": leaf, "score": score} for leaf in LEAVES for score in ("dot", "scaled_dot")),
    *({"leaf": leaf, "attention": True} for leaf in LEAVES),
    *({"estimator": kind, "temperature": 0.7} for kind in ESTIMATORS),
    {"estimator": {"kind": "st", "forward_temperature": 0.3}},
    *({"trees": trees, "leaf": leaf} for trees in TREES for leaf in ("affine", "bilstm")),
    {"trees": "balanced", "attention": True},
    {"pooling": "max"},
    {"pooling": "mean_max"},
    {"trees": "random", "pooling": "max"},
    {"add_words": True, "embedding_dim": 6},
    {"add_words": True, "embedding_dim": 6, "trees": "left", "pooling": "max"},
    {"cell": {"kind": "treelstm", "forget_offset": 0.0}},
    *({"cell": "gated", "leaf": leaf} for leaf in ("norm", "lstm")),
    {"cell": {"kind": "gated", "expansion": 2}, "trees": "balanced"},
    {"encoder": "supervised_tree"},
    {"encoder": "bag"},
    {"encoder": "lstm"},
    {"encoder": "lstm", "biases": 1},
    {"encoder": "parser_composer"},
    *({"leaf": {"kind": leaf, "biases": 1}} for leaf in ("lstm", "bilstm")),
]
BEAMS = [
    {"encoder": "gumbel_tree"},
    {"encoder": "parser_composer", "score": "scaled_dot"},
    {"encoder": "beam_tree"},
    {"encoder": "beam_tree", "beams": 1},
    {"encoder": "beam_tree", "add_words": True, "embedding_dim": 6},
    {"encoder": "beam_tree", "distinct": False, "leaf": "bilstm"},
    {"encoder": "beam_tree", "beams": 3, "cell": "gated", "leaf": "norm"},
]
# not sorted by length, with repeated words, which tie
IDS = [
    [[4, 7, 2, 9, 5]],
    [[3]],
    [[5, 6]],
    [[8] * 9],
    [[1, 2, 3], [7], [3, 4], [8, 8, 8, 8, 8, 8, 8], [2, 5, 9, 2, 5, 9], [1, 12], [0], [6, 7, 8]],
    [[3], [4], [5], [6]],
]


def name_of(value):
    """Return a stable test id."""
    if isinstance(value, dict):
        return "-".join(str(x["kind"] if isinstance(x, dict) else x) for x in value.values())
    return None


def made(tmp_path, kind="single", dtype=torch.float32, half=False, few=None, **settings):
    """Return a torch model as saved and loaded, and its NumPy version."""
    if "encoder" in settings:
        model = tiny_model(kind)
        model = rebuilt(model, encoder_settings(**settings))
    else:
        model = tiny_model(kind, **settings)
    return saved(tmp_path, model, dtype, half, few)


def saved(tmp_path, model, dtype=torch.float32, half=False, few=None):
    """Return a model as saved and loaded, and its NumPy version."""
    save(model.to(dtype), tmp_path, half_embeddings=half)
    model = load(tmp_path)
    words = model.tokenizer.get_vocab_size()
    network = Network.read(tmp_path / "model.safetensors", model.config, words)
    if few is not None:
        network.encoder.few = few
    return SimpleNamespace(torch=model, numpy=network)


def rebuilt(model, encoder):
    """Return a model with another encoder and random weights."""
    changed = SentenceModel(dataclasses.replace(model.config, encoder=encoder), model.tokenizer)
    with torch.no_grad():
        for x in changed.parameters():
            x.copy_(torch.randn(x.shape) * 0.7)
    return changed.eval()


def noise_for(ids, seed=5):
    T = max(map(len, ids))
    noise = np.random.default_rng(seed).gumbel(size=(len(ids), T - 1, T - 1)).astype(np.float32)
    for rows, words in zip(noise, ids, strict=True):
        # entries outside a sentence are not read
        rows[np.add.outer(*[np.arange(T - 1)] * 2) >= len(words) - 1] = np.nan
    return noise


def compare(pair, ids, noise=None, tolerance=1e-6):
    """Assert that both runtimes agree on vectors, trees, nodes and scores."""
    draw = Draw(None if noise is None else torch.from_numpy(noise))
    with torch.inference_mode():
        expected = pair.torch.encode_batch(Sentences.of(ids), draw, Keep(True, True))
    found = pair.numpy.encode(ids, Keep(True, True), noise)
    brief = pair.numpy.encode(ids, noise=noise)

    def close(a, b):
        np.testing.assert_allclose(a, b.double().numpy(), rtol=0, atol=tolerance)

    close(found.vector, expected.vector)
    np.testing.assert_array_equal(brief.vector, found.vector)
    assert brief.nodes is brief.scores is None
    if expected.order is None:
        assert found.order is found.nodes is found.scores is None
        return
    np.testing.assert_array_equal(found.order, expected.order.numpy())
    np.testing.assert_array_equal(brief.order, found.order)
    close(found.nodes, expected.nodes.h)
    close(found.scores, expected.scores)


@pytest.mark.parametrize("few", [0, 2, 100], ids=["batched", "default", "one-by-one"])
@pytest.mark.parametrize("settings", SETTINGS, ids=name_of)
def test_encoders_agree_with_torch(tmp_path, settings, few):
    pair = made(tmp_path, few=few, **settings)
    # the layer normalisation of the gated cell amplifies rounding errors
    tolerance = 1e-5 if "gated" in str(settings) else 1e-6
    for ids in IDS:
        compare(pair, ids, None, tolerance)
        compare(pair, ids, noise_for(ids), tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("settings", BEAMS, ids=name_of)
def test_beams_agree_with_torch(tmp_path, settings, dtype):
    model = rebuilt(tiny_model("single"), encoder_settings(**settings))
    pair = saved(tmp_path, model, dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    chance = np.random.default_rng(3)
    # distinct words, because ties are broken by rounding errors
    for sizes in [[7], [1], [2], [9, 1, 4, 2, 12, 3]]:
        ids = [chance.permutation(12)[:size].tolist() for size in sizes]
        compare(pair, ids, None, tolerance)
        compare(pair, ids, noise_for(ids), tolerance)
        for k in (0, 4, 5):
            keep = Keep(beams=k)
            with torch.inference_mode():
                expected = pair.torch.encode_batch(Sentences.of(ids), Draw(), keep).beams
            found = pair.numpy.encode(ids, keep).beams
            if expected is None:
                assert (found, k) == (None, 0)
                continue
            there = expected.log_prob.numpy() > -np.inf
            np.testing.assert_allclose(found.log_prob, expected.log_prob, atol=tolerance)
            np.testing.assert_array_equal(found.order[there], expected.order.numpy()[there])


def test_beams_compose_linearly_many_candidates(tmp_path):
    model = rebuilt(tiny_model("single"), encoder_settings(encoder="beam_tree", beams=4))
    encoder = saved(tmp_path, model).numpy.encoder
    activate, count = encoder.cell.activate, 0

    def counting(gates, *states):
        nonlocal count
        count += gates.shape[1]
        activate(gates, *states)

    encoder.cell.activate = counting
    encoder.encode(np.random.default_rng(0).normal(size=(30, 5)), np.array([30]))
    assert 29 + 4 * 28 < count <= 29 + 2 * 4 * 28


@pytest.mark.parametrize("settings", [{}, {"trees": "random"}, {"encoder": "lstm"}], ids=str)
def test_encoders_describe_their_trees_as_in_torch(tmp_path, settings):
    pair = made(tmp_path, **settings)
    for name in ("vector_dim", "trees", "builds_trees", "shape_of_trees", "draws_trees"):
        assert getattr(pair.numpy.encoder, name) == getattr(pair.torch.encoder, name)


@pytest.mark.parametrize("few", [0, 2])
def test_long_sentences_agree_with_torch(tmp_path, few):
    pair = made(tmp_path, few=few)
    chance = np.random.default_rng(0)
    compare(pair, [chance.integers(12, size=1000).tolist()], tolerance=1e-5)


def test_blocks_agree_with_torch(tmp_path):
    pair = made(tmp_path)
    pair.numpy.encoder.block = 7, 60
    chance = np.random.default_rng(1)
    compare(pair, [chance.integers(12, size=chance.integers(1, 30)).tolist() for _ in range(100)])


def test_equal_candidates_merge_from_the_left(tmp_path):
    for few in (0, 2):
        pair = made(tmp_path, few=few)
        found = pair.numpy.encode([[8] * 6, [8] * 5])
        np.testing.assert_array_equal(found.order[:, 0], 0)


@pytest.mark.parametrize(
    ("dtype", "half", "tolerance"),
    [
        (torch.float64, False, 1e-12),
        (torch.float64, True, 1e-12),
        (torch.float32, True, 1e-6),
    ],
    ids=["float64", "float64-half", "float32-half"],
)
def test_number_types_agree_with_torch(tmp_path, dtype, half, tolerance):
    pair = made(tmp_path, dtype=dtype, half=half)
    assert pair.numpy.vectors.dtype == (np.float16 if half else np.float64)
    for ids in IDS:
        compare(pair, ids, tolerance=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_half_precision_models_compute_in_float32(tmp_path, dtype):
    pair = made(tmp_path, dtype=dtype)
    # docs/formats.md names this exception
    pair.torch.float()
    for ids in IDS:
        compare(pair, ids)


@pytest.mark.parametrize("batch_norm", [True, False], ids=["batch-norm", "plain"])
@pytest.mark.parametrize("kind", HEADS.light)
def test_heads_agree_with_torch(tmp_path, kind, batch_norm):
    config = made(tmp_path, kind).torch.config.head
    if hasattr(config, "batch_norm"):
        config = dataclasses.replace(config, batch_norm=batch_norm)
    check_head(config)


@pytest.mark.parametrize("batch_norm", [True, False], ids=["batch-norm", "plain"])
@pytest.mark.parametrize("kind", ["single", "pair"])
@pytest.mark.parametrize(
    "settings",
    [
        {"normalise": "every"},
        {"skip": True, "difference": "signed"},
        {"normalise": "every", "skip": True, "difference": "squared", "input_dropout": 0.2},
    ],
    ids=name_of,
)
def test_variants_of_heads_agree_with_torch(kind, batch_norm, settings):
    check_head(HeadConfig(kind, hidden_dim=5, hidden_layers=3, batch_norm=batch_norm, **settings))


def check_head(config):
    """Assert that both versions of a head agree."""
    kind = config.kind
    head = HEADS[kind](config, 6).eval()
    with torch.no_grad():
        for name, x in [*head.named_parameters(), *head.named_buffers()]:
            if x.is_floating_point():
                x.copy_(torch.rand(x.shape) + 0.05 if "var" in name else torch.randn(x.shape))
    vectors = torch.randn(head.sentences, 9, 6)
    weights = {name: x.numpy() for name, x in head.state_dict().items()}
    version = HEADS.light_version(kind)
    assert version.shapes(config, 6) == {name: x.shape for name, x in weights.items()}
    light = version(config, 6, weights)
    assert light.sentences == head.sentences
    with torch.inference_mode():
        expected = head(*map(Encoding, vectors)).numpy()
    found = light.output(*vectors.numpy())
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert light.labels == head.labels
    assert light.answers(expected) == head.answers(expected)
    with pytest.raises(ValueError, match=f"takes {head.sentences} vector"):
        light.output(*[vectors[0].numpy()] * 3)


def test_class_weights_are_read_and_not_used(tmp_path):
    model = tiny_model("single")
    head = dataclasses.replace(model.config.head, class_weights={"bad": 3.0, "good": 0.5})
    weighted = SentenceModel(dataclasses.replace(model.config, head=head), model.tokenizer)
    weighted.load_state_dict(model.state_dict(), strict=False)
    save(weighted.eval(), tmp_path)
    assert load(tmp_path).head.class_weights.tolist() == [3.0, 0.5]
    network = Network.read(
        tmp_path / "model.safetensors", weighted.config, model.tokenizer.get_vocab_size()
    )
    vectors = np.ones((2, 6), np.float32)
    np.testing.assert_allclose(network.head.output(vectors), model.output_of(vectors), rtol=1e-5)
    assert count_parameters(weighted.config) == count_parameters(model.config)


@pytest.mark.parametrize(
    "registry", [CELLS, LEAVES, ESTIMATORS, ENCODERS, HEADS], ids=lambda x: x.kind
)
def test_every_part_has_a_numpy_version(registry):
    for name in registry:
        # except for the systems that the paper compares itself with
        if not registry.settings.get(name, "").startswith("gumbeltree.peers:"):
            assert registry.light_version(name)


def test_a_part_without_a_numpy_version_is_refused_by_name(monkeypatch):
    monkeypatch.delitem(LEAVES.light, "bilstm")
    with pytest.raises(NeedsTorchError, match=r"the leaf 'bilstm' .*; use the torch runtime"):
        LEAVES.light_version("bilstm")
    monkeypatch.setattr("gumbeltree.registry.has_torch", lambda: False)
    with pytest.raises(NeedsTorchError, match=r"the leaf 'bilstm' .* install torch .*\[torch\]"):
        LEAVES.light_version("bilstm")
    with pytest.raises(KeyError, match=r"unknown leaf 'bilst'; .* Did you mean 'bilstm'"):
        LEAVES.light_version("bilst")


def test_a_part_that_imports_torch_is_refused_by_name_without_torch(monkeypatch, tmp_path):
    (tmp_path / "needs_torch.py").write_text("import torch\n")
    (tmp_path / "needs_more.py").write_text("import not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(LEAVES.table, "own", "needs_torch:Leaf")
    monkeypatch.setitem(LEAVES.table, "other", "needs_more:Leaf")
    with pytest.raises(NeedsTorchError, match=r"the leaf 'own' needs PyTorch.*\[torch\]"):
        LEAVES["own"]
    with pytest.raises(ModuleNotFoundError, match="not_installed"):
        LEAVES["other"]


@pytest.mark.parametrize("kind", ["single", "pair"])
@pytest.mark.parametrize("batch_norm", [True, False], ids=["batch-norm", "plain"])
def test_heads_without_hidden_layers_agree_with_torch(tmp_path, kind, batch_norm):
    plain = tiny_model(kind)
    linear = dataclasses.replace(plain.config.head, hidden_layers=0, batch_norm=batch_norm)
    config = dataclasses.replace(plain.config, head=linear)
    model = SentenceModel(config, plain.tokenizer).eval()
    torch.nn.init.normal_(model.head.output.weight)
    pair = saved(tmp_path, model)
    vectors = np.random.default_rng(4).normal(size=(model.head.sentences, 9, 6)).astype(np.float32)
    expected = pair.torch.head_output(*map(Encoding, torch.from_numpy(vectors)))
    np.testing.assert_allclose(pair.numpy.head.output(*vectors), expected, rtol=1e-5, atol=1e-5)
