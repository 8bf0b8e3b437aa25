"""Use, save and train models with the encoders of sequences."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import gumbeltree
from gumbeltree import Sentences
from gumbeltree.describe import count_parameters, describe
from gumbeltree.evaluation import evaluate
from gumbeltree.model import SentenceModel
from gumbeltree.registry import NeedsTorchError
from tests.models import TEXTS, tiny_model
from tests.runs import small

ENCODERS: dict[str, dict[str, object]] = {
    "stacked_bilstm": {},
    "nse": {"hidden_dim": 5},
    "gated_attention": {"character_dim": 6},
    "bcn": {},
    "dmn": {},
}
kinds = pytest.mark.parametrize("kind", ENCODERS)
some_kinds = pytest.mark.parametrize("kind", ["stacked_bilstm", "nse", "gated_attention"])


def model_of(kind: str, head: str = "single") -> SentenceModel:
    return tiny_model(head, encoder=kind, **ENCODERS[kind])


@kinds
def test_is_used_and_saved(tmp_path, kind):
    model = model_of(kind, "pair")
    vectors, answers = model.encode(TEXTS), model.predict(TEXTS, TEXTS[::-1])
    assert vectors.shape == (len(TEXTS), model.encoder.vector_dim)
    np.testing.assert_allclose(model.encode(TEXTS, batch_size=2), vectors, atol=1e-5)
    for text, pair, answer in zip(TEXTS, TEXTS[::-1], answers, strict=True):
        (alone,) = model.predict([text], [pair])
        assert alone.logits == pytest.approx(answer.logits, rel=1e-5, abs=1e-5)
    gumbeltree.save(model, tmp_path, {})
    loaded = gumbeltree.load(tmp_path)
    np.testing.assert_array_equal(loaded.encode(TEXTS), vectors)
    assert loaded.predict(TEXTS, TEXTS[::-1]) == answers
    counts = count_parameters(model.config)
    own = sum(p.numel() for p in model.parameters()) - model.embedding.weight.numel()
    assert counts["total"] == own
    assert describe(str(tmp_path))["parameters"] == counts
    assert not model.encoder.builds_trees


@kinds
def test_trains_in_bfloat16(kind):
    model = model_of(kind).train()
    ids = [[1, 2, 3], [4], [5, 6]]
    with torch.autocast("cpu"):
        loss = F.cross_entropy(model(Sentences.of(ids)).output, torch.tensor([0, 1, 0]))
    loss.backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name


@some_kinds
def test_has_no_numpy_version(tmp_path, kind):
    gumbeltree.save(model_of(kind), tmp_path, {})
    with pytest.raises(NeedsTorchError, match=f"the encoder '{kind}' is not available"):
        gumbeltree.load(tmp_path, runtime="numpy")


@some_kinds
def test_is_trained_from_settings(tmp_path, kind):
    own = [f"encoder.{key}={value}" for key, value in ENCODERS[kind].items()]
    recipe = small(
        f"encoder.kind={kind}", *own, "encoder.hidden_dim=8", "average=0.9", "epochs=1",
        "evaluations=1", "data.generate=100",
    )  # fmt: skip
    data = gumbeltree.prepare(recipe)
    result = gumbeltree.train(recipe, data, tmp_path, quiet=True)
    model = gumbeltree.load(tmp_path)
    assert model.config.encoder == recipe.model.encoder
    assert evaluate(model, data.splits["test"]).value == pytest.approx(result["test_accuracy"])
