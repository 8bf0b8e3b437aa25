"""Sentences encoded by captured graphs, as on a CUDA device, in Triton's interpreter."""

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

from gumbeltree import Encoding
from gumbeltree.captured import CapturedEncoder, placed
from gumbeltree.device import triton_support
from gumbeltree.device.graphs import Graphs
from gumbeltree.layout import unpack_numbers
from gumbeltree.model import SentenceModel
from tests.models import TEXTS, tiny_model

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")


@given(st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=30), min_size=1, max_size=9))
def test_placed_sentences_keep_their_words(ids):
    bounds, numbers = placed(ids)
    sizes = (bounds.cap, len(ids), len(ids), len(ids), bounds.T + 1)
    parts = unpack_numbers(torch.from_numpy(numbers), *sizes)
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
    """Let models on this device take the code path of CUDA devices."""
    pytest.importorskip("triton")
    monkeypatch.setattr(SentenceModel, "_is_captured", lambda model: True)


@interpreted
@pytest.mark.parametrize(
    "settings",
    [
        {"leaf": "affine"},
        {"leaf": "lstm"},
        {"leaf": "norm", "cell": "gated"},
        pytest.param({"leaf": "bilstm"}, marks=pytest.mark.slow),
    ],
    ids=lambda settings: "-".join(settings.values()),
)
def test_captured_encoding_agrees_with_others(captured, settings):
    plain = tiny_model("single", impl="exact", **settings)
    model = tiny_model("single", impl="fused", **settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SentenceModel, "_is_captured", lambda model: False)
        expected = [plain.encode(TEXTS), plain.parse_many(TEXTS), plain.predict(TEXTS)]
    np.testing.assert_allclose(model.encode(TEXTS, 2), expected[0], rtol=1e-4, atol=1e-5)
    assert model._captured is not None
    assert model.parse_many(TEXTS, 4) == expected[1]
    assert [p.label for p in model.predict(TEXTS)] == [p.label for p in expected[2]]


@interpreted
def test_graphs_are_renewed_when_weights_move(captured):
    texts = TEXTS[:1]
    model = tiny_model("single", impl="fused", leaf="affine")
    before = model.encode(texts)
    first = model._captured
    # updated in place: the graphs read the new values
    with torch.no_grad():
        model.embedding.weight.mul_(2)
    assert not np.allclose(model.encode(texts), before)
    assert model._captured is first
    model.embedding.weight.data = model.embedding.weight.data.clone()
    model.encode(texts)
    assert model._captured is not first


@interpreted
def test_graphs_are_neither_copied_nor_pickled(captured):
    model = tiny_model("single", impl="fused", leaf="affine")
    vectors = model.encode(TEXTS[:1])
    assert isinstance(model._captured, CapturedEncoder)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert other._captured is None
        assert np.array_equal(other.encode(TEXTS[:1]), vectors)


def test_threads_get_their_own_vectors(monkeypatch):
    """The next call overwrites the output of a graph, even from another thread."""
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
def test_kernels_return_valid_trees_for_nan_weights(captured, part):
    model = tiny_model("single", impl="fused", leaf="affine")
    with torch.no_grad():
        model.encoder.get_parameter(part).fill_(torch.nan)
    # raises if a merge is outside its sentence
    assert len(model.parse_many(TEXTS)) == len(TEXTS)


# requirements of the kernels


@pytest.mark.slow
def test_both_interfaces_for_matmul_precision():
    # in a separate process: the two interfaces cannot be mixed
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


def test_reports_why_kernels_cannot_be_compiled(monkeypatch):
    pytest.importorskip("triton")

    def zeros(*args, **kwargs):
        raise RuntimeError("Failed to find C compiler.\nmore")

    monkeypatch.setattr(torch, "zeros", zeros)
    reason = triton_support._trial.__wrapped__(torch.device("cuda", 0))
    assert "Failed to find C compiler." in reason
    assert "more" not in reason


def test_gradient_of_gate_bias_is_not_copied():
    # the fused kernel may still be writing it on another stream
    cell = tiny_model("single").encoder.cell
    gradient = torch.randn_like(cell.bias)
    (found,) = torch.autograd.grad(cell.gate_bias(), cell.bias, gradient)
    assert found.data_ptr() == gradient.data_ptr()
