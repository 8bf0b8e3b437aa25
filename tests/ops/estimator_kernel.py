"""A kernel that stores the score gradients of one layer, as `undo_kernel` does."""

import triton
import triton.language as tl

from gumbeltree.ops.merge.fused.estimator_kernels import store_estimated_gradients


@triton.jit
def estimator_kernel(
    t, numbers, logits, position, noise, dscores, sentence, temperature, lengths, start, out, B, T,
    BT: tl.constexpr, PIECES: tl.constexpr, HAS_DSCORES: tl.constexpr, FROM_KEYS: tl.constexpr,
    ESTIMATOR: tl.constexpr, SETTING: tl.constexpr, DRAWS: tl.constexpr,
):  # fmt: skip
    """Store the score gradients of layer t, one sentence per program."""
    store_estimated_gradients(
        tl.program_id(0), t, numbers, logits, position, noise, dscores, sentence, temperature,
        lengths, start, out, B, T, BT, PIECES, HAS_DSCORES, FROM_KEYS, ESTIMATOR, SETTING, DRAWS,
        False,
    )  # fmt: skip
