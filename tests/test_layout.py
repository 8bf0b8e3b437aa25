"""Rows of words: where each word and each node stands, told by loops; bounds that graphs share."""

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


def layout_of(lengths, more_T=0, more_rows=0, known=True):
    """Return a layout, within bounds that may be wider than it needs."""
    arrangement = Arrangement.of(np.array(lengths), max(lengths) + more_T)
    exact = Layout.of(arrangement)
    if known:
        return exact
    start, rest = exact.start, (exact.lengths, exact.sentence, exact.rank)
    return Layout(exact.N + more_rows, start, *rest)


def rows_by_hand(lengths):
    """Return sentence and position of each row: word by word, the longest sentence first."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return [(i, t) for t in range(max(lengths)) for i in order if t < lengths[i]]


@given(LENGTHS, st.integers(0, 3))
def test_every_word_has_its_row(lengths, more_T):
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


@given(LENGTHS, st.integers(0, 3))
def test_words_and_nodes_are_laid_out(lengths, more_T):
    layout = layout_of(lengths, more_T)
    T, B = layout.T, layout.B
    words = layout.unpack(torch.arange(1, layout.N + 1))
    nodes = layout.unpack_nodes(torch.arange(1, layout.nodes + 1))
    expected = torch.zeros(B, 2 * T - 1, dtype=torch.int64)
    for row, (i, t) in enumerate(rows_by_hand(lengths)):
        expected[i, t] = row + 1
    # nodes behind the words, step by step, the longest sentence first
    made = [(i, t - 1) for i, t in rows_by_hand(lengths) if t > 0]
    for number, (i, t) in enumerate(made):
        expected[i, T + t] = layout.N + number + 1
    assert torch.equal(words, expected[:, :T])
    assert torch.equal(nodes, expected)
    assert torch.equal(layout.node_mask(), expected > 0)
    roots = [layout.N + made.index((i, n - 2)) if n > 1 else None for i, n in enumerate(lengths)]
    first = [i for i, t in rows_by_hand(lengths) if t == 0]
    found = layout.root_rows().tolist()
    for rank, i in enumerate(first):
        assert found[rank] == (rank if roots[i] is None else roots[i])


@given(LENGTHS, st.integers(0, 3), st.integers(0, 5))
def test_what_kernels_read(lengths, more_T, more_rows):
    layout = layout_of(lengths, more_T, more_rows, known=False)
    found, cap, T = layout.tables, layout.cap, layout.T
    rows = rows_by_hand(lengths)
    assert torch.equal(found.start.long(), layout.start)
    assert torch.equal(found.lengths.long(), layout.lengths)
    for name in ("start", "lengths", "previous"):
        assert getattr(found, name).dtype == torch.int32, name
    assert found.previous.shape == (cap,)
    for row, (i, t) in enumerate(rows):
        if t > 0:
            assert found.previous[row] == rows.index((i, t - 1))
    # merge r = row of word t + 1 makes node cap + r
    nodes, exists = node_rows(layout)
    assert torch.equal(exists, layout.node_mask())
    for i, n in enumerate(lengths):
        own = [rows.index((i, t)) for t in range(n)]
        assert nodes[i, :n].tolist() == own
        assert nodes[i, T : T + n - 1].tolist() == [cap + row for row in own[1:]]
        assert found.roots[layout.rank[i]] == (cap + own[-1] if n > 1 else own[0])
    assert found.roots.dtype == torch.int64


def test_what_was_found_in_inference_mode_serves_training_too():
    with torch.inference_mode():
        layout = layout_of([3, 2], known=False)
        assert not layout.tables.start.is_inference()


def test_in_a_graph_the_host_knows_no_numbers():
    layout = layout_of([3, 2], known=False)
    for name in ("active", "steps", "starts", "merged", "N", "nodes"):
        with pytest.raises(RuntimeError, match="cannot be captured"):
            getattr(layout, name)


@given(LENGTHS, st.integers(0, 70), st.integers(0, 300), st.booleans())
@settings(max_examples=30)
def test_the_kernel_finds_the_same(lengths, more_T, more_rows, with_words):
    pytest.importorskip("triton")
    layout = layout_of(lengths, more_T)
    cap, generator = layout.N + more_rows, torch.Generator().manual_seed(len(lengths))
    words, firsts = None, None
    if with_words:
        words = torch.randint(100, (300,), generator=generator, dtype=torch.int32)
        firsts = torch.randint(300 - max(lengths), (layout.B,), generator=generator)
    expected = _find(cap, layout.start, layout.lengths, words, firsts)
    found = _find_by_kernel(cap, layout.start, layout.lengths, words, firsts)
    for name, x, y in zip(expected._fields, expected, found, strict=True):
        # what stands beyond the words, and before first words, is never used
        inside = slice(layout.B, layout.N) if name == "previous" else slice(None)
        assert torch.equal(x[inside], y[inside]), name
        assert x.dtype == y.dtype, name


IDS = st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=12), min_size=1, max_size=9)


@given(IDS, st.integers(0, 3))
def test_sentences_of_lists_and_of_padded_batches(ids, more):
    sentences = Sentences.of(ids)
    assert ids_of(sentences) == ids
    assert len(sentences) == len(ids)
    T = max(map(len, ids)) + more
    padded = torch.full((len(ids), T), -1)
    for row, words in zip(padded, ids, strict=True):
        row[: len(words)] = torch.tensor(words)
    lengths = torch.tensor([len(words) for words in ids])
    found = Sentences.padded(padded, lengths)
    assert torch.equal(found.words, sentences.words)
    # padding makes no layout wider
    assert max(map(len, ids)) == found.layout.T
    vectors = Sentences.padded(torch.stack([padded, 2 * padded], dim=-1), lengths).words
    assert torch.equal(vectors, torch.stack([found.words, 2 * found.words], dim=-1))


@given(splits(), st.booleans())
def test_numbers_say_which_batch_it_is(drawn, rounded):
    split, rows = drawn
    data = DeviceSplit(split, CPU)
    bounds, numbers = data.place(rows, rounded)
    assert numbers.dtype == np.int64
    found, expected = data.read(torch.from_numpy(numbers), bounds), split.batch(rows)
    assert torch.equal(found.own, expected.own)
    assert torch.equal(found.targets, expected.targets)
    ids, layout, plain = found.sentences.words, found.sentences.layout, expected.sentences.layout
    assert ids.dtype == torch.int64
    assert torch.equal(ids[: plain.N], expected.sentences.words)
    assert not ids[plain.N :].any()
    assert torch.equal(
        layout.start, plain.start[[*range(plain.T), *[-1] * (1 + bounds.T - plain.T)]]
    )
    for name in ("lengths", "sentence", "rank"):
        assert torch.equal(getattr(layout, name), getattr(plain, name)), name
    assert (layout.B, layout.T, layout.cap) == bounds
    lengths = plain.own_lengths().numpy()
    assert bounds == Bounds.of(lengths, rounded)
    longest, words = int(lengths.max()), int(lengths.sum())
    wide = (rounded_T(longest), rounded_cap(words)) if rounded else (max(2, longest), words)
    assert bounds == (len(lengths), *wide)


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
