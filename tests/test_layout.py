"""Test the layout of batches against plain loops, and the bounds that graphs share."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gumbeltree.data.device_split import DeviceSplit
from gumbeltree.data.split import Split
from gumbeltree.device.find_rows import _find, _find_by_kernel
from gumbeltree.layout import (
    Arrangement,
    Bounds,
    Layout,
    Sentences,
    rounded_cap,
    rounded_T,
)
from gumbeltree.ops.merge.fused import node_rows
from tests.models import ids_of

CPU = torch.device("cpu")
LENGTHS = st.lists(st.integers(1, 19), min_size=1, max_size=9)


@st.composite
def splits(draw: st.DrawFn) -> tuple[Split, np.ndarray]:
    """Draw a split and indices of its examples, with repetition."""
    lengths = draw(LENGTHS)
    columns = draw(st.sampled_from([1, 2]))
    examples = draw(st.integers(1, 8))
    generator = np.random.default_rng(draw(st.integers(0, 10**6)))
    split = Split(
        # ids are positive, since 0 means no word
        generator.integers(1, 60_000, sum(lengths)).astype(np.uint16),
        np.cumsum([0, *lengths]),
        generator.integers(0, len(lengths), (examples, columns)).astype(np.int32),
        generator.integers(0, 3, examples),
    )
    rows = draw(st.lists(st.integers(0, examples - 1), min_size=1, max_size=9))
    return split, np.array(rows, dtype=np.int64)


def layout_of(lengths, more_T=0, more_rows=0, known=True):
    """Return a layout, optionally with spare steps and rows."""
    arrangement = Arrangement.of(np.array(lengths), max(lengths) + more_T)
    exact = Layout.of(arrangement)
    if known:
        return exact
    start, rest = exact.start, (exact.lengths, exact.sentence, exact.rank)
    return Layout(exact.N + more_rows, start, *rest)


def rows_by_hand(lengths):
    """Return the sentence and position of each row."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return [(i, t) for t in range(max(lengths)) for i in order if t < lengths[i]]


@settings(max_examples=20)
@given(LENGTHS, st.integers(0, 3))
def test_rows_of_words(lengths, more_T):
    layout = layout_of(lengths, more_T)
    T, rows = max(lengths) + more_T, rows_by_hand(lengths)
    order = [i for i, t in rows if t == 0]
    assert (layout.B, layout.T, layout.cap, layout.N) == (len(lengths), T, len(rows), len(rows))
    assert layout.steps == max(lengths)
    assert layout.nodes == 2 * len(rows) - len(lengths)
    assert layout.sentence.tolist() == order
    assert [order[i] for i in layout.rank.tolist()] == list(range(len(lengths)))
    assert layout.lengths.tolist() == [lengths[i] for i in order]
    assert layout.own_lengths().tolist() == lengths
    assert list(layout.active) == [sum(n > t for n in lengths) for t in range(max(lengths))]
    begins = [next((r for r, (_, t) in enumerate(rows) if t == at), len(rows)) for at in range(T)]
    assert layout.start.tolist() == [*begins, len(rows)]
    assert layout.starts == [*begins[: layout.steps], len(rows)]
    assert layout.word_places().tolist() == [i * T + t for i, t in rows]
    for x in (layout.start, layout.lengths, layout.sentence, layout.rank):
        assert x.dtype == torch.int64


@settings(max_examples=20)
@given(LENGTHS, st.integers(0, 3))
def test_padding_of_words_and_nodes(lengths, more_T):
    layout = layout_of(lengths, more_T)
    T, B = layout.T, layout.B
    words = layout.unpack(torch.arange(1, layout.N + 1))
    nodes = layout.unpack_nodes(torch.arange(1, layout.nodes + 1))
    expected = torch.zeros(B, 2 * T - 1, dtype=torch.int64)
    for row, (i, t) in enumerate(rows_by_hand(lengths)):
        expected[i, t] = row + 1
    # nodes follow the words, step by step
    made = [(i, t - 1) for i, t in rows_by_hand(lengths) if t > 0]
    for number, (i, t) in enumerate(made):
        expected[i, T + t] = layout.N + number + 1
    assert torch.equal(words, expected[:, :T])
    assert torch.equal(nodes, expected)
    assert torch.equal(layout.node_mask(), expected > 0)
    roots = [layout.N + made.index((i, n - 2)) if n > 1 else None for i, n in enumerate(lengths)]
    first = [i for i, t in rows_by_hand(lengths) if t == 0]
    expected_roots = [rank if roots[i] is None else roots[i] for rank, i in enumerate(first)]
    assert layout.root_rows().tolist() == expected_roots


@settings(max_examples=20)
@given(LENGTHS, st.integers(0, 3), st.integers(0, 5))
def test_full_layout_inside_a_graph(lengths, more_T, more_rows):
    known = layout_of(lengths, more_T)
    layout = layout_of(lengths, more_T, more_rows, known=False)
    full = layout.full()
    assert known.full() is known
    assert (full.T, full.N, list(full.active)) == (known.T, known.T * known.B, [known.B] * known.T)
    rows = torch.arange(1, layout.cap + 1)
    spread = layout.spread(rows)
    assert torch.equal(known.spread(rows), rows[: known.N])
    # by position, then by rank, zero past the end
    padded = known.unpack(rows[: known.N])
    assert torch.equal(spread.view(full.T, full.B), padded[known.sentence].t())
    assert torch.equal(layout.gather(spread)[: known.N], rows[: known.N])
    assert torch.equal(known.gather(rows[: known.N]), rows[: known.N])
    assert torch.equal(full.unpack(spread), padded)
    assert torch.equal(layout.unpack(rows), padded)
    assert torch.equal(layout.word_places()[: known.N], known.word_places())
    # nodes of the full layout: words, then one row per sentence and step
    nodes = full.unpack_nodes(torch.cat([spread, -torch.arange(1, full.nodes - full.N + 1)]))
    mask = known.node_mask()
    assert torch.equal(nodes != 0, mask)
    steps = 1 + torch.arange(full.T - 1) * full.B + full.rank[:, None]
    assert torch.equal(nodes[:, full.T :], torch.where(mask[:, full.T :], -steps, 0))
    assert full.root_rows().tolist() == [
        full.N + (n - 2) * full.B + rank if n > 1 else rank
        for rank, n in enumerate(full.lengths.tolist())
    ]


@settings(max_examples=20)
@given(LENGTHS, st.integers(0, 3), st.integers(0, 5))
def test_row_tables(lengths, more_T, more_rows):
    layout = layout_of(lengths, more_T, more_rows, known=False)
    tables, cap, T = layout.tables, layout.cap, layout.T
    rows = rows_by_hand(lengths)
    assert torch.equal(tables.start.long(), layout.start)
    assert torch.equal(tables.lengths.long(), layout.lengths)
    for name in ("start", "lengths", "previous"):
        assert getattr(tables, name).dtype == torch.int32, name
    assert tables.previous.shape == (cap,)
    for row, (i, t) in enumerate(rows):
        if t > 0:
            assert tables.previous[row] == rows.index((i, t - 1))
    # the merge in row r, that of word t + 1, creates node cap + r
    nodes, exists = node_rows(layout)
    assert torch.equal(exists, layout.node_mask())
    for i, n in enumerate(lengths):
        words = [rows.index((i, t)) for t in range(n)]
        assert nodes[i, :n].tolist() == words
        assert nodes[i, T : T + n - 1].tolist() == [cap + row for row in words[1:]]
        assert tables.roots[layout.rank[i]] == (cap + words[-1] if n > 1 else words[0])
    assert tables.roots.dtype == torch.int64


def test_row_tables_of_inference_mode_can_be_saved_for_backward():
    with torch.inference_mode():
        layout = layout_of([3, 2], known=False)
        assert not layout.tables.start.is_inference()


def test_host_numbers_are_not_available_in_a_graph():
    layout = layout_of([3, 2], known=False)
    for name in ("active", "steps", "starts", "merged", "N", "nodes"):
        with pytest.raises(RuntimeError, match="cannot be captured"):
            getattr(layout, name)


@given(LENGTHS, st.integers(0, 70), st.integers(0, 300), st.booleans())
@settings(max_examples=10)
def test_kernel_computes_the_same_tables(lengths, more_T, more_rows, with_words):
    pytest.importorskip("triton")
    layout = layout_of(lengths, more_T)
    cap, generator = layout.N + more_rows, torch.Generator().manual_seed(len(lengths))
    words, firsts = None, None
    if with_words:
        words = torch.randint(100, (300,), generator=generator, dtype=torch.int32)
        firsts = torch.randint(300 - max(lengths), (layout.B,), generator=generator)
    expected = _find(cap, layout.start, layout.lengths, words, firsts)
    tables = _find_by_kernel(cap, layout.start, layout.lengths, words, firsts)
    for name, x, y in zip(expected._fields, expected, tables, strict=True):
        # entries of spare rows and of first words are undefined
        inside = slice(layout.B, layout.N) if name == "previous" else slice(None)
        assert torch.equal(x[inside], y[inside]), name
        assert x.dtype == y.dtype, name


IDS = st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=12), min_size=1, max_size=9)


@settings(max_examples=20)
@given(IDS, st.integers(0, 3))
def test_sentences_from_lists_and_padded_batches(ids, more):
    sentences = Sentences.of(ids)
    assert ids_of(sentences) == ids
    assert len(sentences) == len(ids)
    T = max(map(len, ids)) + more
    padded = torch.full((len(ids), T), -1)
    for row, words in zip(padded, ids, strict=True):
        row[: len(words)] = torch.tensor(words)
    lengths = torch.tensor([len(words) for words in ids])
    packed = Sentences.padded(padded, lengths)
    assert torch.equal(packed.words, sentences.words)
    # padding does not make the layout wider
    assert max(map(len, ids)) == packed.layout.T
    vectors = Sentences.padded(torch.stack([padded, 2 * padded], dim=-1), lengths).words
    assert torch.equal(vectors, torch.stack([packed.words, 2 * packed.words], dim=-1))


@settings(max_examples=20)
@given(splits(), st.booleans())
def test_batches_are_restored_from_their_numbers(drawn, rounded):
    split, rows = drawn
    data = DeviceSplit(split, CPU)
    bounds, numbers = data.place(rows, rounded)
    assert numbers.dtype == np.int64
    batch, expected = data.read(torch.from_numpy(numbers), bounds), split.batch(rows)
    assert torch.equal(batch.own, expected.own)
    assert torch.equal(batch.targets, expected.targets)
    ids, layout, plain = batch.sentences.words, batch.sentences.layout, expected.sentences.layout
    assert ids.dtype == torch.int64
    assert torch.equal(ids[: plain.N], expected.sentences.words)
    assert not ids[plain.N :].any()
    assert torch.equal(
        layout.start, plain.start[[*range(plain.T), *[-1] * (1 + bounds.T - plain.T)]]
    )
    for name in ("lengths", "sentence", "rank"):
        assert torch.equal(getattr(layout, name), getattr(plain, name)), name
    assert (layout.B, layout.T, layout.cap, layout.most_symbols) == bounds
    lengths = plain.own_lengths().numpy()
    assert bounds == Bounds.of(lengths, rounded)
    longest, words = int(lengths.max()), int(lengths.sum())
    wide = (rounded_T(longest), rounded_cap(words)) if rounded else (max(2, longest), words)
    assert bounds == (len(lengths), *wide, 0)


def test_rounding_of_shapes():
    for rounded, sizes, slack in (
        (rounded_T, range(1, 300), 2),
        (rounded_cap, [*range(1, 5000), 10**6, 10**6 + 1, 2**20, 2**20 + 1], 64),
    ):
        results = [rounded(size) for size in sizes]
        assert results == sorted(results)
        assert results == [rounded(size) for size in results]
        for size, result in zip(sizes, results, strict=True):
            assert size <= result < max(size + slack, size * 9 / 8 + 1)
    assert [rounded_T(T) for T in (1, 19, 21, 33, 65)] == [2, 19, 22, 36, 72]
    assert len({rounded_cap(words) for words in range(1, 5000)}) < 40


def test_batches_of_similar_sizes_share_bounds():
    lengths = [25, 26, 26, 3, 4, 2]
    split = Split(
        np.arange(1, sum(lengths) + 1, dtype=np.uint16),
        np.cumsum([0, *lengths]),
        np.arange(6, dtype=np.int32)[:, None],
        np.zeros(6, dtype=np.int64),
    )
    data = DeviceSplit(split, CPU)
    (one, first), (other, second) = data.place(np.array([0, 3])), data.place(np.array([1, 4]))
    assert one == other == Bounds(2, 26, 64)
    assert first.shape == second.shape
    assert data.place(np.array([0, 3]), rounded=False)[0] == Bounds(2, 25, 28)
    assert data.place(np.array([1, 2, 4]))[0] != one
