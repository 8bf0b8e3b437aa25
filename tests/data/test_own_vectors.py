"""Test word vectors computed from the training texts."""

import numpy as np
import pytest

from gumbeltree import load_recipe, prepare, with_settings
from gumbeltree.data.own_vectors import SCALE, own_vectors
from gumbeltree.data.split import Split


def split_of(*sentences):
    """Return a split of sentences, each a list of ids."""
    lengths = [len(sentence) for sentence in sentences]
    return Split(
        np.concatenate(sentences).astype(np.uint16),
        np.cumsum([0, *lengths]),
        np.arange(len(sentences), dtype=np.int32)[:, None],
        np.zeros(len(sentences), np.int64),
    )


def similarity(vectors, a, b):
    return vectors[a] @ vectors[b] / np.linalg.norm(vectors[a]) / np.linalg.norm(vectors[b])


def test_words_with_the_same_neighbours_are_similar():
    # 0 and 1 occur in the same places, between 2 and 3; 4 elsewhere, between 5 and 6
    sentences = [[2, 0, 3], [2, 1, 3], [5, 4, 6], [5, 4, 6]] * 5
    vectors = own_vectors(split_of(*sentences), 9, 6, seed=0)
    assert vectors.shape == (9, 6)
    assert vectors.dtype == np.float32
    assert similarity(vectors, 0, 1) > 0.99
    assert abs(similarity(vectors, 0, 4)) < 0.01
    # ids that do not occur
    assert not vectors[7:].any()
    assert np.square(vectors[:7]).mean() == pytest.approx(SCALE**2, rel=0.01)


def test_products_approximate_the_mutual_information():
    generator = np.random.default_rng(0)
    sentences = [generator.integers(0, 12, size=generator.integers(1, 9)) for _ in range(300)]
    split, size = split_of(*sentences), 12
    counts = np.zeros((size, size))
    for sentence in sentences:
        for i, j in np.ndindex(len(sentence), len(sentence)):
            counts[sentence[i], sentence[j]] += 0 < abs(i - j) <= 4
    share = counts.sum(0) ** 0.75 / (counts.sum(0) ** 0.75).sum()
    information = np.log(np.maximum(counts, 1e-9) / (counts.sum(1)[:, None] * share)).clip(0)
    left, values, _ = np.linalg.svd(information)
    expected = left * np.sqrt(values)
    vectors = own_vectors(split, size, size, seed=0).astype(np.float64)
    scale = SCALE / np.sqrt(np.square(expected).mean())
    np.testing.assert_allclose(vectors @ vectors.T, expected @ expected.T * scale**2, atol=1e-3)


def test_the_seed_determines_the_vectors():
    sentences = [np.random.default_rng(i).integers(0, 50, size=9) for i in range(40)]
    first, again, other = (own_vectors(split_of(*sentences), 52, 5, seed) for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    # another start of the iteration changes little
    assert not np.array_equal(first, other)


def test_single_words_have_no_neighbours():
    assert own_vectors(split_of([0], [1], [2]), 5, 4, seed=0) is None


@pytest.mark.parametrize("own", [True, False])
def test_recipes_choose_the_initial_vectors(tmp_path, own):
    rows = [f"the dog w{i % 7} sleeps\t{'ab'[i % 2]}" for i in range(40)]
    path = tmp_path / "train.tsv"
    path.write_text("\n".join(["text\tlabel", *rows, ""]))
    recipe = with_settings(load_recipe("text"), [f"own_vectors={str(own).lower()}"])
    prepared = prepare(recipe, path)
    if not own:
        assert prepared.vectors is None
        return
    ids = prepared.tokenizer.get_vocab()
    assert prepared.vectors.shape == (len(ids), 100)
    assert similarity(prepared.vectors, ids["w1"], ids["w2"]) > 0.99
    assert not prepared.vectors[[ids["<pad>"], ids["<unk>"]]].any()
