"""Test stacked bidirectional LSTMs against plain loops over one sentence."""

import pytest
import torch
from torch import Tensor

from gumbeltree.config import HeadConfig, ModelConfig
from gumbeltree.describe import count_parameters
from gumbeltree.peers import StackedBiLSTMConfig
from tests.nn.equations import (
    bilstm,
    check_autocast,
    check_bounds,
    check_company,
    check_sentences,
    encoder_of,
)

forms = pytest.mark.parametrize(
    "settings",
    [
        {"hidden_dim": 8, "growth": 2},
        {"hidden_dim": 6, "growth": 1},
        {"hidden_dim": 6, "residual": True},
        {"hidden_dim": 4, "layers": 1},
    ],
    ids=str,
)


@forms
def test_equals_plain_loops(settings: dict[str, object]) -> None:
    encoder = encoder_of("stacked_bilstm", **settings)

    def plain(words: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        for layer in encoder.layers:
            below = list(outputs)
            if encoder.config.residual and outputs:
                below = [sum(outputs[1:], start=outputs[0])]
            outputs.append(bilstm(layer, torch.cat([words, *below], dim=1)))
        return outputs[-1].max(0).values

    check_sentences(encoder, plain)


@forms
def test_company_and_padding_have_no_effect(settings: dict[str, object]) -> None:
    encoder = encoder_of("stacked_bilstm", **settings)
    check_company(encoder)
    check_bounds(encoder)
    check_autocast(encoder)


def test_maximum_can_be_negative() -> None:
    encoder = encoder_of("stacked_bilstm", hidden_dim=4, layers=1)
    words = torch.randn(2, 5, 5, dtype=torch.float64)
    # padding must not raise the maximum to zero
    vector = encoder(words, torch.tensor([5, 1])).vector
    assert (vector[1] < 0).any()


@pytest.mark.parametrize(
    ("encoder", "head", "total"),
    [
        (StackedBiLSTMConfig(300, 4096, growth=2), (1600, 2), 140_201_795),
        (StackedBiLSTMConfig(300, 1200, residual=True), (800, 1), 28_352_003),
    ],
)
def test_counts_parameters(encoder: StackedBiLSTMConfig, head: tuple[int, int], total: int) -> None:
    mlp = HeadConfig(hidden_dim=head[0], hidden_layers=head[1])
    assert count_parameters(ModelConfig(encoder, mlp))["total"] == total


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_dim": 7}, "a multiple of 2 with 3 layers and growth 1, got 7; use 8"),
        ({"hidden_dim": 300, "growth": 2}, "multiple of 8 .* got 300; use 304"),
        ({"hidden_dim": 306, "growth": 4, "layers": 2}, "multiple of 8 .* got 306; use 312"),
        ({"hidden_dim": 8, "growth": 2, "residual": True}, "same width, but `growth` is 2"),
    ],
)
def test_rejects_impossible_widths(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encoder_of("stacked_bilstm", **settings)
