"""Test the dynamic memory network against its equations, sentence by sentence."""

import pytest
import torch
from torch import Tensor, nn

from gumbeltree.config import load_recipe
from gumbeltree.describe import count_parameters
from gumbeltree.nn.encoders.dmn import DMNEncoder
from gumbeltree.peers import DMNConfig
from tests.nn.equations import (
    check_autocast,
    check_bounds,
    check_company,
    check_gpu,
    check_sentences,
    encoder_of,
    words_of,
)


def gru(W: Tensor, b: Tensor, U: Tensor, x: Tensor, h: Tensor) -> Tensor:
    """Return the next state from one input `[E]` and one state `[D]`."""
    (x_r, x_z, x_n), (h_r, h_z, h_n) = (W @ x + b).chunk(3), (U @ h).chunk(3)
    r, z = torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)
    return z * h + (1 - z) * torch.tanh(x_n + r * h_n)


def by_hand(e: DMNEncoder, x: Tensor) -> Tensor:
    """Return the vector of one sentence `[L, E]`."""
    weight, q = e.facts.weight_ih_l0, e.question
    first = weight[:, :-1], weight[:, -1], e.facts.weight_hh_l0
    episode, memory, answer = (
        (g.inputs.weight, g.inputs.bias, g.hidden.weight) for g in (e.episode, e.memory, e.answer)
    )
    facts = [torch.zeros_like(q)]
    for word in x:
        facts.append(gru(*first, word, facts[-1]))
    W, (one, _, two), m = e.relation.weight, e.gate, q
    for _ in range(e.config.passes):
        state = torch.zeros_like(q)
        for c in facts[1:]:
            related = torch.stack([c @ W.T @ q, c @ W.T @ m])
            z = torch.cat([c, m, q, c * q, c * m, (c - q).abs(), (c - m).abs(), related])
            inner = torch.tanh(one.weight @ z + one.bias)
            g = torch.sigmoid(two.weight[0] @ inner + two.bias[0])
            state = g * gru(*episode, c, state) + (1 - g) * state
        m = gru(*memory, state, m)
    return gru(*answer, q, m)


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_values_and_gradients_follow_the_equations(passes: int) -> None:
    encoder = encoder_of("dmn", passes=passes)
    check_sentences(encoder, lambda x: by_hand(encoder, x))


def test_batch_and_padding_have_no_effect() -> None:
    check_company(encoder_of("dmn", passes=2))
    check_bounds(encoder_of("dmn", passes=2))


@pytest.mark.gpu
def test_gpu_equals_cpu() -> None:
    check_gpu(encoder_of("dmn", passes=2))


def test_half_precision() -> None:
    check_autocast(encoder_of("dmn", passes=2))


def test_closed_gates_leave_the_question_alone() -> None:
    e = encoder_of("dmn", passes=2)
    nn.init.constant_(e.gate[2].bias, -1e4)
    words, lengths = words_of()
    vector = e(words, lengths).vector
    # every episode is zero, so that all sentences have the same memory
    torch.testing.assert_close(vector, vector[:1].expand_as(vector))


def test_count_of_the_preset() -> None:
    with torch.device("meta"):
        count = sum(p.numel() for p in DMNEncoder(DMNConfig()).parameters())
    # four GRUs, the gates and the question
    assert count == 4 * 540_900 + 721_201 + 300
    # the published answer module also has an input that is always zero, and 300 weights per class
    classes = 5
    assert count + 3 * 300 * classes + 300 * classes == 2_891_101
    # its output has no bias, while that of the head has
    total = count_parameters(load_recipe("dmn-sst5").model)["total"]
    assert total == count + 300 * classes + classes
