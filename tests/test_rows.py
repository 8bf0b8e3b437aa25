"""Batches as rows: the words of padded batches, laid out as `Packing` does, in few shapes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gumbeltree.data.rows import RowData, Shape, rounded_cap, rounded_T
from gumbeltree.data.split import Split
from gumbeltree.ops.layout import Layout, _find, _find_fast
from gumbeltree.packing import Packing

CPU = torch.device("cpu")
LENGTHS = st.lists(st.integers(1, 19), min_size=1, max_size=9)


@st.composite
def splits(draw: st.DrawFn) -> tuple[Split, np.ndarray]:
    """Draw a split and some of its examples, repetitions allowed."""
    lengths = draw(LENGTHS)
    columns = draw(st.sampled_from([1, 2]))
    examples = draw(st.integers(1, 8))
    generator = np.random.default_rng(draw(st.integers(0, 10**6)))
    split = Split(
        # no id is 0, which stands for no word
        generator.integers(1, 60_000, sum(lengths)).astype(np.uint16),
        np.cumsum([0, *lengths]),
        generator.integers(0, len(lengths), (examples, columns)).astype(np.int32),
        generator.integers(0, 3, examples),
    )
    rows = draw(st.lists(st.integers(0, examples - 1), min_size=1, max_size=9))
    return split, np.array(rows, dtype=np.int64)


@given(splits(), st.booleans())
def test_rows_hold_the_words_of_padded_batches(drawn, rounded):
    split, rows = drawn
    data = RowData(split, CPU)
    shape, numbers = data.place(rows, rounded)
    assert numbers.dtype == np.int64
    found = data.read(torch.from_numpy(numbers), shape)
    expected = split.batch(rows)
    columns = len(expected.ids)
    numbered = [expected.rows + column * len(split) for column in range(columns)]
    assert torch.equal(found.own, torch.cat(numbered))
    assert torch.equal(found.labels, expected.labels)
    assert found.ids.dtype == torch.int64
    layout, lengths = found.layout, torch.cat(expected.lengths)
    assert torch.equal(layout.lengths[layout.rank].long(), lengths)
    # in the caller's order: first sentences of all examples, then second ones
    sentences = [ids for column in expected.ids for ids in column]
    for rank, ids, length in zip(layout.rank, sentences, lengths, strict=True):
        where = layout.start[:length] + rank
        assert torch.equal(found.ids[where], ids[:length])
    words = int(lengths.sum())
    assert not found.ids[words:].any()
    assert len(found.ids) == shape.cap
    assert (shape.examples, shape.columns) == (len(rows), len(expected.ids))
    longest = int(lengths.max())
    if rounded:
        assert (shape.T, shape.cap) == (rounded_T(longest), rounded_cap(words))
    else:
        assert (shape.T, shape.cap) == (max(2, longest), words)


@given(splits(), st.booleans())
def test_the_layout_is_that_of_a_packing(drawn, rounded):
    split, rows = drawn
    data = RowData(split, CPU)
    shape, numbers = data.place(rows, rounded)
    layout = data.read(torch.from_numpy(numbers), shape).layout
    packing = Packing(torch.cat(split.batch(rows).lengths), shape.T)
    check_layout(layout, packing)
    assert (layout.B, layout.T, layout.cap) == (packing.B, shape.T, shape.cap)


@given(LENGTHS)
def test_the_layout_of_a_packing(lengths):
    packing = Packing(torch.tensor(lengths), max(lengths))
    layout = Layout.of(packing)
    check_layout(layout, packing)
    assert (layout.B, layout.T, layout.cap) == (packing.B, packing.steps, packing.N)


def check_layout(layout: Layout, packing: Packing) -> None:
    steps, N = packing.steps, packing.N
    assert layout.start.tolist() == packing.start + [N] * (layout.T - steps)
    assert torch.equal(layout.lengths.long(), packing.lengths)
    assert torch.equal(layout.sentence, packing.sentence)
    assert torch.equal(layout.rank, packing.rank)
    for name in ("start", "lengths", "previous"):
        assert getattr(layout, name).dtype == torch.int32, name
    assert layout.previous.shape == (layout.cap,)
    # by name: the word of each rank at each position, and the one before it
    for position in range(1, steps):
        for rank in range(packing.active[position]):
            row = packing.start[position] + rank
            assert layout.previous[row] == packing.start[position - 1] + rank


@given(LENGTHS, st.integers(0, 3), st.integers(0, 5))
def test_nodes_stand_where_a_packing_lays_them_out(lengths, more_T, more_rows):
    T = max(lengths) + more_T
    packing = Packing(torch.tensor(lengths), T)
    start = torch.tensor(packing.start + [packing.N] * more_T, dtype=torch.int32)
    cap = packing.N + more_rows
    layout = Layout.from_start(cap, start, packing.lengths, packing.sentence, packing.rank)
    # the same nodes by the numbers of `fused_forward`: merge r = start[t+1] + b makes cap + r
    made = [
        cap + packing.start[t + 1] + rank
        for t in range(packing.steps - 1)
        for rank in range(packing.active[t + 1])
    ]
    numbers = torch.tensor([*range(packing.N), *made])
    assert len(numbers) == packing.nodes
    nodes, exists = layout.node_rows()
    assert torch.equal(exists, packing.unpack_nodes(torch.ones(packing.nodes)) > 0)
    assert torch.equal(nodes, packing.unpack_nodes(numbers))
    assert torch.equal(layout.roots, numbers[packing.root_rows()])
    assert layout.roots.dtype == torch.int64


@given(LENGTHS, st.integers(0, 70), st.integers(0, 300), st.booleans())
@settings(max_examples=30)
def test_the_kernel_finds_the_same(lengths, more_T, more_rows, with_words):
    pytest.importorskip("triton")
    packing = Packing(torch.tensor(lengths), max(lengths) + more_T)
    start = torch.tensor(packing.start + [packing.N] * more_T)
    cap, generator = packing.N + more_rows, torch.Generator().manual_seed(len(lengths))
    words, firsts = None, None
    if with_words:
        words = torch.randint(100, (300,), generator=generator, dtype=torch.int32)
        firsts = torch.randint(300 - max(lengths), (packing.B,), generator=generator)
    expected = _find(cap, start, packing.lengths, words, firsts)
    found = _find_fast(cap, start, packing.lengths, words, firsts)
    for name, x, y in zip(expected._fields, expected, found, strict=True):
        # what stands beyond the words, and before first words, is never used
        inside = slice(packing.B, packing.N) if name == "previous" else slice(None)
        assert torch.equal(x[inside], y[inside]), name
        assert x.dtype == y.dtype, name


def test_shapes_are_rounded_as_documented():
    for T in range(1, 300):
        wide = rounded_T(T)
        step = 1 if T <= 20 else 2 if T <= 32 else 4 if T <= 64 else 8
        assert wide % step == 0
        assert T <= wide < T + step or (T, wide) == (1, 2)
        assert wide <= max(2, T * 9 / 8)
    for words in [*range(1, 5000), 10**6, 10**6 + 1, 2**20, 2**20 + 1]:
        cap = rounded_cap(words)
        assert cap >= words
        if words >= 512:
            assert cap <= words * 9 / 8
        else:
            assert cap < words + 64
    # what is rounded stays, and more words never have fewer rows
    caps = [rounded_cap(words) for words in range(1, 5000)]
    assert caps == sorted(caps)
    assert caps == [rounded_cap(cap) for cap in caps]
    widths = [rounded_T(T) for T in range(1, 300)]
    assert widths == sorted(widths)
    assert widths == [rounded_T(T) for T in widths]
    assert len(set(caps)) < 40


def test_batches_of_similar_sizes_share_a_shape():
    lengths = [25, 26, 26, 3, 4, 2]
    split = Split(
        np.arange(1, sum(lengths) + 1, dtype=np.uint16),
        np.cumsum([0, *lengths]),
        np.arange(6, dtype=np.int32)[:, None],
        np.zeros(6, dtype=np.int64),
    )
    data = RowData(split, CPU)
    (one, first), (other, second) = data.place(np.array([0, 3])), data.place(np.array([1, 4]))
    assert one == other == Shape(2, 1, 26, 64)
    assert first.shape == second.shape
    assert data.place(np.array([0, 3]), rounded=False)[0] == Shape(2, 1, 25, 28)
    assert data.place(np.array([1, 2, 4]))[0] != one
