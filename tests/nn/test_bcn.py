"""Test the biattentive classification network against its equations, sentence by sentence."""

import pytest
import torch
from torch import Tensor, nn

from gumbeltree.config import load_recipe
from gumbeltree.describe import count_parameters
from gumbeltree.nn.encoders.bcn import BCNEncoder
from gumbeltree.peers import BCNConfig
from tests.models import TEXTS, tiny_model
from tests.nn.equations import check_autocast, check_batch, check_gradients, check_padding, words_of


def encoder_of(**settings: float) -> BCNEncoder:
    torch.manual_seed(2)
    encoder = BCNEncoder(BCNConfig(5, 6, **settings)).double().eval()
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.5)
    return encoder


def run_lstm(lstm: nn.LSTM, x: Tensor) -> Tensor:
    """Run both directions of a BiLSTM, step by step, over the words of a sentence `[L, E]`."""
    outputs = []
    for suffix in ("", "_reverse"):
        W, U, b, b2 = (
            getattr(lstm, f"{name}_l0{suffix}")
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        h = c = x.new_zeros(lstm.hidden_size)
        states = []
        for word in x.flip(0) if suffix else x:
            i, f, g, o = (W @ word + b + U @ h + b2).chunk(4)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            states.append(h)
        outputs.append(torch.stack(states[::-1] if suffix else states))
    return torch.cat(outputs, dim=1)


def by_hand(e: BCNEncoder, x: Tensor) -> Tensor:
    """Return the vector of one sentence `[L, E]`."""
    X = run_lstm(e.encoder, torch.relu(x @ e.project.weight.T + e.project.bias))
    rows = []
    for word in X:
        weights = torch.stack([word @ other for other in X]).exp()
        C = sum(w * other for w, other in zip(weights / weights.sum(), X, strict=True))
        rows.append(torch.cat([word, word - C, word * C]))
    Y = run_lstm(e.integrator, torch.stack(rows))
    weights = torch.stack([y @ e.attend.weight[0] + e.attend.bias[0] for y in Y]).exp()
    attended = sum(w * y for w, y in zip(weights / weights.sum(), Y, strict=True))
    return torch.cat([Y.max(0).values, Y.min(0).values, sum(Y) / len(Y), attended])


def test_values_and_gradients_follow_the_equations() -> None:
    check_gradients(encoder_of(), by_hand)


def test_batch_and_padding_have_no_effect() -> None:
    check_batch(encoder_of())
    check_padding(encoder_of())


def test_half_precision() -> None:
    check_autocast(encoder_of())


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
    e, (words, lengths) = encoder_of(dropout=0.5), words_of()
    plain = encoder_of()(words, lengths).vector
    assert torch.equal(e(words, lengths).vector, plain)
    e.train()
    dropped, again = e(words, lengths).vector, e(words, lengths).vector
    assert not torch.equal(dropped, again)


def test_a_model_classifies_text() -> None:
    model = tiny_model("single", encoder="bcn")
    assert model.encode(TEXTS).shape == (len(TEXTS), 48)
    alone = [model.predict([text])[0] for text in TEXTS]
    for one, other in zip(model.predict(TEXTS), alone, strict=True):
        assert one.logits == pytest.approx(other.logits, abs=1e-5)
