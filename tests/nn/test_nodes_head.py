"""Test the classifier of nodes: its loss, its predictions, and training with it."""

import json

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from torch.nn import functional as F

import gumbeltree
from gumbeltree.config import load_recipe, with_settings
from gumbeltree.data.compile import prepare, with_labels
from gumbeltree.data.device_split import DeviceSplit
from gumbeltree.data.examples import Examples
from gumbeltree.data.prepared import load_prepared, save_prepared
from gumbeltree.evaluation import Evaluator
from gumbeltree.layout import NO_CLASS
from gumbeltree.nn.heads.head import Part
from gumbeltree.nn.heads.nodes import NodesHead
from gumbeltree.peers import NodesConfig
from gumbeltree.states import Encoding, NodeState
from gumbeltree.tasks.task import Example
from gumbeltree.text.ids import TextReader
from gumbeltree.text.tokenizer import whitespace_tokenizer
from gumbeltree.training.loop import train
from gumbeltree.training.start import new_model
from gumbeltree.training.step import CapturedStep, Step
from gumbeltree.tree import Tree

FIVE = ("very negative", "negative", "neutral", "positive", "very positive")
TRAIN = [
    "(3 (2 a) (4 gem))",
    "(1 (2 (2 the) (2 plot)) (1 (2 is) (0 dull)))",
    "(2 so)",
    "(4 (4 superb) (2 (2 ,) (3 fun)))",
    "(0 (1 no) (2 fun))",
    "(3 gem)",
]
DEV = ["(4 (2 a) (4 (4 superb) (3 gem)))", "(0 (2 so) (0 dull))", "(2 (2 the) (2 plot))"]
SMALL = [
    *("embedding_dim=4", "encoder.hidden_dim=5", "epochs=2", "batch_size=3"),
    *("evaluations=1", "extra_words=0", "embedding.dropout=0"),
]


def write(folder):
    for name, lines in (("train", TRAIN), ("dev", DEV)):
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def recipe(task="sst5", *settings):
    changes = ["encoder.kind=constituency", "head.kind=nodes", *SMALL, *settings]
    return with_settings(load_recipe(task), changes)


def head(labels=FIVE[:2], **settings):
    return NodesHead(NodesConfig(labels, **settings), 4).double()


def nodes(B=3, T=4):
    h = torch.randn(B, 2 * T - 1, 4, dtype=torch.float64)
    return Encoding(h[:, 0], nodes=NodeState(h, h))


@pytest.mark.parametrize("other", [False, True])
def test_loss_is_the_sum_over_labelled_nodes(other):
    model, encoding = head(other_class=other, loss_scale=3.0), nodes()
    target = torch.tensor([[0, 1, NO_CLASS, -1, 1, -1, -1], [1] + [-1] * 6, [NO_CLASS] * 7])
    output = model(encoding)
    assert output.shape == (3, 7, 2 + other)
    losses = model.loss(output, target)
    weight, bias = model.output.weight, model.output.bias
    for b in range(3):
        total = 0.0
        for n in range(7):
            label = int(target[b, n])
            if label == NO_CLASS:
                label = 2 if other else -1
            if label >= 0:
                total = total - (weight @ encoding.nodes.h[b, n] + bias).log_softmax(0)[label]
        torch.testing.assert_close(losses[b], torch.as_tensor(3.0 * total, dtype=torch.float64))
    losses.sum().backward()
    assert model.output.weight.grad.isfinite().all()


def test_predicts_the_root_and_never_the_other_class():
    model, encoding = head(other_class=True).eval(), nodes()
    with torch.no_grad():
        model.output.bias[2] = 100.0
    output = model(encoding)
    torch.testing.assert_close(output, model.output(encoding.vector)[:, :2])
    # a vector alone suffices
    torch.testing.assert_close(model(Encoding(encoding.vector)), output)
    target = torch.tensor([1, 0, 1])
    expected = F.cross_entropy(output, target, reduction="none")
    torch.testing.assert_close(model.loss(output, target), expected)
    assert {x.label for x in model.answers(output.detach().numpy())} <= set(FIVE[:2])


def test_drops_states_in_training_only():
    model = head(dropout=0.5)
    ones = Encoding(torch.ones(1, 4).double(), nodes=NodeState(*torch.ones(2, 1, 999, 4).double()))
    with torch.no_grad():
        model.output.weight.fill_(1.0)
        model.output.bias.zero_()
    assert model(ones)[0, :, 0].unique().tolist() == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert model.eval()(ones).unique().tolist() == [4.0]


def test_needs_states_of_nodes_in_training():
    with pytest.raises(ValueError, match="states of nodes"):
        head()(Encoding(torch.zeros(1, 4).double()))


def test_two_sides_of_five_classes():
    model = head(FIVE, negative=FIVE[:2], positive=FIVE[3:])
    probabilities = np.array(
        [
            [0.30, 0.10, 0.0, 0.25, 0.25],  # 0.4 < 0.5: positive, though the first class leads
            [0.20, 0.20, 0.6, 0.10, 0.10],  # negative, though neutral leads
            [0.00, 0.00, 1.0, 0.00, 0.00],  # neutral in truth: not counted
            [0.10, 0.50, 0.1, 0.20, 0.10],
        ]
    )
    target = np.array([4, 3, 2, 0])
    logits, rows = np.log(probabilities + 1e-9), np.arange(4)
    part = Part(logits, target, 0.5, rows, 4, np.full(4, 3))
    found = model.evaluation(part)
    assert found.sides.tolist() == [[1, 0], [1, 1]]
    assert found.binary_accuracy == found.metric("binary_accuracy") == pytest.approx(2 / 3)
    assert found.accuracy == 0.25
    assert "binary accuracy 66.67 % of 3 examples" in found.summary()
    assert json.loads(json.dumps(found.as_dict()))["binary_examples"] == 3
    halves = [
        model.evaluation(Part(logits[i], target[i], 0.5, rows[i], 4, np.full(2, 3)))
        for i in (slice(0, 2), slice(2, 4))
    ]
    assert (halves[0] + halves[1]).sides.tolist() == found.sides.tolist()
    empty = model.evaluation(Part(np.empty((0, 1)), target[:0], 0.5, rows[:0], 4, rows[:0]))
    assert empty.binary_accuracy != empty.binary_accuracy
    plain = head(FIVE).evaluation(part)
    assert plain.sides is None
    assert "binary" not in plain.summary()
    model.check_selection(target, "binary_accuracy")
    with pytest.raises(ValueError, match=r"best_by.*head\.negative"):
        head(FIVE).check_selection(target, "binary_accuracy")
    with pytest.raises(ValueError, match=r"negative.*positive.*both or neither"):
        NodesConfig(FIVE, negative=("negative",))


def test_reads_the_labels_of_all_nodes(tmp_path):
    data = prepare(recipe(), write(tmp_path))
    train_split = data.splits["train"]
    assert len(train_split) == len(TRAIN)
    batch = train_split.batch([0, 1, 2])
    assert batch.sentences.order.tolist() == [[0, -1, -1], [0, 1, 0], [-1, -1, -1]]
    assert batch.sentences.node_labels.tolist() == [
        [2, 4, -1, -1, 3, -1, -1],
        [2, 2, 2, 0, 2, 1, 1],
        [2, -1, -1, -1, -1, -1, -1],
    ]
    assert batch.targets.tolist() == [3, 1, 2]
    # the root is the last node
    assert data.splits["dev"].batch([1]).sentences.node_labels.tolist() == [[2, 0, 0]]


def test_neutral_nodes_of_two_classes(tmp_path):
    data = prepare(recipe("sst2"), write(tmp_path))
    split = data.splits["train"]
    assert len(split) == 5
    assert data.report["splits"]["train"]["dropped"] == {"neutral": 1}
    other = NO_CLASS
    assert split.batch([0, 1]).sentences.node_labels.tolist() == [
        [other, 1, -1, -1, 1, -1, -1],
        [other, other, other, 0, other, 0, 0],
    ]


def test_labels_survive_a_file(tmp_path):
    data = prepare(recipe(), write(tmp_path))
    save_prepared(data, tmp_path / "data.safetensors")
    loaded = load_prepared(tmp_path / "data.safetensors")
    assert loaded.fingerprint() == data.fingerprint()
    for name, split in data.splits.items():
        assert np.array_equal(loaded.splits[name].node_labels, split.node_labels)
    # files without labels of nodes have the fingerprint that they always had
    phrases = prepare(recipe("sst5", "head.kind=single"), tmp_path)
    assert phrases.splits["train"].node_labels is None
    assert len(phrases.splits["train"]) > len(TRAIN)
    save_prepared(phrases, tmp_path / "phrases.safetensors")
    assert load_prepared(tmp_path / "phrases.safetensors").splits["train"].node_labels is None


@pytest.mark.parametrize("other", ["true", "false"])
def test_trains_and_predicts(tmp_path, other):
    settings = recipe("sst2", f"head.other_class={other}")
    result = train(settings, prepare(settings, write(tmp_path)), tmp_path / "run", quiet=True)
    assert result["dev_accuracy"] >= 0
    model = gumbeltree.load(tmp_path / "run")
    assert model.head.output.out_features == 2 + (other == "true")
    assert model.config.head.labels == ("negative", "positive")
    # texts have no trees
    with pytest.raises(ValueError, match="gold trees"):
        model.predict(["a gem"])


def test_step_uses_all_nodes(tmp_path, monkeypatch):
    seen = []
    loss = NodesHead.loss

    def watched(self, output, target):
        seen.append((self.training, output.dim(), tuple(target.shape)))
        return loss(self, output, target)

    monkeypatch.setattr(NodesHead, "loss", watched)
    settings = recipe("sst5", "epochs=1", "batch_size=6")
    train(settings, prepare(settings, write(tmp_path)), tmp_path / "run", quiet=True)
    assert (True, 3, (6, 7)) in seen
    assert all(dims == 2 for training, dims, _ in seen if not training)


def test_evaluation_agrees_with_single_predictions(tmp_path):
    settings = recipe()
    data = prepare(settings, write(tmp_path))
    train(settings, data, tmp_path / "run", quiet=True)
    model = gumbeltree.load(tmp_path / "run")
    split = data.splits["dev"]
    found = Evaluator(model, split)()
    for row in range(len(split)):
        output = model(split.batch([row]).sentences).output
        assert output.shape == (1, 5)
        assert output.argmax() == found.predictions[row]


def test_rejects_data_and_encoders_that_do_not_fit(tmp_path):
    labelled = prepare(recipe(), write(tmp_path))
    phrases = prepare(recipe("sst5", "head.kind=single"), tmp_path)
    with pytest.raises(ValueError, match=r"labelled nodes.*labelled sentences.*prepare it again"):
        with_labels(recipe(), phrases)
    with pytest.raises(ValueError, match=r"labelled sentences.*labelled nodes"):
        with_labels(recipe("sst5", "head.kind=single"), labelled)
    with pytest.raises(ValueError, match=r"'nodes'.*'lstm' does not follow"):
        with_labels(recipe("sst5", "encoder.kind=lstm"), labelled)
    taught = recipe("sst5", "encoder.kind=supervised_tree")
    with pytest.raises(ValueError, match=r"'supervised_tree' builds.*random order.*level_tree"):
        train(taught, labelled, tmp_path / "run")
    listops = with_settings(
        load_recipe("listops"), ["generate=50", "encoder.kind=level_tree", "head.kind=nodes"]
    )
    with pytest.raises(ValueError, match=r"label for every node.*listops"):
        prepare(listops)


@pytest.mark.parametrize("kind", ["constituency", "level_tree", "rntn"])
def test_captured_steps_have_the_labels_of_nodes(tmp_path, kind):
    settings = recipe("sst5", f"encoder.kind={kind}", "embedding_dim=5", "clip=0")
    data = prepare(settings, write(tmp_path))
    split, rows = data.splits["train"], np.arange(len(TRAIN))
    on_device = DeviceSplit(split, torch.device("cpu"))
    bounds, numbers = on_device.place(rows)
    batch = on_device.read(torch.from_numpy(numbers), bounds)
    expected, T = split.batch(rows).sentences.node_labels, bounds.T
    width = expected.shape[1] // 2
    found = batch.sentences.node_labels
    near = torch.cat([found[:, : width + 1], found[:, T : T + width]], dim=1)
    assert torch.equal(near, expected)
    assert (found >= 0).sum() == (expected >= 0).sum()
    fabric, states = Fabric(accelerator="cpu", devices=1), []
    for captured in (False, True):
        model = new_model(with_labels(settings, data).model, data, 0).double().train()
        assert model.why_not_captured(sample=True) is None
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        if captured:
            step = CapturedStep(fabric, model, optimizer, split, settings.training)
        else:
            module, wrapped = fabric.setup(model, optimizer)
            step = Step(fabric, module, model, wrapped, split, settings.training)
        step(rows[:4], 0, 0)
        step(rows, 0, 1)
        states.append(model.state_dict())
        assert step.loss > 0
    for name, x in states[0].items():
        torch.testing.assert_close(states[1][name], x, rtol=1e-6, atol=1e-8, msg=name)


def test_rejects_trees_without_all_labels():
    example = Example(("a gem",), "good", (Tree(["a", "gem"], [0]),), (("good", None),))
    examples = Examples([example], trees=True)
    reader = TextReader(whitespace_tokenizer(["a", "gem"], False), 10)
    with pytest.raises(ValueError, match=r"'a gem' has 2 words and 2 node labels; .* 3 nodes"):
        examples.split(reader, ["bad", "good"].index, np.int64, trees=True)
    whole = Examples([example._replace(nodes=(("good", None, "bad"),))], trees=True).subset([0])
    split = whole.split(reader, ["bad", "good"].index, np.int64, trees=True)
    assert split.node_labels.tolist() == [1, NO_CLASS, 0]
