"""Test the biattentive classification network against its equations, sentence by sentence."""

import torch
from torch import Tensor

from gumbeltree.config import load_recipe
from gumbeltree.describe import count_parameters
from gumbeltree.nn.encoders.bcn import BCNEncoder
from gumbeltree.peers import BCNConfig
from tests.nn.equations import (
    bilstm,
    check_autocast,
    check_bounds,
    check_company,
    check_sentences,
    encoder_of,
    words_of,
)


def by_hand(e: BCNEncoder, x: Tensor) -> Tensor:
    """Return the vector of one sentence `[L, E]`."""
    X = bilstm(e.encoder, torch.relu(x @ e.project.weight.T + e.project.bias))
    rows = []
    for word in X:
        weights = torch.stack([word @ other for other in X]).exp()
        C = sum(w * other for w, other in zip(weights / weights.sum(), X, strict=True))
        rows.append(torch.cat([word, word - C, word * C]))
    Y = bilstm(e.integrator, torch.stack(rows))
    weights = torch.stack([y @ e.attend.weight[0] + e.attend.bias[0] for y in Y]).exp()
    attended = sum(w * y for w, y in zip(weights / weights.sum(), Y, strict=True))
    return torch.cat([Y.max(0).values, Y.min(0).values, sum(Y) / len(Y), attended])


def test_values_and_gradients_follow_the_equations() -> None:
    encoder = encoder_of("bcn")
    check_sentences(encoder, lambda x: by_hand(encoder, x))


def test_batch_and_padding_have_no_effect() -> None:
    check_company(encoder_of("bcn"))
    check_bounds(encoder_of("bcn"))


def test_half_precision() -> None:
    check_autocast(encoder_of("bcn"))


def test_counts_of_the_preset() -> None:
    with torch.device("meta"):
        e = BCNEncoder(BCNConfig())
    counts = {name: sum(p.numel() for p in m.parameters()) for name, m in e.named_children()}
    assert counts == {
        "project": 90_300, "encoder": 1_444_800, "integrator": 5_044_800, "attend": 601,
        "dropout": 0,
    }  # fmt: skip
    assert e.vector_dim == 2400
    assert count_parameters(load_recipe("bcn-sst5").model)["total"] == 20_999_721


def test_dropout_applies_in_training_only() -> None:
    e, (words, lengths) = encoder_of("bcn", dropout=0.5), words_of()
    plain = encoder_of("bcn")(words, lengths).vector
    assert torch.equal(e(words, lengths).vector, plain)
    e.train()
    dropped, again = e(words, lengths).vector, e(words, lengths).vector
    assert not torch.equal(dropped, again)
