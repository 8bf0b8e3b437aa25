"""Splits of ids and their batches."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gumbeltree.data import Split, by_length, shuffled
from tests.models import ids_of

# three sentences, the middle one shared by two examples
WORDS = np.array([7, 8, 9, 5, 65_535, 1], dtype=np.uint16)
STARTS = np.array([0, 3, 4, 6])
SINGLE = Split(WORDS, STARTS, np.array([[1], [0], [1], [2]], np.int32), np.array([0, 1, 0, 2]))
PAIRS = Split(WORDS, STARTS, np.array([[0, 1], [1, 1], [2, 0]], np.int32), np.array([2, 0, 1]))


def split_of(lengths, kind=np.uint16):
    """A split whose sentence i has words of its own, `lengths[i]` of them; a row is an example."""
    lengths = np.array(lengths, dtype=np.int64)
    flat = lengths.ravel()
    starts = np.concatenate([[0], np.cumsum(flat)])
    words = np.arange(1, starts[-1] + 1).astype(kind)
    sentences = np.arange(flat.size, dtype=np.int32).reshape(len(lengths), -1)
    return Split(words, starts, sentences, np.arange(len(lengths)) % 3)


def columns(rows, widest=30):
    """Lengths of examples of one sentence or of two."""
    length = st.integers(1, widest)
    return st.lists(length.map(lambda n: [n]), min_size=1, max_size=rows) | st.lists(
        st.tuples(length, length).map(list), min_size=1, max_size=rows
    )


def long_tailed(rows, seed=0):
    generator = np.random.default_rng(seed)
    return split_of(1 + np.minimum(generator.geometric(0.08, (rows, 1)), 60), np.uint32)


# a batch


def test_batch_of_single_sentences():
    batch = SINGLE.batch([3, 1, 0])
    assert ids_of(batch.sentences) == [[65_535, 1], [7, 8, 9], [5]]
    # word by word, the longest sentence first
    assert batch.sentences.words.tolist() == [7, 65_535, 5, 8, 1, 9]
    layout = batch.sentences.layout
    assert list(layout.active) == [3, 2, 1]
    assert layout.lengths.tolist() == [3, 2, 1]
    assert layout.own_lengths().tolist() == [2, 3, 1]
    assert batch.targets.tolist() == [2, 1, 0]
    assert batch.own.tolist() == [3, 1, 0]
    for x in (batch.sentences.words, layout.lengths, batch.targets, batch.own):
        assert x.dtype == torch.int64


def test_batch_of_pairs_holds_first_then_second_sentences():
    batch = PAIRS.batch(np.array([0, 1]))
    assert ids_of(batch.sentences) == [[7, 8, 9], [5], [5], [5]]
    assert batch.own.tolist() == [0, 1, 3, 4]
    assert batch.targets.tolist() == [2, 0]


def test_a_batch_does_not_share_memory_with_its_split():
    split = split_of([[2], [1]])
    batch = split.batch([0, 1])
    batch.sentences.words.zero_()
    batch.targets.fill_(9)
    assert split.words.tolist() == [1, 2, 3]
    assert split.labels.tolist() == [0, 1]


def test_lengths_of_examples():
    assert len(SINGLE) == 4
    assert SINGLE.lengths.tolist() == [[1], [3], [1], [2]]
    assert PAIRS.lengths.tolist() == [[3, 1], [1, 1], [2, 3]]


def test_a_batch_on_a_device():
    batch = PAIRS.batch([2, 0], torch.device("meta"))
    layout = batch.sentences.layout
    tensors = (batch.own, batch.targets, batch.sentences.words, layout.start, layout.rank)
    assert {x.device.type for x in tensors} == {"meta"}
    # what the host knows stays there
    assert list(layout.active) == [4, 3, 2]


@given(columns(12), st.data())
def test_batches_keep_every_word_in_place(lengths, data):
    split = split_of(lengths)
    rows = data.draw(st.permutations(range(len(split))))
    batch = split.batch(rows)
    sentences = split.sentences[rows].T.reshape(-1)
    expected = [split.words[split.starts[i] : split.starts[i + 1]].tolist() for i in sentences]
    assert ids_of(batch.sentences) == expected
    assert [len(words) for words in expected] == np.array(lengths)[rows].T.reshape(-1).tolist()


# by length


@given(columns(40), st.integers(1, 150), st.integers(1, 12))
def test_batches_by_length_respect_both_budgets(lengths, words, examples):
    split = split_of(lengths)
    batches = list(by_length(split, words, examples))
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(split)))
    sizes = [max(lengths[row]) * len(lengths[row]) for row in np.concatenate(batches)]
    assert sizes == sorted(sizes)
    for batch in batches:
        assert 1 <= len(batch) <= examples
        padded = len(lengths[0]) * len(batch) * max(max(lengths[row]) for row in batch)
        assert padded <= words or len(batch) == 1


def test_budget_counts_both_sentences_of_a_pair():
    # padded to 4 and 4, three pairs are 24 words
    split = split_of([[4, 1], [1, 4], [4, 4]])
    assert [len(batch) for batch in by_length(split, 24)] == [3]
    assert [len(batch) for batch in by_length(split, 23)] == [2, 1]


# shuffled


@given(
    columns(60, 9), st.integers(1, 8), st.integers(0, 2**31), st.integers(0, 20), st.integers(1, 4)
)
def test_shuffle_yields_every_row_once(lengths, batch_size, seed, epoch, pool):
    split = split_of(lengths)
    batches = shuffled(split, batch_size, seed, epoch, pool=pool)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(split)))
    sizes = sorted(len(batch) for batch in batches)
    # at most one batch is not full
    full, rest = divmod(len(split), batch_size)
    assert sizes == ([rest] if rest else []) + [batch_size] * full


@given(columns(60, 9), st.integers(1, 8), st.integers(0, 9), st.floats(0.01, 1), st.booleans())
def test_shuffle_can_be_limited_to_the_shortest(lengths, batch_size, seed, share, grouped):
    split = split_of(lengths)
    rows = np.concatenate(shuffled(split, batch_size, seed, 0, grouped=grouped, share=share))
    assert len(set(rows.tolist())) == len(rows) == math.ceil(share * len(split))
    longest = split.lengths.max(axis=1)
    left = np.delete(longest, rows)
    if not grouped and len(left):
        assert longest[rows].max() <= left.min()


def as_lists(batches):
    return [batch.tolist() for batch in batches]


def test_shuffle_depends_on_seed_and_epoch():
    split = long_tailed(500)
    first = as_lists(shuffled(split, 16, 3, 5, pool=10))
    assert as_lists(shuffled(split, 16, 3, 5, pool=10)) == first
    for seed, epoch in ((3, 6), (4, 5), (5, 3), (8, 0), (0, 8)):
        other = as_lists(shuffled(split, 16, seed, epoch, pool=10))
        assert other != first
        # not just the same batches in another order
        assert not {frozenset(batch) for batch in other} & {frozenset(batch) for batch in first}


def test_shuffle_is_the_same_in_all_versions():
    # published results name their seeds
    split = split_of([[n % 5 + 1] for n in range(12)])
    batches = [[11, 3, 8, 4], [10, 1, 7, 2], [0, 5, 6, 9]]
    assert as_lists(shuffled(split, 4, 1, 2, pool=2)) == batches


@given(columns(60, 9), st.integers(1, 8), st.integers(0, 2**31), st.integers(1, 4))
def test_grouped_batches_keep_first_sentences_together(lengths, batch_size, seed, pool):
    split = split_of(lengths)
    numbers = np.random.default_rng(seed).integers(0, 7, len(split)).astype(np.int32)
    numbers = np.minimum(numbers, len(split.starts) - 2)
    sentences = split.sentences.copy()
    sentences[:, 0] = numbers
    split = dataclasses.replace(split, sentences=sentences)
    batches = shuffled(split, batch_size, seed, 0, pool=pool, grouped=True)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(split)))
    for number in set(numbers.tolist()):
        # a group is divided only where a batch, or the examples sorted together, end
        parts = [rows for rows in batches if number in numbers[rows]]
        size = int((numbers == number).sum())
        assert len(parts) <= 2 + -(-size // batch_size)


def test_grouped_batches_by_hand():
    # three examples of each of four first sentences, which are next to each other in a batch
    split = split_of([[2, 3]] * 12)
    sentences = split.sentences.copy()
    sentences[:, 0] = np.arange(12) % 4
    split = dataclasses.replace(split, sentences=sentences)
    batches = shuffled(split, 6, 0, 0, grouped=True)
    for rows in batches:
        assert sorted(np.bincount(sentences[rows, 0], minlength=4).tolist()) == [0, 0, 3, 3]
    assert as_lists(batches) != as_lists(shuffled(split, 6, 0, 1, grouped=True))


def test_shuffle_needs_little_padding():
    split = long_tailed(6_400)
    words = int(split.lengths.sum())

    def padded(batches):
        return sum(int(split.lengths[rows].max()) * len(rows) for rows in batches)

    order = np.random.default_rng(0).permutation(len(split))
    at_random = padded(order[i : i + 64] for i in range(0, len(order), 64)) / words
    buckets = padded(shuffled(split, 64, 0, 0)) / words
    assert at_random > 2.5
    assert buckets < 1.15


def test_pairs_are_sorted_by_their_longer_sentence():
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 50, (3_200, 2))
    longer = lengths.max(axis=1)
    batches = shuffled(split_of(lengths, np.uint32), 32, 0, 0)
    assert sum(longer[rows].max() * len(rows) for rows in batches) < 1.1 * longer.sum()


def test_batches_are_not_sorted_by_length():
    split = long_tailed(6_400)
    longest = np.array([split.lengths[rows].max() for rows in shuffled(split, 64, 0, 0)])
    steps = np.sign(np.diff(longest))
    assert abs(np.corrcoef(np.arange(len(longest)), longest)[0, 1]) < 0.3
    assert 20 < (steps > 0).sum() < 80


@pytest.mark.parametrize(
    ("examples", "least", "sizes"),
    [
        (9, 1, [1, 4, 4]),
        (9, 2, [4, 5]),
        (10, 2, [2, 4, 4]),
        (11, 4, [4, 7]),
        (8, 4, [4, 4]),
        (1, 2, [1]),
        (3, 4, [3]),
        (4, 4, [4]),
    ],
)
def test_a_small_last_batch_joins_another(examples, least, sizes):
    split = split_of([[n % 7 + 1] for n in range(examples)])
    for epoch in range(5):
        batches = shuffled(split, 4, 0, epoch, least=least)
        assert sorted(map(len, batches)) == sizes
        assert sorted(np.concatenate(batches).tolist()) == list(range(examples))


def test_examples_meet_others_over_the_epochs():
    # lengths 1..12, eight of each; globally sorted, examples would only meet their neighbours
    split = split_of([[n % 12 + 1] for n in range(96)])
    partners: dict[int, set[int]] = {row: set() for row in range(96)}
    for epoch in range(200):
        for batch in shuffled(split, 4, 0, epoch, pool=3):
            for row in batch.tolist():
                partners[row] |= set(batch.tolist())
    for row, met in partners.items():
        # all examples of similar length, and about half of all
        length = row % 12
        assert met >= {other for other in range(96) if abs(other % 12 - length) <= 1}
        assert len(met) > 40


def test_examples_of_one_length_meet_others_in_each_epoch():
    split = split_of([[4]] * 64)
    seen = {
        frozenset(batch.tolist()) for epoch in range(10) for batch in shuffled(split, 8, 0, epoch)
    }
    assert len(seen) == 80


def test_the_incomplete_batch_is_anywhere():
    split = split_of([[1]] * 41)
    places = {
        [len(batch) for batch in shuffled(split, 8, 0, epoch)].index(1) for epoch in range(60)
    }
    assert places == set(range(6))
