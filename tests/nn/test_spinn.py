"""Test SPINN: counts, a list as the stack, special cases, own trees, data, plain text."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import gumbeltree
from gumbeltree import Draw, Keep, Sentences, Tree
from gumbeltree.analysis.trace import trace_many
from gumbeltree.config import EncoderConfig, TreeLSTMConfig, load_recipe, with_settings
from gumbeltree.data.compile import prepare
from gumbeltree.evaluation import evaluate, split_of
from gumbeltree.nn.encoders.gumbel_tree import GumbelTreeEncoder
from gumbeltree.nn.encoders.spinn import SpinnEncoder
from gumbeltree.nn.evaluation_mode import in_evaluation_mode
from gumbeltree.ops import stack
from gumbeltree.ops.stack.transitions import to_transitions
from gumbeltree.peers import SpinnConfig
from gumbeltree.tasks.task import Example
from tests.commands import run
from tests.models import TEXTS, tiny_model
from tests.nn.equations import check_company, check_same, encoder_of, random_merges, words_of
from tests.nn.shift_reduce import Run, by_list

LENGTHS = [4, 1, 6, 2, 4]
E, D = 3, 4
VARIANTS = {
    "bare": {"tracker": 0},
    "tracked": {"tracker": 2},
    "parsing": {"tracker": 2, "parses": True},
}
each_variant = pytest.mark.parametrize("variant", VARIANTS)
each_impl = pytest.mark.parametrize("impl", ["exact", "reference"])


def made(variant: str, impl: str = "exact") -> SpinnEncoder:
    sizes = {"embedding_dim": E, "hidden_dim": D}
    return encoder_of("spinn", 0.7, impl=impl, **sizes, **VARIANTS[variant]).train()


def words(lengths: list[int] = LENGTHS) -> Tensor:
    return words_of(lengths, E)[0]


def orders(lengths: list[int] = LENGTHS) -> Tensor:
    """Random trees, in the order of a stack."""
    found = random_merges(lengths)
    for row, length in zip(found, lengths, strict=True):
        tree = Tree(map(str, range(length)), row[: length - 1].tolist())
        row[: length - 1] = torch.tensor(Tree.from_brackets(str(tree)).order, dtype=row.dtype)
    return found


def test_counts() -> None:
    counts = {
        (0, False): 181_800 + 901_500,
        (61, False): 181_800 + 234_728 + 901_500 + 91_500,
        (79, True): 181_800 + 309_680 + 901_500 + 118_500 + 318,
    }
    for (tracker, parses), count in counts.items():
        with torch.device("meta"):
            encoder = SpinnEncoder(SpinnConfig(tracker=tracker, parses=parses))
        assert sum(p.numel() for p in encoder.parameters()) == count
        assert sum(p.numel() for p in encoder.leaf.parameters()) == 181_800


def test_outside_graphs_there_are_no_kernels_to_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(stack, "check_kernels")
    given, lengths = {"order": orders()}, torch.tensor(LENGTHS)
    e, fused = made("tracked").eval(), made("tracked", "fused").eval()
    fused.load_state_dict(e.state_dict())
    found = fused(words(), lengths, **given).vector
    torch.testing.assert_close(found, e(words(), lengths, **given).vector)


def test_initial_values() -> None:
    torch.manual_seed(0)
    e = SpinnEncoder(SpinnConfig(50, 40, tracker=30, parses=True))
    narrow = {
        "projection": e.leaf.linear.weight, "actions": e.action.weight,
        "input of the tracker": e.tracker.weight_ih, "state of the tracker": e.tracker.weight_hh,
    }  # fmt: skip
    for name, x in narrow.items():
        assert x.abs().max() <= 0.005, name
        assert x.std().item() == pytest.approx(0.005 / 3**0.5, rel=0.2), name
    # the composition is normal: 200 outputs of one child of 40 units, and of 30 of the tracker
    assert e.cell.weight.std().item() == pytest.approx((4 / 240) ** 0.5, rel=0.05)
    assert e.tracker.to_cell.std().item() == pytest.approx((4 / 230) ** 0.5, rel=0.05)
    # of the gates i, f_l, f_r, g and o
    assert e.cell.bias.view(5, 40).unique(dim=1).tolist() == [[0], [1], [1], [0], [0]]
    for bias in (e.leaf.linear.bias, e.tracker.bias, e.action.bias):
        assert not bias.any()


def leaves_of(e: SpinnEncoder, x: Tensor, lengths: list[int]) -> list[Tensor]:
    """Project each word, then normalise with the statistics of all real words."""
    rows = torch.cat([x[b, :length] for b, length in enumerate(lengths)])
    rows = rows @ e.leaf.linear.weight.t() + e.leaf.linear.bias
    if e.training:
        mean = rows.mean(0)
        variance = (rows - mean).square().mean(0)
    else:
        mean, variance = e.leaf.norm.running_mean, e.leaf.norm.running_var
    rows = (rows - mean) / (variance + e.leaf.norm.eps).sqrt()
    return list((rows * e.leaf.norm.weight + e.leaf.norm.bias).split(lengths))


def run_list(e: SpinnEncoder, leaves: Tensor, transitions: list[int] | None = None) -> Run:
    def scores(top: Tensor, second: Tensor, word: Tensor, h: Tensor, c: Tensor) -> Tensor:
        return e.action.weight @ torch.cat([h, c]) + e.action.bias

    choice = None if e.action is None else scores
    nothing = leaves.new_zeros(3, D)
    return by_list(leaves, e.cell.weight, e.cell.bias, nothing, e.tracker, transitions, choice)


@each_variant
@each_impl
@pytest.mark.parametrize("training", [True, False], ids=["training", "use"])
def test_equals_a_list_as_the_stack(variant: str, impl: str, training: bool) -> None:
    e, order = made(variant, impl).train(training), orders()
    e.leaf.norm.momentum = 0.0
    x = words().requires_grad_()
    # padding is never read
    garbage = torch.arange(max(LENGTHS)) >= torch.tensor(LENGTHS)[:, None]
    found = e(x.masked_fill(garbage[..., None], torch.nan), torch.tensor(LENGTHS), order=order)
    assert torch.equal(found.order, order)
    assert set(found.losses) == ({"actions"} if variant == "parsing" else set())
    assert found.log_prob is None
    runs = [
        run_list(e, leaves, to_transitions(order[b, : len(leaves) - 1].tolist()))
        for b, leaves in enumerate(leaves_of(e, x, LENGTHS))
    ]
    results = [found.vector, *found.losses.values()]
    wanted = [torch.stack([run.nodes[-1][:D] for run in runs])]
    if variant == "parsing":
        wanted.append(torch.stack([run.loss for run in runs]))
    check_same(results, wanted, {"words": x, **dict(e.named_parameters())})


@each_impl
def test_own_trees_equal_those_of_a_list(impl: str) -> None:
    e = made("parsing", impl).eval()
    lengths = [1, 5, 7, 2, 7, 3, 6, 5]
    x = words(lengths)
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            found = e(x, torch.tensor(lengths))
        kinds = set()
        for b, leaves in enumerate(leaves_of(e, x, lengths)):
            run = run_list(e, leaves)
            merges = found.order[b, : lengths[b] - 1].tolist()
            assert to_transitions(merges) == run.actions
            torch.testing.assert_close(found.vector[b], run.nodes[-1][:D], rtol=0, atol=1e-12)
            kinds.add(tuple(merges))
        assert len(kinds) > 5
    assert not found.losses
    check_company(e, lengths)


def test_scores_are_probabilities_of_the_next_merge() -> None:
    e = made("parsing").eval()
    found = e(words(), torch.tensor(LENGTHS), details=True)
    for b, length in enumerate(LENGTHS):
        for t, merge in enumerate(found.order[b, : length - 1].tolist()):
            row = found.scores[b, t]
            assert torch.isfinite(row).tolist() == [p < length - 1 - t for p in range(len(row))]
            assert row[: length - 1 - t].exp().sum().item() == pytest.approx(1)
            assert row[merge] > -50
    # the probability of a tree is that of its actions
    for b, leaves in enumerate(leaves_of(e, words(), LENGTHS)):
        rows = zip(found.scores[b], found.order[b, : len(leaves) - 1].tolist(), strict=False)
        total = sum(float(row[merge]) for row, merge in rows)
        assert total == pytest.approx(run_list(e, leaves).log_prob.item(), abs=1e-9)


def test_the_loss_of_actions_counts_steps_without_a_choice() -> None:
    e = made("parsing")
    torch.nn.init.zeros_(e.action.weight)
    torch.nn.init.zeros_(e.action.bias)
    found = e(words(), torch.tensor(LENGTHS), order=orders())
    # both actions are equally probable at every step
    assert found.losses["actions"].tolist() == pytest.approx([math.log(2)] * len(LENGTHS))


def test_noise_draws_and_forbids_merges() -> None:
    e = made("parsing").eval()
    x, lengths, order = words(), torch.tensor(LENGTHS), orders()
    T = max(LENGTHS)
    noise = torch.full((len(LENGTHS), T - 1, T - 1), -torch.inf)
    for b, t in np.argwhere(order.numpy() >= 0):
        noise[b, t, order[b, t]] = 0.3
    assert torch.equal(e(x, lengths, noise=noise, sample=True).order, order)
    assert not torch.equal(e(x, lengths).order, order)
    # two trees of three words, drawn as often as they are probable
    many = 2000
    one = torch.randn(1, 3, E, dtype=torch.float64)
    probability = float(e(one, torch.tensor([3]), details=True).probabilities[0, 0, 0])
    assert 0.1 < probability < 0.9
    torch.manual_seed(0)
    drawn = -torch.rand(many, 2, 2).log()
    batch = one.expand(many, -1, -1), torch.full((many,), 3)
    table = e(*batch, noise=-drawn.log(), sample=True).order
    keyed = e(*batch, noise=torch.randint(2**32, (many, 2)), sample=True).order
    for found in (table, keyed):
        share = float((found[:, 0] == 0).double().mean())
        assert share == pytest.approx(probability, abs=0.05)


@pytest.mark.parametrize("forget_offset", [0.0])
def test_without_tracker_equals_a_tree_lstm_on_the_same_trees(forget_offset: float) -> None:
    e = made("bare").eval()
    cell = TreeLSTMConfig(forget_offset=forget_offset)
    tree = GumbelTreeEncoder(EncoderConfig(E, D, leaf="affine", cell=cell)).double().eval()
    tree.cell.load_state_dict(e.cell.state_dict())
    # in use, the normalisation is part of the projection
    norm = e.leaf.norm
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    with torch.no_grad():
        tree.leaf.weight.copy_(scale[:, None] * e.leaf.linear.weight)
        tree.leaf.bias.copy_(scale * (e.leaf.linear.bias - norm.running_mean) + norm.bias)
    found, wanted = (f(words(), torch.tensor(LENGTHS), order=orders()) for f in (e, tree))
    torch.testing.assert_close(found.vector, wanted.vector, rtol=0, atol=1e-12)
    for part in (e, tree):
        part.zero_grad()
    found.vector.square().sum().backward()
    wanted.vector.square().sum().backward()
    torch.testing.assert_close(e.cell.weight.grad, tree.cell.weight.grad)
    torch.testing.assert_close(e.cell.bias.grad, tree.cell.bias.grad)


def test_a_tracker_that_is_not_heard_changes_nothing() -> None:
    e, bare = made("tracked"), made("bare")
    bare.load_state_dict({k: v for k, v in e.state_dict().items() if "tracker" not in k})
    lengths = torch.tensor(LENGTHS)
    assert not torch.allclose(*(f(words(), lengths, order=orders()).vector for f in (e, bare)))
    torch.nn.init.zeros_(e.tracker.to_cell)
    for part in (e, bare):
        part.eval()
        part.leaf.norm.reset_running_stats()
    found, wanted = (f(words(), lengths, order=orders(), details=True) for f in (e, bare))
    torch.testing.assert_close(found.vector, wanted.vector, rtol=0, atol=1e-13)
    torch.testing.assert_close(found.nodes.h, wanted.nodes.h, rtol=0, atol=1e-13)
    assert torch.equal(found.mask, found.nodes.h.abs().sum(-1) > 0)


def test_trees_in_any_order_of_merges() -> None:
    e = made("tracked").eval()
    x, lengths = words([4]), torch.tensor([4])
    late, early = (e(x, lengths, order=torch.tensor([row])) for row in ([2, 0, 0], [0, 1, 0]))
    assert late.order.tolist() == early.order.tolist() == [[0, 1, 0]]
    assert torch.equal(late.vector, early.vector)


def test_a_single_word_in_training() -> None:
    e = made("tracked")
    found = e(words([1]), torch.tensor([1]), order=torch.zeros(1, 0, dtype=torch.int64))
    assert found.vector.isfinite().all()
    assert found.order.shape == (1, 0)
    assert int(e.leaf.norm.num_batches_tracked) == 0


@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision(autocast: bool) -> None:
    e, x = made("parsing").float(), words().float()
    if not autocast:
        e, x = e.bfloat16(), x.bfloat16()
    with torch.autocast("cpu", enabled=autocast):
        found = e(x, torch.tensor(LENGTHS), order=orders())
    assert found.vector.dtype == (torch.float32 if autocast else torch.bfloat16)
    (found.vector.float().sum() + found.losses["actions"].float().sum()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in e.parameters())


def test_needs() -> None:
    sentences = Sentences.padded(words(), torch.tensor(LENGTHS))
    e = made("tracked")
    assert (e.trees, e.needs, e.learns_from) == ("given", {"order"}, {"order"})
    with pytest.raises(ValueError, match=r"'spinn' follows the trees of the data .*parses=true"):
        in_evaluation_mode(e)(sentences)
    e = made("parsing")
    assert (e.trees, e.needs, e.learns_from) == ("sampled", frozenset(), {"order"})
    with pytest.raises(ValueError, match=r"learns to parse from trees.*sentence1_binary_parse"):
        e(sentences)
    assert in_evaluation_mode(e)(sentences).order is not None
    with pytest.raises(ValueError, match=r"`tracker` is 0.*such as 79"):
        SpinnEncoder(SpinnConfig(tracker=0, parses=True))


# models


def test_a_parsing_model_parses_plain_text(tmp_path) -> None:
    model = tiny_model("single", encoder="spinn", tracker=3, parses=True)
    gumbeltree.save(model, tmp_path / "model", {})
    loaded = gumbeltree.load(tmp_path / "model")
    trees = loaded.parse_many(TEXTS)
    assert len({len(tree) for tree in trees}) > 3
    assert [str(tree) for tree in trees] == [str(loaded.parse(text)) for text in TEXTS]
    line = run("parse", tmp_path / "model", TEXTS[1]).out.strip()
    assert line == str(trees[1])
    assert run("draw", tmp_path / "model", TEXTS[1]).out
    # traces show the choices, and follow other trees
    (trace,) = trace_many(loaded, [TEXTS[1]])
    assert trace.tree == trees[1]
    json.dumps(trace.as_dict(), allow_nan=False)
    for shape in ("left", "balanced", "right"):
        (forced,) = trace_many(loaded, [TEXTS[1]], tree=shape)
        expected = getattr(Tree, {"balanced": shape}.get(shape, f"{shape}_branching"))
        assert forced.tree == expected(TEXTS[1])


def test_models_of_given_trees_refuse_plain_text(tmp_path) -> None:
    model = tiny_model("single", encoder="spinn", tracker=3)
    gumbeltree.save(model, tmp_path / "model", {})
    with pytest.raises(ValueError, match="follows the trees of the data"):
        gumbeltree.load(tmp_path / "model").parse_many(TEXTS)
    refused = run("parse", tmp_path / "model", TEXTS[1]).refused()
    assert "follows the trees of the data" in refused


PAIR = {
    "gold_label": "neutral",
    "sentence1": 'He said: "It\'s (not) here."',
    "sentence2": "A dog sleeps.",
    "sentence1_binary_parse": "( He ( ( said : ) ( `` ( ( It 's ) ( ( -LRB- not ) "
    "( -RRB- ( here ( . '' ) ) ) ) ) ) ) )",
    "sentence2_binary_parse": "( ( A dog ) ( sleeps . ) )",
}


def written(folder, *records) -> None:
    for split in ("train", "dev"):
        path = folder / f"snli_1.0_{split}.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))


def recipe_of(*settings: str):
    return with_settings(
        load_recipe("spinn-pi-matched"),
        ["embedding_dim=4", "encoder.hidden_dim=5", "tracker=2", "head.hidden_dim=6", "epochs=2",
         "batch_size=2", "evaluations=1", "training.precision=32", *settings],
    )  # fmt: skip


@pytest.mark.parametrize("parses", [False, True])
def test_pairs_train_on_their_parses(tmp_path, parses) -> None:
    labels = ("neutral", "entailment", "contradiction")
    records = [{**PAIR, "gold_label": label} for label in labels]
    written(tmp_path, *records)
    recipe = recipe_of(f"parses={str(parses).lower()}")
    prepared = prepare(recipe, tmp_path)
    split = prepared.splits["train"]
    batch = split.batch([0])
    words = PAIR["sentence1_binary_parse"].replace("(", "").replace(")", "").split()
    first = Tree.from_brackets(PAIR["sentence1_binary_parse"])
    assert batch.sentences.layout.own_lengths().tolist() == [len(words), 4]
    assert batch.sentences.order[0].tolist() == list(first.order)
    assert batch.sentences.order[1].tolist()[:4] == [0, 1, 0, -1]
    vocabulary = set(prepared.tokenizer.get_vocab())
    assert {"he", "``", "(", "'s", "sleeps", "."} <= vocabulary
    gumbeltree.train(recipe, prepared, tmp_path / "run")
    out = run("evaluate", tmp_path / "run", "--data", tmp_path / "snli_1.0_dev.jsonl", "--json").out
    assert json.loads(out)["examples"] == 3
    model = gumbeltree.load(tmp_path / "run")
    if parses:
        assert len(model.parse("A dog sleeps.")) == 4
        bare = {k: v for k, v in PAIR.items() if "parse" not in k}
        written(tmp_path, bare)
        with pytest.raises(ValueError, match="snli data have none"):
            prepare(recipe, tmp_path)
        written(tmp_path, PAIR, bare | {"sentence2": "Nobody knows."})
        message = r"train: 2 texts of 4 have no gold tree, such as '.*'; .*`gumbeltree data parse`"
        with pytest.raises(ValueError, match=message):
            prepare(recipe, tmp_path)


def test_development_sentences_are_parsed_by_the_model(tmp_path, monkeypatch) -> None:
    written(tmp_path, PAIR, {**PAIR, "gold_label": "entailment"})
    seen = []
    encode = SpinnEncoder.encode

    def watched(self, sentences, draw, keep):
        seen.append((self.training, sentences.order is not None))
        return encode(self, sentences, draw, keep)

    monkeypatch.setattr(SpinnEncoder, "encode", watched)
    recipe = recipe_of("parses=true", "epochs=1")
    gumbeltree.train(recipe, prepare(recipe, tmp_path), tmp_path / "run")
    assert set(seen) == {(True, True), (False, False)}


@pytest.mark.parametrize("parses", [False, True])
def test_development_data_need_parses_only_if_the_model_follows_them(tmp_path, parses) -> None:
    written(tmp_path, PAIR, {**PAIR, "gold_label": "entailment"})
    bare = {key: value for key, value in PAIR.items() if "parse" not in key}
    (tmp_path / "snli_1.0_dev.jsonl").write_text(json.dumps(bare) + "\n")
    recipe = recipe_of(f"parses={str(parses).lower()}", "epochs=1")
    if not parses:
        with pytest.raises(ValueError, match="dev: the encoder needs gold trees"):
            prepare(recipe, tmp_path)
        return
    gumbeltree.train(recipe, prepare(recipe, tmp_path), tmp_path / "run")


def test_the_loss_of_actions_is_weighed(tmp_path) -> None:
    model = tiny_model("single", encoder="spinn", tracker=3, parses=True).train()
    examples = [
        Example((text,), "good", (Tree.left_branching(text),)) for text in TEXTS if " " in text
    ]
    bare = split_of(model, examples)
    starts = np.diff(bare.starts)
    split = dataclasses.replace(bare, orders=np.zeros(int((starts - 1).sum()), dtype=np.uint16))
    batch = split.batch(np.arange(len(split)))
    found = model(batch.sentences, Draw(torch.zeros((len(split), 2), dtype=torch.int64)))
    assert found.losses["actions"].shape == (len(split),)
    assert found.log_prob is None
    assert evaluate(model, bare).count == len(split)
    keep = Keep(nodes=True)
    nodes = in_evaluation_mode(model).encode_batch(batch.sentences, keep=keep).nodes
    assert nodes is not None
    assert F.pad(nodes.h, (0, 0)).isfinite().all()
