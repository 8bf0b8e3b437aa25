"""Triton kernels that compute row tables, and one that tests whether kernels run at all."""

import triton
import triton.language as tl

BLOCK = 256


# some arguments are slices of one buffer, whose alignment varies
@triton.jit(
    do_not_specialize=["B", "T", "cap"],
    do_not_specialize_on_alignment=["start", "lengths", "words", "firsts"],
)
def find_rows_kernel(
    start, lengths, words, firsts, out_start, out_lengths, out_previous, out_roots, out_ids,
    B, T, cap, BT: tl.constexpr, BLOCK: tl.constexpr, HAS_WORDS: tl.constexpr,
):  # fmt: skip
    """Fill a `RowTables`, as `find_rows._find` does; BT >= T."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_start + i, tl.load(start + i, mask=i <= T, other=0).to(tl.int32), mask=i <= T)
    m_b = i < B
    length = tl.load(lengths + i, mask=m_b, other=1).to(tl.int32)
    tl.store(out_lengths + i, length, mask=m_b)
    last = tl.load(start + length - 1, mask=m_b, other=0).to(tl.int64)
    tl.store(out_roots + i, tl.where(length > 1, cap + last + i, i), mask=m_b)
    # the position of a row is the number of later positions that begin at or before it
    position = tl.full((BLOCK,), 0, dtype=tl.int32)
    for first in range(0, BT, 64):
        t = 1 + first + tl.arange(0, 64)
        begins = tl.load(start + t, mask=t < T, other=2147483647)
        position += tl.sum((begins[None, :] <= i[:, None]).to(tl.int32), axis=1)
    m = i < cap
    rank = i - tl.load(start + position, mask=m, other=0).to(tl.int32)
    before = tl.load(start + position - 1, mask=m & (position > 0), other=0).to(tl.int32)
    tl.store(out_previous + i, rank + before, mask=m)
    if HAS_WORDS:
        inside = i < tl.load(start + T)
        index = tl.load(firsts + rank, mask=m & inside, other=0) + position
        word = tl.load(words + index, mask=m & inside, other=0)
        tl.store(out_ids + i, word.to(tl.int64), mask=m)


@triton.jit
def trial_kernel(x):
    """Store 1 in x."""
    tl.store(x, 1.0)
