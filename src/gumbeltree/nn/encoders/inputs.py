"""Validation of encoder inputs."""

import torch
from torch import Tensor

from gumbeltree.layout import Sentences
from gumbeltree.noise import is_keys


def check_shape(name: str, x: Tensor, shape: tuple[int, ...], meaning: str) -> None:
    """Raise ValueError unless `x` has `shape`."""
    if tuple(x.shape) != shape:
        raise ValueError(f"`{name}` must be {meaning} = {list(shape)}, got {list(x.shape)}")


def check_words(embedded: Tensor, lengths: Tensor | None, weight: Tensor, E: int) -> Tensor:
    """Validate padded word vectors `[B, T, E]` and lengths `[B]`, and return the lengths.

    Args:
        embedded: word vectors.
        lengths: words per sentence.
        weight: any parameter of the encoder, for its device and dtype.
        E: width of the word vectors that the encoder expects.
    """
    for name, x in {"embedded": embedded, "lengths": lengths}.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"`{name}` must be a tensor, got {type(x).__name__}")
    if embedded.dim() != 3 or embedded.shape[2] != E:
        raise ValueError(
            f"`embedded` must be [B, T, E] with E={E}, got {list(embedded.shape)}; "
            "pass word vectors, one sentence per row"
        )
    assert isinstance(lengths, Tensor)
    B, T, _ = embedded.shape
    if B == 0 or T == 0:
        raise ValueError(
            f"`embedded` must contain at least one sentence with one word, got shape "
            f"{list(embedded.shape)}; skip empty batches"
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
            "truncate long ones before batching"
        )
    return lengths.long()


def check_dtype(name: str, x: Tensor, weight: Tensor) -> None:
    """Raise TypeError unless word vectors have the dtype of the encoder's weights."""
    # autocast narrows float32, never float64
    autocast = torch.is_autocast_enabled(x.device.type)
    narrow = (torch.float32, torch.float16, torch.bfloat16)
    fits = autocast and x.dtype in narrow and weight.dtype in narrow
    if x.dtype != weight.dtype and not fits:
        raise TypeError(
            f"`{name}` must be {weight.dtype} like the encoder's weights, got {x.dtype}; convert "
            "one of them with .to()"
        )


def check_vectors(words: Tensor, weight: Tensor, E: int) -> None:
    """Validate the word vectors `[N, E]` of `Sentences`."""
    if words.dim() != 2 or words.shape[1] != E:
        raise ValueError(
            f"an encoder needs word vectors [N, E] with E={E}, got {list(words.shape)}; pass ids "
            "to the model, vectors to its encoder"
        )
    check_device("words", words, weight)
    check_dtype("words", words, weight)


def check_device(name: str, x: Tensor, weight: Tensor) -> None:
    """Raise ValueError unless `x` is on the encoder's device."""
    if x.device != weight.device:
        raise ValueError(
            f"`{name}` must be on {weight.device} like the encoder, got {x.device}; move one of "
            "them with .to()"
        )


def check_finite(sentences: Sentences) -> None:
    """Raise ValueError at the first NaN or infinity in word vectors on a CPU.

    On an accelerator, reading values back would force a synchronization, so nothing is checked.
    """
    words, layout = sentences.words, sentences.layout
    if words.device.type != "cpu" or bool(torch.isfinite(words.sum())):
        return
    bad = (~torch.isfinite(words)).any(dim=1).nonzero()[:, 0]
    if len(bad) == 0:
        return
    row = int(layout.word_places()[bad].min())
    raise ValueError(
        f"`embedded` contains NaN or infinity in sentence {row // layout.T} at position "
        f"{row % layout.T}; check the vector of that word"
    )


def check_noise(noise: Tensor, lengths: Tensor, weight: Tensor, T: int, temperature: float) -> None:
    """Validate Gumbel noise `[B, T-1, T-1]`; entries outside a sentence are ignored.

    -inf excludes a candidate, so every layer needs at least one finite entry. Values are checked on
    a CPU only: reading them back from an accelerator would force a synchronization.
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
        raise ValueError("`noise` must not require gradients, since it gets none; use .detach()")
    if noise.device.type != "cpu":
        return
    # the values that enter the softmax
    seen = noise.to(torch.promote_types(weight.dtype, torch.float32)) / temperature
    if bool(torch.isfinite(seen.sum())):
        return
    step = torch.arange(T - 1)
    inside = step[:, None] + step < (lengths - 1)[:, None, None]  # [B, T-1, T-1]
    bad = (inside & (seen.isnan() | (seen == torch.inf))).nonzero()
    if len(bad):
        b, t, j = bad[0].tolist()
        raise ValueError(
            f"`noise` must not be NaN or +inf inside a sentence, even after division by the "
            f"temperature in {seen.dtype}, got {float(noise[b, t, j])} at [sentence, layer, "
            f"position] = [{b}, {t}, {j}]"
        )
    ruled_out = (~inside | (seen == -torch.inf)).all(-1) & inside.any(-1)  # [B, T-1]
    if bool(ruled_out.any()):
        b, t = ruled_out.nonzero()[0].tolist()
        raise ValueError(
            f"`noise` is -inf for all {int(inside[b, t].sum())} candidates at [sentence, layer] = "
            f"[{b}, {t}]; at least one must be finite"
        )


def check_order(order: Tensor, lengths: Tensor, weight: Tensor, T: int) -> None:
    """Validate merge orders `[B, T-1]`; entries past the end of a sentence are ignored."""
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
            f"got {int(order[b, t])}; each step has one position fewer than the previous one"
        )
