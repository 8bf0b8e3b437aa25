"""Test exported models in onnxruntime against the models themselves."""

import copy
import dataclasses
import json

import numpy as np
import pytest
import torch

import gumbeltree
import gumbeltree.onnx
from gumbeltree import Keep
from gumbeltree.model import SentenceModel
from gumbeltree.text.tokenizer import UNKNOWN
from tests.commands import run
from tests.models import TEXTS, tiny_model

onnx = pytest.importorskip("onnx", reason="needs gumbeltree[onnx]")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs gumbeltree[onnx]")

ENCODERS = [
    {},
    {"leaf": "affine"},
    {"leaf": "bilstm"},
    {"score": "scaled_dot"},
    {"pooling": "max"},
    {"pooling": "mean_max"},
    {"attention": True},
    {"add_words": True, "embedding_dim": 6},
    {"cell": {"forget_offset": 0.0}, "estimator": "soft"},
    {"trees": "left"},
    {"trees": "right", "leaf": "affine"},
    {"trees": "balanced", "pooling": "max"},
    {"trees": "random"},
    {"encoder": "bag"},
    {"encoder": "lstm"},
    {"encoder": "lstm", "biases": 1},
    {"leaf": {"kind": "bilstm", "biases": 1}},
]


def session(model, path):
    """Export a model and open the file."""
    gumbeltree.onnx.export(model, path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def padded(sentences, width=0, fill=0):
    """Return ids, padded, and lengths."""
    lengths = np.array([len(ids) for ids in sentences])
    ids = np.full((len(sentences), max(width, lengths.max())), fill)
    for row, own in zip(ids, sentences, strict=True):
        row[: len(own)] = own
    return ids, lengths


def run_file(session, *columns, **padding):
    """Return the outputs by name."""
    feed = {}
    for suffix, column in zip(("", "2"), columns, strict=False):
        feed[f"ids{suffix}"], feed[f"lengths{suffix}"] = padded(column, **padding)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feed), strict=True))


def drawn(lengths, words=12):
    """Return random sentences; words repeat, so candidates tie."""
    chance = np.random.default_rng(5)
    return [chance.integers(0, words, length).tolist() for length in lengths]


def check(model, found, *columns):
    """Compare outputs with those of the model."""
    encodings = [model.encode_ids(column) for column in columns]
    for suffix, encoding in zip(("", "2"), encodings, strict=False):
        encoded = model.as_numpy(encoding)
        assert found[f"vector{suffix}"].dtype == np.float32
        np.testing.assert_allclose(found[f"vector{suffix}"], encoded.vector, rtol=0, atol=1e-5)
        if encoded.order is None:
            assert f"order{suffix}" not in found
            continue
        order = found[f"order{suffix}"]
        assert order.dtype == np.int64
        steps = encoded.order.shape[1]
        np.testing.assert_array_equal(order[:, :steps], encoded.order)
        assert (order[:, steps:] == -1).all()
    logits = model.head_output(*encodings)
    np.testing.assert_allclose(found["logits"], logits, rtol=1e-5, atol=1e-5)
    shares = torch.from_numpy(logits).softmax(-1).numpy()
    np.testing.assert_allclose(found["probabilities"], shares, rtol=0, atol=1e-5)


@pytest.mark.parametrize("settings", ENCODERS, ids=str)
def test_file_equals_model(settings, tmp_path):
    model = tiny_model("single", **settings)
    file = session(model, tmp_path / "model.onnx")
    for lengths in ([1], [2], [3], [9], [1, 1], [7, 1, 12, 2, 12, 3], [60]):
        sentences = drawn(lengths)
        check(model, run_file(file, sentences), sentences)


def test_head_without_hidden_layers(tmp_path):
    plain = tiny_model("single", encoder="bag")
    head = dataclasses.replace(plain.config.head, hidden_layers=0)
    model = SentenceModel(dataclasses.replace(plain.config, head=head), plain.tokenizer).eval()
    torch.nn.init.normal_(model.head.output.weight)
    sentences = drawn([7, 1, 12])
    check(model, run_file(session(model, tmp_path / "model.onnx"), sentences), sentences)


def test_embeddings_have_no_classes(tmp_path):
    model = tiny_model("similarity", add_words=True, embedding_dim=6)
    sentences = drawn([3, 1, 7])
    found = run_file(session(model, tmp_path / "a.onnx"), sentences)
    assert found.keys() == {"vector", "order"}
    np.testing.assert_allclose(found["vector"], model.encode_ids(sentences).vector, atol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"leaf": "bilstm", "attention": True}], ids=str)
def test_pairs(settings, tmp_path):
    model = tiny_model("pair", **settings)
    file = session(model, tmp_path / "model.onnx")
    for lengths, others in (([3, 1, 8], [5, 2, 1]), ([1], [4]), ([6], [1])):
        columns = drawn(lengths), drawn(others)
        check(model, run_file(file, *columns), *columns)


@pytest.mark.parametrize(
    "settings",
    [
        {"normalise": "every", "difference": "signed"},
        {"normalise": "every", "difference": "squared", "skip": True},
    ],
    ids=str,
)
def test_variants_of_heads(settings, tmp_path):
    base = tiny_model("pair")
    head = dataclasses.replace(base.config.head, **settings)
    model = SentenceModel(dataclasses.replace(base.config, head=head), base.tokenizer).eval()
    for name, x in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            torch.nn.init.uniform_(x, 0.5, 1.5)
    torch.nn.init.normal_(model.head.output.weight)
    columns = drawn([3, 1, 8]), drawn([5, 2, 1])
    check(model, run_file(session(model, tmp_path / "model.onnx"), *columns), *columns)


def test_padding_has_no_effect(tmp_path):
    for number, settings in enumerate([{}, {"leaf": "bilstm", "pooling": "mean_max"}]):
        file = session(tiny_model("single", **settings), tmp_path / f"{number}.onnx")
        sentences = drawn([4, 1, 6])
        one = run_file(file, sentences)
        other = run_file(file, sentences, width=11, fill=7)
        for name in ("vector", "probabilities"):
            np.testing.assert_allclose(one[name], other[name], rtol=0, atol=1e-6)
        np.testing.assert_array_equal(one["order"], other["order"][:, :5])
        alone = [run_file(file, [ids])["vector"][0] for ids in sentences]
        np.testing.assert_allclose(one["vector"], alone, rtol=0, atol=1e-6)


def test_ties_go_to_the_left(tmp_path):
    model = tiny_model("single", leaf="affine")
    file = session(model, tmp_path / "model.onnx")
    # equal words: every candidate of the first layer has the same score
    sentences = [[4] * length for length in (9, 5, 2)]
    found = run_file(file, sentences)
    assert (found["order"][:, 0] == 0).all()
    check(model, found, sentences)


def test_scores_within_rounding_errors_are_ties(tmp_path):
    model = tiny_model("single", leaf="affine")
    with torch.no_grad():
        for word, factor in ((5, 1 + 1e-6), (6, 1 - 1e-6)):
            model.embedding.weight[word] = model.embedding.weight[4] * factor
    # the pair at the end scores slightly more or less than the first one
    sentences = [[4, 4, 5, 5], [4, 4, 6, 6]]
    exact = copy.deepcopy(model).double()
    scores = exact.encode_ids(sentences, Keep(scores=True)).scores[:, 0]  # [2, 3]
    lead = (scores[:, 2] - scores[:, 0]).tolist()
    assert 1e-7 < max(lead) < 8 * 1.2e-7 * model.encoder.query.norm()
    found = run_file(session(model, tmp_path / "model.onnx"), sentences)
    assert found["order"][:, 0].tolist() == [0, 0]
    check(model, found, sentences)


def test_zero_query_follows_the_tie_rule(tmp_path):
    model = tiny_model("single")
    with torch.no_grad():
        model.encoder.query.zero_()
    found = run_file(session(model, tmp_path / "model.onnx"), drawn([6]))
    assert found["order"].tolist() == [[0] * 5]


def test_numpy_models_with_half_word_vectors(tmp_path):
    model = tiny_model("single")
    gumbeltree.save(model, tmp_path / "model", half_embeddings=True)
    light = gumbeltree.load(tmp_path / "model", runtime="numpy")
    file = session(light, tmp_path / "model.onnx")
    sentences = drawn([3, 8, 1])
    check(light, run_file(file, sentences), sentences)
    stored = onnx.load(tmp_path / "model.onnx").graph.initializer
    assert onnx.TensorProto.FLOAT16 in {x.data_type for x in stored}


def test_metadata_are_enough_to_predict(tmp_path):
    from tokenizers import Tokenizer

    model = tiny_model("single")
    model.provenance = {"recipe_name": "tiny", "license": "mit"}
    file = session(model, tmp_path / "model.onnx")
    about = file.get_modelmeta().custom_metadata_map
    assert json.loads(about["labels"]) == ["bad", "good"]
    assert json.loads(about["max_words"]) == model.config.max_words
    assert json.loads(about["provenance"]) == model.provenance
    assert about["name"] == "tiny"
    assert about["gumbeltree_version"] == gumbeltree.__version__
    tokenizer = Tokenizer.from_str(about["tokenizer.json"])
    assert tokenizer.token_to_id(UNKNOWN) is not None
    found = run_file(file, [tokenizer.encode(text).ids for text in TEXTS])
    answers = model.predict(TEXTS)
    labels = [json.loads(about["labels"])[i] for i in found["logits"].argmax(1)]
    assert labels == [answer.label for answer in answers]


def test_file_passes_the_checker_and_is_replaced_at_once(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")
    gumbeltree.onnx.export(tiny_model(), path)
    assert [x.name for x in tmp_path.iterdir()] == ["model.onnx"]
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert model.opset_import[0].version == gumbeltree.onnx.OPSET
    # one body per loop: the number of nodes does not depend on the sentences
    assert len(model.graph.node) < 500


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        ("single", {"cell": "gated"}, "the cell 'gated'"),
        ("single", {"leaf": "norm"}, "the leaf 'norm'"),
        ("single", {"score": "pair"}, "the score 'pair'"),
        ("single", {"encoder": "beam_tree"}, "the encoder 'beam_tree'"),
        ("single", {"encoder": "parser_composer"}, "the encoder 'parser_composer'"),
        ("single", {"trees": "gold"}, "the trees 'gold'"),
        ("single_number", {}, "the head 'single_number'"),
        ("pair_tags", {}, "the head 'pair_tags'"),
    ],
)
def test_other_parts_are_refused_by_name(kind, settings, words, tmp_path):
    with pytest.raises(ValueError, match=f"{words} cannot be exported to ONNX; supported: "):
        gumbeltree.onnx.export(tiny_model(kind, **settings), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_models_that_do_not_fit_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(gumbeltree.onnx, "MOST_BYTES", 100)
    with pytest.raises(ValueError, match="at most 100 bytes, and this model has"):
        gumbeltree.onnx.export(tiny_model(), tmp_path / "model.onnx")
    monkeypatch.setattr(gumbeltree.onnx, "MOST_FIXED", 100)
    with pytest.raises(ValueError, match="`max_words` up to 100, got 1024"):
        gumbeltree.onnx.export(tiny_model(trees="left"), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_missing_package(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(ImportError, match=r"ONNX export needs onnx, .*; run: .*onnx"):
        gumbeltree.onnx.export(tiny_model(), tmp_path / "model.onnx")


def test_command(tmp_path):
    gumbeltree.save(tiny_model("single"), tmp_path / "model")
    gumbeltree.save(tiny_model("single", cell="gated"), tmp_path / "gated")
    out = tmp_path / "out.onnx"
    result = run("export", tmp_path / "model", "--out", out)
    assert result.code == 0, result
    assert f"{out.stat().st_size:,} bytes, ONNX opset 21" in result.err
    onnxruntime.InferenceSession(out)
    other = tmp_path / "other.onnx"
    assert "the cell 'gated'" in run("export", tmp_path / "gated", "--out", other).refused()
    wrong = run("export", tmp_path / "model", "--out", tmp_path / "model.pt").refused()
    assert "must be an .onnx file" in wrong
    assert sorted(x.name for x in tmp_path.iterdir()) == ["gated", "model", "out.onnx"]
