"""Test the Neural Semantic Encoder against plain loops over one sentence."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gumbeltree.config import HeadConfig, ModelConfig, load_recipe
from gumbeltree.describe import count_parameters
from gumbeltree.nn.encoders.nse import NSEEncoder
from gumbeltree.peers import NSEConfig
from tests.nn.equations import (
    check_autocast,
    check_company,
    check_gpu,
    check_sentences,
    encoder_of,
    lstm,
    step,
    words_of,
)
from tests.ops.test_memory import force_kernels

both = pytest.mark.parametrize("compose", [True, False])
either = pytest.mark.parametrize("fused", [False, True])


def nse(**settings: object) -> NSEEncoder:
    return encoder_of("nse", hidden_dim=5, **settings)


def last_state(encoder: NSEEncoder, words: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the vector of one sentence `[T, D]` and its memory at the end."""
    memory = list(words)
    h = c = words.new_zeros(words.shape[1])
    for o, _ in lstm(encoder.reader, words):
        powers = [torch.exp(o @ slot) for slot in memory]
        z = [power / sum(powers) for power in powers]
        m = sum((share * slot for share, slot in zip(z, memory, strict=True)), torch.zeros_like(o))
        x = torch.cat([o, m])
        if encoder.compose is not None:
            x = encoder.compose.weight @ x + encoder.compose.bias
        h, c = step(encoder.writer, x, h, c)
        memory = [(1 - share) * slot + share * h for share, slot in zip(z, memory, strict=True)]
    return h, memory


@both
@either
def test_equals_plain_loops(compose: bool, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if fused:
        force_kernels(monkeypatch)
    encoder = nse(compose=compose)
    check_sentences(encoder, lambda words: last_state(encoder, words)[0])


@both
def test_company_and_padding_have_no_effect(compose: bool) -> None:
    check_company(nse(compose=compose))
    check_autocast(nse(compose=compose))


def test_autocast_narrows_all_products() -> None:
    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func.overloadpacket.__name__ in ("mm", "addmm", "bmm", "baddbmm"):
                kinds.add(args[-1].dtype)
            return func(*args, **(kwargs or {}))

    kinds: set[torch.dtype] = set()
    words, lengths = words_of(width=5)
    with torch.autocast("cpu", torch.bfloat16), Products():
        nse().float()(words.float(), lengths)
    assert kinds == {torch.bfloat16}


@pytest.mark.gpu
def test_gpu_equals_cpu() -> None:
    check_gpu(nse())


def test_a_single_word_replaces_its_slot_by_the_state() -> None:
    # the softmax over one slot is 1, so the vector does not depend on what the reader compares
    encoder = nse(compose=False)
    word = torch.randn(1, 1, 5, dtype=torch.float64)
    vector = encoder(word, torch.tensor([1])).vector[0]
    h, (slot,) = last_state(encoder, word[0])
    assert torch.equal(slot, h)
    ((o, _),) = lstm(encoder.reader, word[0])
    ((expected, _),) = lstm(encoder.writer, torch.cat([o, word[0, 0]])[None])
    torch.testing.assert_close(vector, expected)


@either
def test_dropout_applies_to_both_lstms_and_spares_the_memory(
    fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fused:
        force_kernels(monkeypatch)
    encoder, lengths = nse(dropout=0.5).train(), torch.tensor([4, 2])
    words = torch.randn(2, 4, 5, dtype=torch.float64, requires_grad=True)
    dropped: list[torch.Size] = []

    def drop(module: torch.nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        dropped.append(output.shape)
        # the input of the reader
        return torch.zeros_like(output) if len(dropped) == 1 else output

    encoder.dropout.register_forward_hook(drop)
    vector = encoder(words, lengths).vector
    # the inputs of the writer, for kernels at once
    inputs = [(6, 10)] if fused else [(2, 10), (2, 10), (1, 10), (1, 10)]
    assert dropped == [(6, 5), *inputs]
    # the reader sees zeros, but the memory still has the words
    assert torch.autograd.grad(vector.sum(), words)[0].any()


def test_initial_weights() -> None:
    encoder = NSEEncoder(NSEConfig(50, 50, init_range=0.2))
    for p in encoder.parameters():
        assert 0.15 < p.max() <= 0.2
        assert -0.2 <= p.min() < -0.15


@pytest.mark.parametrize(
    ("compose", "total"),
    [(True, 3_395_899), (False, 3_035_299)],
)
def test_counts_parameters(compose: bool, total: int) -> None:
    config = ModelConfig(NSEConfig(300, 300, compose=compose), HeadConfig())
    assert count_parameters(config)["total"] == total


@pytest.mark.parametrize(("name", "total"), [("nse-sst2", 2_473_274), ("nse-sst5", 2_476_349)])
def test_recipes_have_the_size_of_the_authors_model(name: str, total: int) -> None:
    assert count_parameters(load_recipe(name).model)["total"] == total


def test_rejects_states_of_another_width() -> None:
    with pytest.raises(ValueError, match="`embedding_dim` is 5 and `hidden_dim` is 6; set both"):
        encoder_of("nse", hidden_dim=6)
