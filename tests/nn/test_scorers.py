"""Test scores that depend on the children of a candidate."""

import itertools

import pytest
import torch

import gumbeltree
from gumbeltree import EncoderConfig, GumbelTreeEncoder
from gumbeltree.nn.scorers import SCORERS
from gumbeltree.noise import gumbel_noise
from gumbeltree.registry import NeedsTorchError
from tests.models import TEXTS, tiny_model


def made(**settings: object) -> GumbelTreeEncoder:
    torch.manual_seed(1)
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4, **settings)).double()
    for p in encoder.parameters():
        torch.nn.init.normal_(p)
    return encoder


@pytest.mark.parametrize("score", SCORERS)
@pytest.mark.parametrize("cell", [{"leaf": "affine"}, {"cell": "gated", "leaf": "norm"}], ids=str)
@pytest.mark.parametrize("estimator", ["st_gumbel", "reinmax", "reinforce"])
def test_exact_equals_reference(score, cell, estimator):
    # sentences for `Ledger`, then for `Direct`
    for lengths in ([24, 17, 2, 1], [7, 6, 3, 1]):
        T = lengths[0]
        x = torch.randn(4, T, 3, dtype=torch.float64)
        noise = gumbel_noise((4, T - 1, T - 1)).double()
        results = []
        for impl in ("exact", "reference"):
            encoder = made(score=score, estimator=estimator, impl=impl, **cell)
            words = x.clone().requires_grad_()
            out = encoder(words, torch.tensor(lengths), noise=noise, sample=True, details=True)
            scores = out.scores[out.scores > -torch.inf]
            total = out.vector.sin().sum() + out.nodes.h.cos().sum() + scores.sin().sum()
            total.backward()
            results.append([out.order, out.vector, out.scores, words.grad])
            results[-1] += [p.grad for p in encoder.parameters()]
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("score", SCORERS)
def test_scores_by_hand(score):
    encoder = made(score=score, leaf="affine").eval()
    x = torch.randn(1, 5, 3, dtype=torch.float64)
    with torch.no_grad():
        out = encoder(x, torch.tensor([5]), details=True)
        scorer = encoder.scorer
        pairs = itertools.pairwise(out.nodes.h[0, :5])
        if score == "pair":
            u = [scorer.weight @ torch.cat(pair) + scorer.bias for pair in pairs]
            wanted = [scorer.out @ torch.nn.functional.gelu(x) for x in u]
        else:
            wanted = [(a @ b) / (a.norm() * b.norm()) for a, b in pairs]
    torch.testing.assert_close(out.scores[0, 0], torch.stack(wanted))
    assert int(out.order[0, 0]) == int(torch.stack(wanted).argmax())


def test_kernels_refuse_scores_of_children():
    with pytest.raises(NotImplementedError, match="by the query only, got PairScorer"):
        made(score="pair", impl="fused").explain()
    assert made(score="pair").explain().name == "exact"
    assert "not 'fused'" in made(score="cosine").why_not_captured(sample=True)


@pytest.mark.parametrize("score", SCORERS)
def test_models_are_saved_and_need_torch(tmp_path, score):
    model = tiny_model(score=score)
    assert "encoder.query" not in model.state_dict()
    gumbeltree.save(model, tmp_path / "model", {})
    again = gumbeltree.load(tmp_path / "model")
    assert again.predict(TEXTS, TEXTS) == model.predict(TEXTS, TEXTS)
    assert again.best_trees(TEXTS, beams=2) == model.best_trees(TEXTS, beams=2)
    with pytest.raises(NeedsTorchError, match=f"the score '{score}' has no NumPy version"):
        gumbeltree.load(tmp_path / "model", runtime="numpy")
