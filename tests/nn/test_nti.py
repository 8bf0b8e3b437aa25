"""Test the neural tree indexer against a plain implementation of its equations."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from gumbeltree.config import load_recipe
from gumbeltree.describe import count_parameters
from gumbeltree.nn.encoders.nti import NTIEncoder
from gumbeltree.peers import NTIConfig
from tests.nn.equations import (
    check_autocast,
    check_company,
    check_sentences,
    encoder_of,
    lstm,
    words_of,
)

LENGTHS = [3, 1, 8, 2, 5, 1, 9]
D = 6


def plain(encoder: torch.nn.Module, words: Tensor, least: int = 1) -> Tensor:
    """Return the vector of one sentence `[T, E]`, step by step."""
    size = least
    while size < len(words):
        size *= 2
    sequence = [encoder.padding] * (size - len(words)) + list(words)
    leaf, U = encoder.leaf, encoder.recurrent
    weights = SimpleNamespace(weight_ih=leaf.weight, weight_hh=U, bias=leaf.bias)
    nodes = lstm(weights, torch.stack(sequence))
    while len(nodes) > 1:
        parents = []
        for (h_l, c_l), (h_r, c_r) in zip(nodes[::2], nodes[1::2], strict=True):
            a = (encoder.cell[0].weight @ h_l + encoder.cell[0].bias).split(D)
            b = (encoder.cell[1].weight @ h_r + encoder.cell[1].bias).split(D)
            c = (a[1] + b[1]).sigmoid() * (a[0] + b[0]).tanh()
            c = c + a[2].sigmoid() * c_l + b[2].sigmoid() * c_r
            parents.append(((a[3] + b[3]).sigmoid() * c.tanh(), c))
        nodes = parents
    return nodes[0][0]


@pytest.mark.parametrize("least", [1, 4, 16])
def test_agrees_with_a_plain_implementation(least: int) -> None:
    encoder = encoder_of("nti", least_leaves=least)
    check_sentences(encoder, lambda words: plain(encoder, words, least), LENGTHS)


def test_neither_padding_nor_company_matters() -> None:
    check_company(encoder_of("nti"), LENGTHS)
    check_autocast(encoder_of("nti"))


def test_padding_is_stored_but_not_trained() -> None:
    encoder = encoder_of("nti")
    assert "padding" in encoder.state_dict()
    assert "padding" not in dict(encoder.named_parameters())


def test_initial_values() -> None:
    torch.manual_seed(0)
    encoder = NTIEncoder(NTIConfig(30, 30))
    for name, x in (*encoder.named_parameters(), *encoder.named_buffers()):
        assert x.abs().max() <= 0.1, name
        # the deviation of U(-0.1, 0.1)
        assert x.std().item() == pytest.approx(0.0577, rel=0.2), name


def test_drops_in_training_only() -> None:
    encoder = encoder_of("nti", dropout=0.5)
    words, lengths = words_of()
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
