"""Checks of what a user hands to an encoder: once, at the border."""

import torch
from torch import Tensor

from gumbeltree.layout import Sentences
from gumbeltree.noise import is_keys


def check_shape(name: str, x: Tensor, shape: tuple[int, ...], meaning: str) -> None:
    """Raise unless `x` has `shape`."""
    if tuple(x.shape) != shape:
        raise ValueError(f"`{name}` must be {meaning} = {list(shape)}, got {list(x.shape)}")


def check_words(embedded: Tensor, lengths: Tensor | None, weight: Tensor, E: int) -> Tensor:
    """Check word vectors and lengths against each other and against the encoder's weights.

    Args:
        embedded: word vectors `[B, T, E]`.
        lengths: int64 `[B]`.
        weight: any parameter of the encoder.
        E: the encoder's width of word vectors.

    Returns:
        The lengths.
    """
    for name, x in {"embedded": embedded, "lengths": lengths}.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"`{name}` must be a tensor, got {type(x).__name__}")
    if embedded.dim() != 3 or embedded.shape[2] != E:
        raise ValueError(
            f"`embedded` must be [B, T, E] with E={E}, got {list(embedded.shape)}; "
            "pass word vectors, one sentence a row"
        )
    assert isinstance(lengths, Tensor)
    B, T, _ = embedded.shape
    if B == 0 or T == 0:
        raise ValueError(
            f"`embedded` must hold at least one sentence of one word, got {list(embedded.shape)}; "
            "skip empty batches"
        )
    for name, x in {"embedded": embedded, "lengths": lengths}.items():
        check_device(name, x, weight)
    check_dtype("embedded", embedded, weight)
    if lengths.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"`lengths` must be int64, got {lengths.dtype}; convert it with .long()")
    check_shape("lengths", lengths, (B,), "[B]")
    low, high = int(lengths.min()), int(lengths.max())
    if low < 1 or high > T:
        raise ValueError(
            f"`lengths` must lie in 1..T={T}, got {low}..{high} (sentence "
            f"{int(lengths.argmin() if low < 1 else lengths.argmax())}); drop empty sentences and "
            "cut long ones before batching"
        )
    return lengths.long()


def check_dtype(name: str, x: Tensor, weight: Tensor) -> None:
    """Raise unless word vectors have the number type of the encoder's weights."""
    # autocast narrows float32, never float64
    autocast = torch.is_autocast_enabled(x.device.type)
    narrow = (torch.float32, torch.float16, torch.bfloat16)
    fits = autocast and x.dtype in narrow and weight.dtype in narrow
    if x.dtype != weight.dtype and not fits:
        raise TypeError(
            f"`{name}` must be {weight.dtype} as the encoder's weights are, got {x.dtype}; convert "
            "one of them with .to()"
        )


def check_vectors(words: Tensor, weight: Tensor, E: int) -> None:
    """Check the words of `Sentences` at the encoder's door.

    Args:
        words: word vectors `[N, E]`.
        weight: any parameter of the encoder.
        E: the encoder's width of word vectors.
    """
    if words.dim() != 2 or words.shape[1] != E:
        raise ValueError(
            f"the words of an encoder's sentences must be vectors [N, E] with E={E}, got "
            f"{list(words.shape)}; pass ids to the model, vectors to its encoder"
        )
    check_device("words", words, weight)
    check_dtype("words", words, weight)


def check_device(name: str, x: Tensor, weight: Tensor) -> None:
    """Raise unless `x` lies where the encoder does."""
    if x.device != weight.device:
        raise ValueError(
            f"`{name}` must be on {weight.device} as the encoder is, got {x.device}; move one of "
            "them with .to()"
        )


def check_finite(sentences: Sentences) -> None:
    """Raise at the first NaN or infinity inside a sentence of word vectors `[N, E]`.

    Reading values back from an accelerator would stop its queue, so only CPU tensors are read.
    """
    words, layout = sentences.words, sentences.layout
    if words.device.type != "cpu" or bool(torch.isfinite(words.sum())):
        return
    bad = (~torch.isfinite(words)).any(dim=1).nonzero()[:, 0]
    if len(bad) == 0:
        return
    row = int(layout.word_places()[bad].min())
    raise ValueError(
        f"`embedded` must be finite inside each sentence, got NaN or infinity in sentence "
        f"{row // layout.T} at position {row % layout.T}; look at the word's vector"
    )


def check_noise(noise: Tensor, lengths: Tensor, weight: Tensor, T: int, temperature: float) -> None:
    """Check Gumbel noise `[B, T-1, T-1]`; entries outside a sentence may be anything.

    -inf rules a candidate out, so each layer must leave at least one. Values are read on a CPU
    only: reading them back from an accelerator would stop its queue.
    """
    B = lengths.shape[0]
    check_device("noise", noise, weight)
    if is_keys(noise):
        check_shape("noise", noise, (B, 2), "keys [B, 2]")
        return
    check_shape("noise", noise, (B, T - 1, T - 1), "[B, T-1, T-1]")
    if not noise.is_floating_point():
        raise TypeError(f"`noise` must be floating point, or int64 keys, got {noise.dtype}")
    if noise.requires_grad:
        raise ValueError("`noise` must not require gradients: none reach it; detach it")
    if noise.device.type != "cpu":
        return
    # as the softmax will see it
    seen = noise.to(torch.promote_types(weight.dtype, torch.float32)) / temperature
    if bool(torch.isfinite(seen.sum())):
        return
    step = torch.arange(T - 1)
    inside = step[:, None] + step < (lengths - 1)[:, None, None]  # [B, T-1, T-1]
    bad = (inside & (seen.isnan() | (seen == torch.inf))).nonzero()
    if len(bad):
        b, t, j = bad[0].tolist()
        raise ValueError(
            f"`noise` must not be NaN or +inf inside a sentence, nor become so when it is divided "
            f"by the temperature in {seen.dtype}, got {float(noise[b, t, j])} at [sentence, layer, "
            f"position] = [{b}, {t}, {j}]"
        )
    ruled_out = (~inside | (seen == -torch.inf)).all(-1) & inside.any(-1)  # [B, T-1]
    if bool(ruled_out.any()):
        b, t = ruled_out.nonzero()[0].tolist()
        raise ValueError(
            f"`noise` must leave at least one candidate in each layer, got -inf for all "
            f"{int(inside[b, t].sum())} candidates at [sentence, layer] = [{b}, {t}]; make one of "
            "them finite"
        )


def check_order(order: Tensor, lengths: Tensor, weight: Tensor, T: int) -> None:
    """Check forced merges `[B, T-1]`; entries past a sentence's end may be anything."""
    check_shape("order", order, (lengths.shape[0], T - 1), "[B, T-1]")
    if order.dtype != torch.int64:
        raise TypeError(f"`order` must be int64, got {order.dtype}; convert it with .long()")
    check_device("order", order, weight)
    if order.device.type != "cpu":
        return
    candidates = (lengths - 1)[:, None] - torch.arange(T - 1)  # [B, T-1]
    bad = ((candidates > 0) & ((order < 0) | (order >= candidates))).nonzero()
    if len(bad):
        b, t = bad[0].tolist()
        raise ValueError(
            f"`order` must lie in 0..{int(candidates[b, t]) - 1} for sentence {b} at step {t}, "
            f"got {int(order[b, t])}; each step has one position fewer"
        )
