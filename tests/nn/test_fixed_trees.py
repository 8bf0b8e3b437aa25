"""Test trees that are not learned, and the encoder that uses them."""

import copy
import json
import pickle

import numpy as np
import pytest
import torch

from gumbeltree import EncoderConfig, GumbelTreeEncoder, Tree, load
from gumbeltree.config import FixedTreeConfig, load_recipe, with_settings
from gumbeltree.data.compile import prepare, with_labels
from gumbeltree.data.examples import Examples
from gumbeltree.evaluation import evaluate, split_of
from gumbeltree.nn.encoders.fixed_tree import FixedTreeEncoder, FixedTrees
from gumbeltree.noise import gumbel_noise
from gumbeltree.ops.merge import IMPLEMENTATIONS
from gumbeltree.tasks import listops, logic
from gumbeltree.tasks.listops import ListOps
from gumbeltree.tasks.task import Example
from gumbeltree.text.files import Report
from gumbeltree.text.ids import TextReader
from gumbeltree.text.tokenizer import whitespace_tokenizer
from gumbeltree.training.loop import train
from gumbeltree.training.start import new_model
from tests.commands import run

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


# gold trees

EXPRESSIONS = (
    *("[MAX 2 9 ]", "[SM 1 2 [MIN 4 7 ] 3 ]", "5", "[MED [SM 4 5 ] 1 [MAX 0 2 ] ]", "[MIN 8 3 ]"),
    *("[MAX [MIN 1 2 ] [SM 3 4 ] ]", "[SM 6 5 ]", "[MED 1 2 [MAX 1 0 ] ]"),
)
PAIRS = ("<\t( a ( and b ) )\ta", "^\ta\t( not a )", "=\t( not ( not b ) )\tb", "#\ta\tb")


def listops_file(path, expressions=EXPRESSIONS):
    lines = [f"{listops.evaluate(text.split())}\t{text}\n" for text in expressions]
    path.write_text("".join(lines))
    return path


def gold_recipe(*settings):
    sizes = ["embedding_dim=5", "encoder.hidden_dim=6", "head.hidden_dim=5", "batch_size=3"]
    kind = ["encoder.kind=fixed_tree", "trees=gold", "test_fraction=0"]
    return with_settings(load_recipe("listops"), [*kind, *sizes, "epochs=2", *settings])


@pytest.fixture
def file(tmp_path):
    return listops_file(tmp_path / "train.tsv")


@pytest.mark.parametrize("cell", ["treelstm", "gated"])
def test_gold_trees_are_followed_in_training_and_evaluation(tmp_path, file, cell):
    leaf = "norm" if cell == "gated" else "affine"
    recipe = gold_recipe(f"cell={cell}", f"leaf={leaf}", "learning_rate=0.1", "best_by=loss")
    prepared = prepare(recipe, file, dev=file)
    result = train(recipe, prepared, tmp_path / "run")
    model = load(tmp_path / "run")
    # the merges that training recorded for its best model
    with np.load(tmp_path / "run" / "dev_orders.npz") as found:
        ends = np.cumsum(found["length"].astype(int) - 1)
        orders = [x.tolist() for x in np.split(found["order"], ends[:-1])]
    gold = [list(listops.tree_of(text.split()).order) for text in EXPRESSIONS]
    assert sorted(orders) == sorted(gold)
    # the same model with its merges forced by hand
    learned = GumbelTreeEncoder(
        EncoderConfig(5, 6, leaf=model.config.encoder.leaf, cell=model.config.encoder.cell)
    ).eval()
    learned.load_state_dict(model.encoder.state_dict(), strict=False)

    @torch.no_grad()
    def loss(orders):
        losses = []
        for text, order in zip(EXPRESSIONS, orders, strict=True):
            ids = [model.tokenizer.token_to_id(token) for token in text.split()]
            merges = torch.tensor([order], dtype=torch.int64)
            encoding = learned(
                model.embedding.weight[ids][None], torch.tensor([len(ids)]), order=merges
            )
            target = torch.tensor([listops.evaluate(text.split())])
            losses.append(float(model.head.loss(model.head(encoding), target)))
        return np.mean(losses)

    assert result["dev_loss"] == pytest.approx(loss(gold), rel=1e-6)
    right = [[*range(len(order))][::-1] for order in gold]
    assert result["dev_loss"] != pytest.approx(loss(right), rel=1e-5)
    examples = list(ListOps().read(file, "test", Report()))
    split = split_of(model, Examples(examples, trees=True), pretokenized=True)
    assert evaluate(model, split).loss == pytest.approx(loss(gold), rel=1e-6)


def test_evaluate_reads_the_gold_trees_of_a_file(tmp_path, file):
    run("train", "listops", "--set", "trees=gold", "--data", file, "--dev", file, "--out",
        tmp_path / "run", "--set", "epochs=1", "--set", "test_fraction=0", "--quiet")  # fmt: skip
    other = listops_file(tmp_path / "other.tsv", ["[SM 6 5 3 2 ]", "[MAX [MIN 1 2 ] 4 ]"])
    found = json.loads(
        run("evaluate", tmp_path / "run", "--data", other, "--data", file, "--json").out
    )
    assert [about["examples"] for about in found] == [2, 8]


@pytest.mark.parametrize("runtime", ["torch", "numpy"])
def test_text_without_gold_trees_is_an_error(tmp_path, file, runtime):
    recipe = gold_recipe("epochs=1")
    train(recipe, prepare(recipe, file, dev=file), tmp_path / "run")
    model = load(tmp_path / "run", runtime=runtime)
    for use in (model.predict, model.encode, model.parse_many):
        with pytest.raises(ValueError, match="follows gold trees"):
            use(["[MAX 2 9 ]"])
    if runtime == "torch":
        with pytest.raises(ValueError, match="follows gold trees"):
            evaluate(model, ["[MAX 2 9 ]"], ["9"])


def test_gold_trees_are_compiled_only_for_encoders_that_need_them(tmp_path, file):
    learned = with_settings(
        load_recipe("listops"), ["embedding_dim=5", "encoder.hidden_dim=6", "test_fraction=0"]
    )
    assert all(x.orders is None for x in prepare(learned, file, dev=file).splits.values())
    generated = prepare(gold_recipe("generate=40", "test_fraction=0.1"))
    for split in generated.splits.values():
        assert len(split.orders) == len(split.words) - len(split.starts) + 1
    # data compiled with trees serves other encoders, which find their own
    settings = ["epochs=1", "batch_size=3"]
    recipe = with_settings(learned, settings)
    data = [prepare(r, file, dev=file) for r in (learned, gold_recipe())]
    losses = [train(recipe, x, tmp_path / str(i))["dev_loss"] for i, x in enumerate(data)]
    assert losses[0] == losses[1]


def test_pairs_have_gold_trees(tmp_path):
    path = tmp_path / "logic.tsv"
    path.write_text("".join(f"{line}\n" for line in PAIRS))
    labels = f"head.labels={json.dumps(logic.LABELS)}"
    recipe = gold_recipe("data.task=logic", "head.kind=pair", labels, "epochs=1")
    prepared = prepare(recipe, path, dev=path)
    batch = prepared.splits["train"].batch(range(4))
    texts = [text for column in (1, 2) for text in (x.split("\t")[column] for x in PAIRS)]
    for text, order in zip(texts, batch.sentences.order.tolist(), strict=True):
        wanted = logic.read_formula(text).order
        assert tuple(order[: len(wanted)]) == wanted
        assert set(order[len(wanted) :]) <= {-1}
    assert train(recipe, prepared, tmp_path / "run")["dev_loss"] > 0


def test_resumed_training_with_gold_trees_gives_the_same_bits(tmp_path, file):
    recipe = gold_recipe("checkpoint_seconds=0", "evaluations=3")
    prepared = prepare(recipe, file, dev=file)
    train(recipe, prepared, tmp_path / "whole")

    def stop(step):
        if step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe, prepared, tmp_path / "parts", on_step=stop)
    train(recipe, prepared, tmp_path / "parts", resume=True)
    one, other = (load(tmp_path / name).state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(x, other[name]) for name, x in one.items())


def test_rejects_data_without_fitting_gold_trees(tmp_path, file):
    table = tmp_path / "table.tsv"
    table.write_text("text\tlabel\n" + "a good film\tyes\na bad film\tno\n" * 8)
    recipe = with_settings(
        load_recipe("text"), ["trees=gold", "data.text=text", "data.label=label"]
    )
    with pytest.raises(ValueError, match="train: the encoder needs gold trees, but these table"):
        prepare(recipe, table)
    with pytest.raises(ValueError, match=r"has 9 words, but model.max_words is 7; a truncated"):
        prepare(gold_recipe("max_words=7"), file, dev=file)
    bare = prepare(with_settings(gold_recipe(), ["trees=left"]), file, dev=file)
    with pytest.raises(ValueError, match="follows gold trees"):
        train(gold_recipe(), bare, tmp_path / "run")
    tree = Tree.left_branching(["a", "b", "c"])
    examples = Examples([Example(("a b",), "1", (tree,))], trees=True)
    reader = TextReader(whitespace_tokenizer(["a", "b"], False), 9)
    with pytest.raises(
        ValueError, match="gold tree of 'a b' has 3 words, but the tokenizer finds 2"
    ):
        examples.split(reader, int, np.int64, trees=True)
    examples = Examples([Example(("a", "a b"), "1", (None, tree))], trees=True)
    with pytest.raises(ValueError, match="'a' has no gold tree"):
        examples.split(reader, int, np.int64, trees=True)
