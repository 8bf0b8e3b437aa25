"""Sentences encoded in rows, as captured graphs do on a CUDA device, here interpreted."""

import contextlib
import copy
import io
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gumbeltree import Encoding, load, save
from gumbeltree.captured import CapturedEncoder, placed
from gumbeltree.device import triton_support
from gumbeltree.device.graphs import Graphs
from gumbeltree.evaluate import Evaluator, ScoreError
from gumbeltree.layout import in_parts
from gumbeltree.model import SentenceModel
from gumbeltree.tree import Tree
from tests.models import TEXTS, tiny_model
from tests.test_evaluate import made

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")


@given(st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=30), min_size=1, max_size=9))
def test_placed_sentences(ids):
    bounds, numbers = placed(ids)
    sizes = (bounds.cap, len(ids), len(ids), len(ids), bounds.T + 1)
    parts = in_parts(torch.from_numpy(numbers), *sizes)
    rows, lengths, order, rank, start = (part.numpy() for part in parts)
    assert all(part.storage_offset() % 2 == 0 for part in parts)
    for sentence, place in zip(ids, rank, strict=True):
        assert rows[start[: len(sentence)] + place].tolist() == sentence
        assert lengths[place] == len(sentence)
        assert ids[order[place]] == sentence
    words = sum(map(len, ids))
    assert start[-1] == words
    assert not rows[words:].any()


@pytest.fixture
def captured(monkeypatch):
    """Let models take the way of CUDA devices on this one."""
    pytest.importorskip("triton")
    monkeypatch.setattr(SentenceModel, "_is_captured", lambda model: True)


@interpreted
@pytest.mark.parametrize("leaf", ["affine", "lstm", "bilstm"])
def test_captured_sentences_are_encoded_as_others(captured, leaf):
    plain = tiny_model("single", impl="exact", leaf=leaf)
    model = tiny_model("single", impl="fused", leaf=leaf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SentenceModel, "_is_captured", lambda model: False)
        expected = [plain.encode(TEXTS), plain.parse_many(TEXTS), plain.predict(TEXTS)]
    np.testing.assert_allclose(model.encode(TEXTS, 2), expected[0], rtol=1e-4, atol=1e-5)
    assert model._captured is not None
    assert model.parse_many(TEXTS, 4) == expected[1]
    found = model.predict(TEXTS)
    assert [p.label for p in found] == [p.label for p in expected[2]]


@interpreted
def test_graphs_are_made_anew_when_weights_move(captured):
    model = tiny_model("single", impl="fused")
    before = model.encode(TEXTS)
    first = model._captured
    model.encode(TEXTS)
    assert model._captured is first
    # in place: the graphs read the new values
    with torch.no_grad():
        model.embedding.weight.mul_(2)
    assert not np.allclose(model.encode(TEXTS), before)
    assert model._captured is first
    model.embedding.weight.data = model.embedding.weight.data.clone()
    model.encode(TEXTS)
    assert model._captured is not first


@interpreted
def test_graphs_are_neither_copied_nor_saved(captured, tmp_path):
    model = tiny_model("single", impl="fused")
    vectors = model.encode(TEXTS)
    assert isinstance(model._captured, CapturedEncoder)
    for other in (copy.deepcopy(model), pickled(model)):
        assert other._captured is None
        assert np.array_equal(other.encode(TEXTS), vectors)
    save(model, tmp_path / "model")
    assert load(tmp_path / "model")._captured is None


def pickled(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_threads_get_their_own_vectors(monkeypatch):
    """What a graph returns is overwritten by the next call, whoever makes it."""
    model = tiny_model("single")
    encoder = CapturedEncoder(model)
    shared = torch.empty(1, 1)
    waiting = threading.Barrier(2, timeout=0.2)

    def overwriting(graphs, key, function, numbers):
        shared.fill_(float(numbers[0]))
        # give the other thread a chance to overwrite it
        with contextlib.suppress(threading.BrokenBarrierError):
            waiting.wait()
        return Encoding(shared, shared)

    monkeypatch.setattr(Graphs, "__call__", overwriting)
    found = {}

    def ask(word):
        found[word] = float(encoder(model, [[word]]).vector)

    threads = [threading.Thread(target=ask, args=(word,)) for word in (3, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {3: 3.0, 7: 7.0}


@interpreted
@pytest.mark.parametrize("part", ["cell.weight", "query"])
def test_broken_weights_are_not_hidden(captured, part):
    model = tiny_model("single", impl="fused")
    with torch.no_grad():
        model.encoder.get_parameter(part).fill_(torch.nan)
    if part == "cell.weight":
        evaluator = Evaluator(model, made(1, [3, 5, 2], 2))
        with pytest.raises(ScoreError, match="NaN or infinite"):
            evaluator()
    for use in (model.encode, model.parse_many, model.predict):
        with pytest.raises(ValueError, match=f"NaN or infinite numbers in encoder.{part}"):
            use(TEXTS)
    # the kernels give any tree, as the other implementations do, and no place outside of it
    ids = [model.tokenizer.encode(text).ids for text in TEXTS]
    for words, order in zip(ids, CapturedEncoder(model)(model, ids).order.tolist(), strict=True):
        Tree(map(str, words), order[: len(words) - 1])


# what the kernels need


def test_the_newer_interface_for_the_precision_of_products():
    # in a process of its own: the two interfaces do not go together
    program = (
        "import torch\n"
        "from gumbeltree.device.triton_support import float32_products, precision_of\n"
        "assert float32_products() == 'ieee'\n"
        "torch.set_float32_matmul_precision('high')\n"
        "assert float32_products() == 'tf32'\n"
        "torch.backends.cuda.matmul.fp32_precision = 'ieee'\n"
        "assert float32_products() == 'ieee'\n"
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'\n"
        "assert float32_products() == precision_of('cuda') == 'tf32'\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=dict(os.environ))


def test_a_card_on_which_kernels_cannot_be_made(monkeypatch):
    pytest.importorskip("triton")

    def zeros(*args, **kwargs):
        raise RuntimeError("Failed to find C compiler.\nmore")

    monkeypatch.setattr(torch, "zeros", zeros)
    reason = triton_support._trial.__wrapped__(torch.device("cuda", 0))
    assert "Failed to find C compiler." in reason
    assert "more" not in reason


def test_the_gradient_of_the_gates_bias_passes_as_it_is():
    # `fused` hands it on before it is complete
    cell = tiny_model("single").encoder.cell
    gradient = torch.randn_like(cell.bias)
    (found,) = torch.autograd.grad(cell.gate_bias(), cell.bias, gradient)
    assert found.data_ptr() == gradient.data_ptr()
