"""Test trees that do not depend on the words, and the encoder that uses them."""

import copy
import pickle

import pytest
import torch

from gumbeltree import EncoderConfig, GumbelTreeEncoder, Tree, load
from gumbeltree.config import FixedTreeConfig, load_recipe, with_settings
from gumbeltree.data.compile import prepare, with_labels
from gumbeltree.nn.encoders.fixed_tree import FixedTreeEncoder, FixedTrees
from gumbeltree.noise import gumbel_noise
from gumbeltree.ops.merge import IMPLEMENTATIONS
from gumbeltree.training.loop import train
from gumbeltree.training.start import new_model

KINDS = ["left", "right", "balanced", "random"]
MADE = {
    "left": Tree.left_branching,
    "right": Tree.right_branching,
    "balanced": Tree.balanced,
}


def fixed_order(kind, lengths, T, noise=None):
    trees = FixedTrees(kind)
    trees.prepare(T, lengths.device)
    return trees(lengths, T, noise)


def words(count):
    return [f"w{i}" for i in range(count)]


def check_merges(order, lengths):
    """Check that every step merges two existing neighbours and none follows the end."""
    for row, length in zip(order.tolist(), lengths.tolist(), strict=True):
        Tree(words(length), row[: length - 1])
        assert set(row[length - 1 :]) <= {-1}


@pytest.mark.parametrize("kind", MADE)
def test_trees_of_every_length(kind):
    longest = 40
    lengths = torch.arange(1, longest + 1)
    # in any order, and with noise, which has no effect
    lengths = lengths[torch.randperm(longest)]
    order = fixed_order(kind, lengths, longest, gumbel_noise((longest,) + (longest - 1,) * 2))
    assert order.dtype == torch.int64
    assert order.shape == (longest, longest - 1)
    for row, length in zip(order.tolist(), lengths.tolist(), strict=True):
        expected = MADE[kind](words(length))
        assert Tree(words(length), row[: length - 1]) == expected
        assert row[: length - 1] == list(expected.order)
        assert set(row[length - 1 :]) <= {-1}
    assert torch.equal(fixed_order(kind, lengths, longest), order)


@pytest.mark.parametrize("kind", KINDS)
def test_trees_do_not_depend_on_the_batch(kind):
    lengths = torch.tensor([7, 1, 2, 12, 7])
    together = fixed_order(kind, lengths, 15)
    check_merges(together, lengths)
    assert torch.equal(together[0], together[4])
    for place, length in enumerate(lengths):
        alone = fixed_order(kind, length[None], int(length))
        assert alone.shape == (1, length - 1)
        assert torch.equal(alone[0], together[place, : length - 1])


def test_random_trees_without_noise_depend_on_the_length():
    lengths = torch.arange(1, 31)
    order = fixed_order("random", lengths, 30)
    check_merges(order, lengths)
    assert torch.equal(fixed_order("random", lengths, 30), order)
    # none of the regular trees, which are unlikely by chance
    for kind in MADE:
        other = fixed_order(kind, lengths, 30)
        assert not (order[7:] == other[7:]).all(1).any()
    # trees of different lengths differ, and their first merges are spread out
    assert len({tuple(row[:5]) for row in order[7:].tolist()}) > 15
    place = (order[7:, 0] + 0.5) / (lengths[7:] - 1)
    assert place.min() < 0.25
    assert place.max() > 0.75


def test_random_trees_with_noise_are_uniform():
    count, length = 8_000, 6
    generator = torch.Generator().manual_seed(7)
    noise = gumbel_noise((count, 8, 8), generator=generator)
    lengths = torch.full((count,), length)
    order = fixed_order("random", lengths, 9, noise)
    check_merges(order, lengths)
    for step in range(length - 1):
        left = length - 1 - step
        counts = torch.bincount(order[:, step], minlength=left).double()
        assert len(counts) == left
        # five standard errors of a count
        p = 1 / left
        bound = 5 * (count * p * (1 - p)) ** 0.5
        assert ((counts - count * p).abs() <= bound).all(), counts
    # two steps are independent: all 20 pairs of positions are equally frequent
    pairs = torch.bincount(order[:, 0] * 4 + order[:, 1], minlength=20).double()
    assert ((pairs - count / 20).abs() < 5 * (count / 20) ** 0.5).all()
    other = fixed_order("random", lengths, 9, gumbel_noise((count, 8, 8), generator=generator))
    # two draws are equal with probability 1 / 5!
    assert 0.003 < (order == other).all(1).double().mean() < 0.02
    # noise outside the sentence is never read
    noise[:, :, length - 1 :] = torch.inf
    noise[:, length - 1 :] = torch.nan
    assert torch.equal(fixed_order("random", lengths, 9, noise), order)


# The encoder


def encoder_of(trees, impl, leaf="affine", seed=0):
    torch.manual_seed(seed)
    encoder = FixedTreeEncoder(FixedTreeConfig(3, 4, trees=trees, impl=impl, leaf=leaf)).double()
    for p in encoder.parameters():
        torch.nn.init.normal_(p, std=0.8)
    return encoder


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("trees", "training"),
    [("left", True), ("right", False), ("balanced", True), ("random", True), ("random", False)],
)
def test_encoder_follows_the_trees(impl, trees, training):
    if impl == "fused":
        pytest.importorskip("triton")
        if torch.cuda.is_available():
            pytest.skip("compiled kernels do not support float64")
    encoder = encoder_of(trees, impl).train(training)
    lengths = torch.tensor([3, 4, 1])
    embedded = torch.randn(3, 5, 3, dtype=torch.float64)
    noise = gumbel_noise((3, 4, 4))
    encoding = encoder(embedded, lengths, noise=noise)
    expected = fixed_order(trees, lengths, 5, noise if training else None)
    assert torch.equal(encoding.order, expected)
    # every parameter gets a gradient
    gradients = torch.autograd.grad(
        encoding.vector.square().sum(), list(encoder.parameters()), allow_unused=True
    )
    for (name, _), gradient in zip(encoder.named_parameters(), gradients, strict=True):
        assert gradient is not None, name
        assert bool((gradient != 0).any()), name
    # the same as a learned encoder with forced merges
    learned = GumbelTreeEncoder(EncoderConfig(3, 4, leaf="affine", impl="exact")).double()
    missing, unexpected = learned.load_state_dict(encoder.state_dict(), strict=False)
    assert (missing, unexpected) == (["query"], [])
    forced = learned(embedded, lengths, order=expected, sample=False)
    torch.testing.assert_close(encoding.vector, forced.vector, rtol=1e-12, atol=1e-12)
    assert torch.equal(forced.order, expected)


def test_explicit_merges_take_precedence():
    order = torch.tensor([[1, 2, 1, 0], [0, 0, -1, -1]])
    embedded = torch.randn(2, 5, 3, dtype=torch.float64)
    encoding = encoder_of("left", "exact")(embedded, torch.tensor([5, 3]), order=order)
    assert torch.equal(encoding.order, order)


def test_random_trees_are_resampled_in_training_only():
    encoder = encoder_of("random", "exact")
    embedded, lengths = torch.randn(8, 12, 3, dtype=torch.float64), torch.full((8,), 12)
    first, second = (encoder(embedded, lengths).order for _ in range(2))
    assert not torch.equal(first, second)
    assert len({tuple(row) for row in first.tolist()}) == 8
    encoder.eval()
    first, second = (encoder(embedded, lengths).order for _ in range(2))
    assert torch.equal(first, second)
    assert len({tuple(row) for row in first.tolist()}) == 1


def test_rejects_unknown_trees():
    with pytest.raises(ValueError, match=r"`model.encoder.trees` must be .*balanced.* 'lefty'"):
        with_settings(load_recipe("demo"), ["encoder.trees=lefty"])


# A model


@pytest.mark.parametrize("trees", ["left", "random"])
def test_model_with_fixed_trees_is_trained_and_loaded(tmp_path, monkeypatch, trees):
    monkeypatch.setenv("GUMBELTREE_HOME", str(tmp_path / "home"))
    settings = [
        "data.generate=120",
        "epochs=1",
        "batch_size=20",
        "embedding_dim=5",
        "encoder.hidden_dim=6",
        "head.hidden_dim=5",
        f"encoder.trees={trees}",
    ]
    recipe = with_settings(load_recipe("demo"), settings)
    prepared = prepare(recipe)
    result = train(recipe, prepared, tmp_path / "run")
    assert 0 <= result["dev_accuracy"] <= 1
    model = load(tmp_path / "run")
    assert model.config.encoder.trees == trees
    text = "one two three four five"
    order = fixed_order(trees, torch.tensor([5]), 5)[0].tolist()
    assert model.parse(text) == Tree(text.split(), order)
    start = new_model(with_labels(recipe, prepared).model, prepared, recipe.training.seed)
    assert "encoder.query" not in model.state_dict()
    assert not torch.equal(model.encoder.cell.weight, start.encoder.cell.weight)


def test_tables_are_cached_and_not_created_in_a_graph(monkeypatch):
    trees, cpu = FixedTrees("balanced"), torch.device("cpu")
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        with pytest.raises(RuntimeError, match="call `prepare` before"):
            trees.prepare(5, torch.device("cuda:5"))
        # nothing is captured on a CPU
        trees.prepare(5, cpu)
    (first,) = trees.tables.values()
    # a table serves up to eight words and stays at its address for graphs that read it
    trees.prepare(8, cpu)
    assert list(trees.tables.values()) == [first]
    trees.prepare(9, cpu)
    assert trees.tables[8, cpu] is first
    assert trees.tables[16, cpu].shape == (17, 15)
    assert copy.deepcopy(trees).tables == {}
    assert pickle.loads(pickle.dumps(trees)).kind == "balanced"
