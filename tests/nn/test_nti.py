"""Test the neural tree indexer against a plain implementation of its equations."""

import math

import pytest
import torch
from torch import Tensor

from gumbeltree.config import load_recipe
from gumbeltree.describe import count_parameters
from gumbeltree.parts import ENCODERS
from gumbeltree.peers import NTIConfig

LENGTHS = [3, 1, 8, 2, 5, 1, 9]
E, D = 3, 4


def make(**settings: object) -> torch.nn.Module:
    encoder = ENCODERS["nti"](NTIConfig(E, D, **settings)).double().eval()
    chance = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for x in (*encoder.parameters(), encoder.padding):
            x.copy_(torch.randn(x.shape, generator=chance, dtype=torch.float64) * 0.6)
    return encoder


def batch() -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(2)
    words = torch.randn(len(LENGTHS), max(LENGTHS), E, generator=chance, dtype=torch.float64)
    return words, torch.tensor(LENGTHS)


def sigmoid(x: Tensor) -> Tensor:
    return 1 / (1 + (-x).exp())


def plain(encoder: torch.nn.Module, words: Tensor, least: int = 1) -> Tensor:
    """Return the vector of one sentence `[T, E]`, step by step."""
    size = least
    while size < len(words):
        size *= 2
    sequence = [encoder.padding] * (size - len(words)) + list(words)
    h = c = torch.zeros(D, dtype=torch.float64)
    nodes = []
    for x in sequence:
        gates = encoder.leaf.weight @ x + encoder.leaf.bias + encoder.recurrent @ h
        i, f, g, o = gates.split(D)
        c = sigmoid(f) * c + sigmoid(i) * g.tanh()
        h = sigmoid(o) * c.tanh()
        nodes.append((h, c))
    while len(nodes) > 1:
        parents = []
        for (h_l, c_l), (h_r, c_r) in zip(nodes[::2], nodes[1::2], strict=True):
            a = (encoder.cell[0].weight @ h_l + encoder.cell[0].bias).split(D)
            b = (encoder.cell[1].weight @ h_r + encoder.cell[1].bias).split(D)
            c = sigmoid(a[1] + b[1]) * (a[0] + b[0]).tanh()
            c = c + sigmoid(a[2]) * c_l + sigmoid(b[2]) * c_r
            parents.append((sigmoid(a[3] + b[3]) * c.tanh(), c))
        nodes = parents
    return nodes[0][0]


@pytest.mark.parametrize("least", [1, 4, 16])
def test_agrees_with_a_plain_implementation(least: int) -> None:
    encoder = make(least_leaves=least)
    words, lengths = batch()
    words.requires_grad_()
    expected = torch.stack(
        [plain(encoder, row[:n], least) for row, n in zip(words, LENGTHS, strict=True)]
    )
    found = encoder(words, lengths)
    assert found.order is None
    torch.testing.assert_close(found.vector, expected, rtol=0, atol=1e-12)
    weigh = torch.randn(expected.shape, dtype=torch.float64)
    inputs = [words, *encoder.parameters()]
    exact = torch.autograd.grad((expected * weigh).sum(), inputs)
    result = torch.autograd.grad((found.vector * weigh).sum(), inputs)
    for x, y in zip(result, exact, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-11)


def test_neither_padding_nor_company_matters() -> None:
    encoder = make()
    words, lengths = batch()
    together = encoder(words, lengths).vector
    outside = torch.arange(words.shape[1]) >= lengths[:, None]
    noisy = words.masked_fill(outside[..., None], math.nan)
    assert torch.equal(encoder(noisy, lengths).vector, together)
    for b, n in enumerate(LENGTHS):
        alone = encoder(words[b : b + 1, :n], lengths[b : b + 1]).vector[0]
        torch.testing.assert_close(alone, together[b], rtol=0, atol=1e-12)


def test_padding_is_stored_but_not_trained() -> None:
    encoder = make()
    assert "padding" in encoder.state_dict()
    assert "padding" not in dict(encoder.named_parameters())


def test_drops_in_training_only() -> None:
    encoder = make(dropout=0.5)
    words, lengths = batch()
    assert torch.equal(encoder(words, lengths).vector, encoder(words, lengths).vector)
    encoder.train()
    assert not torch.equal(encoder(words, lengths).vector, encoder(words, lengths).vector)


@pytest.mark.parametrize(("name", "total"), [("nti-sst2", 1_753_874), ("nti-sst5", 1_756_949)])
def test_counts_of_the_published_models(name: str, total: int) -> None:
    counts = count_parameters(load_recipe(name).model)
    assert counts["leaf"] + counts["recurrent"] + counts["composition"] == 1_443_600
    assert counts["total"] == total


def test_rejects_leaves_that_are_no_power_of_two() -> None:
    with pytest.raises(ValueError, match=r"least_leaves.*power of two, got 6; use 8"):
        NTIConfig(least_leaves=6)
