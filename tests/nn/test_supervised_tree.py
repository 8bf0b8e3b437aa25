"""Test the encoder that learns merges from gold trees, and the head that evaluates its trees."""

import json
import math

import numpy as np
import pytest
import torch

import gumbeltree
from gumbeltree import Tree
from gumbeltree.card import model_card
from gumbeltree.config import SupervisedTreeConfig
from gumbeltree.nn.encoders.supervised_tree import SupervisedTreeEncoder, merge_loss
from gumbeltree.nn.heads.head import Part
from gumbeltree.nn.heads.merges import MergesHead
from gumbeltree.nn.spans import random_orders, spans_of
from gumbeltree.peers import MergesConfig
from gumbeltree.tasks.parses import ParsedSentences
from gumbeltree.text.files import Report
from tests.commands import run
from tests.models import TEXTS, tiny_model
from tests.nn.equations import random_merges

LENGTHS = [6, 1, 4, 2, 7, 3]


def random_trees(seed: int = 0) -> torch.Tensor:
    return random_merges(LENGTHS, seed)


def trees_of(order: torch.Tensor) -> list[Tree]:
    return [
        Tree([str(i) for i in range(T)], row[: T - 1])
        for T, row in zip(LENGTHS, order.tolist(), strict=True)
    ]


def test_spans_are_those_of_the_tree():
    order = random_trees()
    start, end = spans_of(order)
    for b, tree in enumerate(trees_of(order)):
        found = list(zip(start[b].tolist(), end[b].tolist(), strict=True))
        assert found[: len(tree) - 1] == list(tree.spans)
        assert set(found[len(tree) - 1 :]) <= {(0, 0)}


def test_random_orders_build_the_same_tree_with_all_alternatives():
    order = random_trees()
    torch.manual_seed(1)
    seen = set()
    for _ in range(5):
        drawn, allowed = random_orders(order)
        seen.add(tuple(drawn[4].tolist()))
        for b, (T, tree, other) in enumerate(
            zip(LENGTHS, trees_of(order), trees_of(drawn), strict=True)
        ):
            assert set(other.spans) == set(tree.spans)
            present = [(i, i + 1) for i in range(T)]
            for t in range(6):
                right = [
                    j < len(present) - 1 and (present[j][0], present[j + 1][1]) in tree.spans
                    for j in range(6)
                ]
                assert allowed[b, t].tolist() == right
                if t < T - 1:
                    j = int(drawn[b, t])
                    assert right[j]
                    present[j : j + 2] = [(present[j][0], present[j + 1][1])]
    assert len(seen) > 1


def test_loss_is_the_probability_of_all_allowed_merges():
    torch.manual_seed(2)
    encoder = SupervisedTreeEncoder(SupervisedTreeConfig(3, 4)).double()
    torch.nn.init.normal_(encoder.query)
    words = torch.randn(len(LENGTHS), 7, 3, dtype=torch.float64)
    gold = random_trees()
    torch.manual_seed(3)
    encoding = encoder(words, torch.tensor(LENGTHS), order=gold, details=True)
    expected = []
    for b, (T, tree) in enumerate(zip(LENGTHS, trees_of(gold), strict=True)):
        present, total = [(i, i + 1) for i in range(T)], 0.0
        for t in range(T - 1):
            p = torch.softmax(encoding.scores[b, t, : T - 1 - t], dim=0)
            spans = [(present[j][0], present[j + 1][1]) for j in range(len(present) - 1)]
            total = total - p[[span in tree.spans for span in spans]].sum().log()
            j = int(encoding.order[b, t])
            present[j : j + 2] = [spans[j]]
        expected.append(torch.as_tensor(total, dtype=torch.float64))
    loss = encoding.losses["merges"]
    torch.testing.assert_close(loss, torch.stack(expected))
    own = torch.autograd.grad(loss.sum(), list(encoder.parameters()), retain_graph=True)
    plain = torch.autograd.grad(sum(expected), list(encoder.parameters()))
    for one, other in zip(own, plain, strict=True):
        torch.testing.assert_close(one, other)
        assert one.abs().sum() > 0


def test_only_training_has_a_loss():
    encoder = SupervisedTreeEncoder(SupervisedTreeConfig(3, 4))
    words, lengths = torch.randn(6, 7, 3), torch.tensor(LENGTHS)
    assert not encoder(words, lengths).losses
    assert not encoder.eval()(words, lengths, order=random_trees()).losses


def test_loss_is_zero_if_all_merges_are_allowed():
    scores = torch.tensor([[[0.3, -1.0], [2.0, -math.inf]]], requires_grad=True)
    loss = merge_loss(scores, torch.tensor([[[True, True], [True, False]]]))
    assert loss.tolist() == [pytest.approx(0, abs=1e-6)]
    (gradient,) = torch.autograd.grad(loss.sum(), scores)
    assert gradient.isfinite().all()


def test_evaluation_counts_brackets():
    head = MergesHead(MergesConfig(words=8), 4).eval()
    own, gold = random_trees(1), random_trees(0)
    output = torch.nn.functional.pad(own.double(), (0, 2), value=-1)
    labels = [" ".join(str(x) for x in row if x >= 0) for row in gold.tolist()]
    target = np.stack([head.target(label) for label in labels])
    right = [
        len(set(a.spans) & set(b.spans)) - 1
        for a, b in zip(trees_of(own), trees_of(gold), strict=True)
    ]
    shares = [x / (T - 2) for x, T in zip(right, LENGTHS, strict=True) if T > 2]
    assert 0 < sum(shares) < len(shares)
    part = Part(output.numpy(), target, 0.5, np.arange(6), 6, np.array(LENGTHS))
    found = head.evaluation(part)
    assert found.f1 == pytest.approx(np.mean(shares))
    losses = head.loss(output, torch.from_numpy(target))
    assert losses[[0, 2, 4, 5]].tolist() == pytest.approx([1 - x for x in shares])
    assert losses[[1, 3]].tolist() == [0, 0]
    halves = [
        head.evaluation(
            Part(output.numpy()[rows], target[rows], 0.5, rows, 6, np.array(LENGTHS)[rows])
        )
        for rows in (np.array([0, 3, 4]), np.array([1, 2, 5]))
    ]
    assert (halves[0] + halves[1]).as_dict() == found.as_dict()
    json.dumps(found.as_dict())


PAIRS = [
    {
        "sentence1": f"the dog number {i} sleeps.",
        "sentence1_binary_parse": f"( ( the ( dog ( number {i} ) ) ) ( sleeps . ) )",
        "sentence2": "a dog sleeps",
        "sentence2_binary_parse": "( ( a dog ) sleeps )",
    }
    for i in range(30)
]


def test_task_holds_out_premises(tmp_path):
    path = tmp_path / "snli_1.0_dev.jsonl"
    odd = {**PAIRS[0], "sentence1": "one more word here", "gold_label": "-"}
    path.write_text("".join(json.dumps(pair) + "\n" for pair in [*PAIRS, odd]))
    task, report = ParsedSentences(), Report()
    assert task.splits(tmp_path) == {"train": path, "dev": path}
    train, dev = ({x.texts[0]: x for x in task.read(path, s, report)} for s in ("train", "dev"))
    assert len(train) + len(dev) == 31
    assert 0 < len(dev) < 10
    assert not set(train) & set(dev)
    whole = {x.texts[0] for x in ParsedSentences().read(path, "test", Report())}
    assert whole == {*train, *dev}
    assert train["a dog sleeps"].label == "0 0"
    assert report.dropped == {"with other words in the parse": 1}
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"files snli_1.0_dev.jsonl, trees.txt \(plain"):
        task.splits(tmp_path)


def test_parser_is_trained_and_parses_a_file(tmp_path):
    (tmp_path / "snli_1.0_dev.jsonl").write_text("".join(json.dumps(x) + "\n" for x in PAIRS))
    small = ["embedding_dim=8", "encoder.hidden_dim=8", "epochs=5", "batch_size=8"]
    small += ["learning_rate=0.02", "tuned=true", "embedding.dropout=0"]
    recipe = gumbeltree.with_settings(gumbeltree.load_recipe("parser"), small)
    data = gumbeltree.prepare(recipe, tmp_path)
    result = gumbeltree.train(recipe, data, tmp_path / "run", quiet=True, device="cpu")
    assert result["measure"] == "f1"
    # always the same tree
    assert result["dev_f1"] == 1
    model = gumbeltree.load(tmp_path / "run")
    assert str(model.parse("a dog sleeps")) == "( ( a dog ) sleeps )"
    bare = [{k: v for k, v in x.items() if "parse" not in k} for x in PAIRS[:3]]
    (tmp_path / "bare.jsonl").write_text("".join(json.dumps(x) + "\n" for x in bare))
    out = tmp_path / "silver.jsonl"
    done = run("data", "parse", tmp_path / "run", tmp_path / "bare.jsonl", "--out", out)
    assert "3 examples read" in done.err
    assert [json.loads(line) for line in out.read_text().splitlines()] == PAIRS[:3]


@pytest.mark.parametrize("encoder", ["gumbel_tree", "level_tree"])
def test_rejects_encoders_that_do_not_learn_trees(tmp_path, encoder):
    (tmp_path / "snli_1.0_dev.jsonl").write_text("".join(json.dumps(x) + "\n" for x in PAIRS))
    recipe = gumbeltree.with_settings(
        gumbeltree.load_recipe("parser"), [f"encoder.kind={encoder}", "embedding_dim=8"]
    )
    data = gumbeltree.prepare(recipe, tmp_path)
    with pytest.raises(ValueError, match=r"'merges' has nothing to learn.*supervised_tree"):
        gumbeltree.train(recipe, data, tmp_path / "run", quiet=True, device="cpu")


def test_data_parse_reports_what_it_skips(tmp_path):
    gumbeltree.save(tiny_model("single"), tmp_path / "model", {})
    file, out = tmp_path / "some.jsonl", tmp_path / "silver.jsonl"
    file.write_text(json.dumps(PAIRS[0]) + '\n{"sentence1": "a"}\n')
    command = ("data", "parse", tmp_path / "model", file, "--out")
    assert "line 2" in run(*command, out).refused()
    assert not out.exists()
    done = run(*command, out, "--skip-bad")
    assert "1 example read; 0 dropped; 1 bad line skipped" in done.err
    assert len(out.read_text().splitlines()) == 1
    assert "plain text" in run(*command, tmp_path / "silver.jsonl.gz").refused()
    file.write_text("")
    assert "no usable pairs" in run(*command, tmp_path / "none.jsonl").refused()
    assert not (tmp_path / "none.jsonl").exists()


def test_use_needs_no_gold_trees():
    model = tiny_model("single", encoder="supervised_tree")
    assert len(model.parse(TEXTS[1])) == 8
    assert len(model.predict(TEXTS)) == len(TEXTS)
    card = model_card(model)
    assert "parse trees of its training data" in card
    assert "need not agree" not in card
