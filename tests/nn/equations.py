"""Compare encoders of batches with plain implementations for one sentence, with all gradients."""

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gumbeltree.encoded import VECTORS
from gumbeltree.layout import Layout, Sentences
from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.parts import ENCODERS
from gumbeltree.states import Draw
from tests.models import encoder_settings

LENGTHS = [3, 1, 6, 2, 6, 1, 4]


def encoder_of(kind: str, std: float = 0.5, **settings: object) -> Any:
    """Return an encoder of 5D words in float64, in evaluation mode, with random weights."""
    torch.manual_seed(1)
    encoder = ENCODERS[kind](encoder_settings(kind=kind, **settings)).double().eval()
    for p in encoder.parameters():
        nn.init.normal_(p, std=std)
    return encoder


def words_of(lengths: Sequence[int] = LENGTHS, width: int = 5) -> tuple[Tensor, Tensor]:
    """Return random words `[B, T, width]` in float64 and their lengths `[B]`."""
    chance = torch.Generator().manual_seed(7)
    shape = len(lengths), max(lengths), width
    return torch.randn(shape, generator=chance, dtype=torch.float64), torch.tensor(lengths)


def random_merges(lengths: Sequence[int], seed: int = 3) -> Tensor:
    """Return random merges `[B, T-1]`, -1 past the end of a sentence."""
    chance = torch.Generator().manual_seed(seed)
    order = torch.full((len(lengths), max(lengths) - 1), -1)
    for row, length in zip(order, lengths, strict=True):
        for step in range(length - 1):
            row[step] = torch.randint(length - 1 - step, (1,), generator=chance)
    return order


def step(weights: Any, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Return h and c of an LSTM after one more input `[E]`; gates are in the order i, f, g, o.

    Args:
        weights: has `weight_ih`, `weight_hh` and `bias`.
        x: the input.
        h: hidden state `[D]`.
        c: cell state `[D]`.
    """
    i, f, g, o = (weights.weight_ih @ x + weights.weight_hh @ h + weights.bias).chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def lstm(weights: Any, words: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return h and c after each of the words `[T, E]`; see `step`."""
    states = [(words.new_zeros(weights.weight_hh.shape[1]),) * 2]
    for word in words:
        states.append(step(weights, word, *states[-1]))
    return states[1:]


def bilstm(module: nn.Module, words: Tensor) -> Tensor:
    """Return h of both directions, concatenated, `[T, 2D]`.

    Args:
        module: a bidirectional `torch.nn.LSTM`, or the leaf of this kind.
        words: the inputs `[T, E]`.
    """
    directions = list(module.children())
    if isinstance(module, nn.LSTM):
        for W, U, b, b2 in module.all_weights:
            directions.append(SimpleNamespace(weight_ih=W, weight_hh=U, bias=b + b2))
    there, back = (lstm(x, y) for x, y in zip(directions, (words, words.flip(0)), strict=True))
    return torch.stack([torch.cat([x[0], y[0]]) for x, y in zip(there, back[::-1], strict=True)])


def check_same(
    found: Sequence[Tensor],
    wanted: Sequence[Tensor],
    inputs: Mapping[str, Tensor],
    unused: Collection[str] = (),
) -> None:
    """Compare tensors and the gradients of a random sum of their elements.

    Args:
        found: tensors of the implementation.
        wanted: tensors of the equations.
        inputs: what to compute gradients of, by name.
        unused: names of inputs that have no effect; all others must have a gradient.
    """
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-12)
    chance = torch.Generator().manual_seed(4)
    weights = [torch.randn(x.shape, generator=chance, dtype=x.dtype) for x in found]
    gradients = (
        torch.autograd.grad(
            sum((x * w).sum() for x, w in zip(each, weights, strict=True)),
            list(inputs.values()),
            allow_unused=True,
            materialize_grads=True,
        )
        for each in (found, wanted)
    )
    for name, x, y in zip(inputs, *gradients, strict=True):
        torch.testing.assert_close(
            x, y, rtol=1e-11, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}"
        )
        assert bool(y.any()) == (name not in unused), name


def check_sentences(
    encoder: Encoder, plain: Callable[[Tensor], Tensor], lengths: Sequence[int] = LENGTHS
) -> None:
    """Compare an encoder without trees with an implementation for one sentence `[T, E]`."""
    words, counts = words_of(lengths, encoder.config.embedding_dim)
    words.requires_grad_()
    found = encoder(words, counts)
    assert found.order is None
    wanted = torch.stack([plain(row[:n]) for row, n in zip(words, lengths, strict=True)])
    assert wanted.shape == (len(lengths), encoder.vector_dim)
    check_same([found.vector], [wanted], {"words": words, **dict(encoder.named_parameters())})


def check_gpu(encoder: Encoder, lengths: Sequence[int] = LENGTHS) -> None:
    """Compare an encoder on a GPU with itself on the CPU, which the equations have tested."""
    words, counts = words_of(lengths, encoder.config.embedding_dim)
    # the backward passes of cuDNN need an encoder in training
    encoder = encoder.train()
    there = deepcopy(encoder).cuda()
    chance = torch.Generator().manual_seed(4)
    weights = torch.randn(len(lengths), encoder.vector_dim, generator=chance).double()
    found = []
    for each, device in ((encoder, "cpu"), (there, "cuda")):
        inputs = words.to(device).requires_grad_()
        vector = each(inputs, counts.to(device)).vector
        gradients = torch.autograd.grad(
            (vector * weights.to(device)).sum(), [inputs, *each.parameters()]
        )
        found.append([x.detach().cpu() for x in (vector, *gradients)])
    for x, y in zip(*found, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)


def check_company(encoder: Encoder, lengths: Sequence[int] = LENGTHS, **given: Tensor) -> None:
    """Check that neither padding nor the other sentences of a batch change a result.

    Args:
        encoder: an encoder, with or without trees.
        lengths: lengths of the sentences.
        given: further arguments of the encoder, such as `order`, a row per sentence.
    """
    words, counts = words_of(lengths, encoder.config.embedding_dim)
    B, T, _ = words.shape
    together = encoder(words, counts, **given)

    def compare(found: Any, rows: Tensor | slice, n: int = T) -> None:
        for name in ("vector", "log_prob"):
            x, y = getattr(found, name), getattr(together, name)
            assert (x is None) == (y is None)
            if x is not None:
                torch.testing.assert_close(x, y[rows], rtol=0, atol=1e-12)
        if together.order is not None:
            assert torch.equal(found.order[:, : n - 1], together.order[rows, : n - 1])

    # entries past the end have neither effect nor gradient
    inside = torch.arange(T + 3) < counts[:, None]
    dirty = words.masked_fill(~inside[:, :T, None], 1e6)
    wide = F.pad(words, (0, 0, 0, 3)).masked_fill(~inside[..., None], torch.nan).requires_grad_()
    further = {k: F.pad(x, (0, 3), value=-1) if k == "order" else x for k, x in given.items()}
    for found in (encoder(dirty, counts, **given), encoder(wide, counts, **further)):
        assert torch.equal(found.vector, together.vector)
        compare(found, slice(None))
    (gradient,) = torch.autograd.grad(found.vector.square().sum(), wide)
    assert torch.equal(gradient != 0, inside[..., None].expand_as(gradient))
    shuffled = torch.randperm(B, generator=torch.Generator().manual_seed(5))
    moved = {k: x[shuffled] for k, x in given.items()}
    compare(encoder(words[shuffled], counts[shuffled], **moved), shuffled)
    for b, n in enumerate(lengths):
        row = slice(b, b + 1)
        own = {k: x[row, : n - 1] if k == "order" else x[row] for k, x in given.items()}
        compare(encoder(words[row, :n], counts[row], **own), row, n)


def roomy(sentences: Sentences, rows: Tensor) -> Sentences:
    """Return the same sentences with bounds above their length and number, and 3 `rows` more."""
    of = sentences.layout
    start = torch.cat([of.start, of.start[-1:].expand(2)])
    layout = Layout(of.cap + 3, start, of.lengths, of.sentence, of.rank, of.active)
    return Sentences(torch.cat([sentences.words, rows]), layout)


def check_bounds(encoder: Encoder) -> None:
    """Check that bounds above the longest sentence and the number of words change nothing."""
    sentences = Sentences.padded(*words_of())
    wide = roomy(sentences, torch.full((3, 5), 9.0, dtype=torch.float64))
    found, other = (encoder.encode(x, Draw(), VECTORS).vector for x in (sentences, wide))
    torch.testing.assert_close(found, other)


def check_autocast(encoder: Encoder, **given: Tensor) -> None:
    """Check that bfloat16 matrix products change vectors little and leave gradients finite."""
    words, lengths = words_of(width=encoder.config.embedding_dim)
    encoder, words = encoder.float(), words.float()
    plain = encoder(words, lengths, **given).vector
    with torch.autocast("cpu", torch.bfloat16):
        vector = encoder(words, lengths, **given).vector
    torch.testing.assert_close(vector.float(), plain, atol=0.1, rtol=0.1)
    vector.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())
