"""Parts of one's own, a class and a line each, through everything that users do with a model."""

import dataclasses
import json
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import gumbeltree
from gumbeltree import Draw, Encoding, GumbelTreeEncoder, Keep, Sentences
from gumbeltree.card import model_card
from gumbeltree.config import TrainingConfig
from gumbeltree.describe import count_parameters, describe
from gumbeltree.evaluate import evaluate, split_of
from gumbeltree.model import SentenceModel
from gumbeltree.nn.encoders import ENCODERS
from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.nn.heads import HEADS
from gumbeltree.nn.heads.classes import SingleHead
from gumbeltree.nn.heads.head import Head, Part, Table
from gumbeltree.nn.leaves import LEAVES
from gumbeltree.nn.leaves.lstm import LSTMLeaf
from gumbeltree.ops.merge import Choice
from gumbeltree.tasks.example import Example
from gumbeltree.text.tokenizer import whitespace_tokenizer
from gumbeltree.training.loop import new_optimizer
from gumbeltree.training.start import start_fabric
from gumbeltree.training.step import Step
from tests.models import TEXTS, WORDS, tiny_config
from tests.test_use import run


class WideEncoder(Encoder):
    """Mean, largest and smallest of the projected words: vectors of three times the width."""

    def __init__(self, config):
        super().__init__(config)
        self.word = nn.Linear(config.embedding_dim, config.hidden_dim)

    @property
    def vector_dim(self) -> int:
        return 3 * self.config.hidden_dim

    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        words, lengths = (
            sentences.layout.unpack(self.word(sentences.words)),
            sentences.layout.own_lengths(),
        )
        inside = (torch.arange(words.shape[1]) < lengths[:, None])[..., None]
        low, high = (words.masked_fill(~inside, x) for x in (math.inf, -math.inf))
        mean = words.sum(1) / lengths[:, None]
        return Encoding(torch.cat([mean, high.amax(1), low.amin(1)], dim=1))


class Number(NamedTuple):
    value: float

    def cells(self) -> list[str]:
        return [f"{self.value:.4f}"]

    def as_dict(self) -> dict[str, Any]:
        return {"value": self.value}


@dataclasses.dataclass(frozen=True, eq=False)
class NumberEvaluation:
    loss: float
    found: NDArray[np.float64]
    gold: NDArray[np.float64]

    @property
    def count(self) -> int:
        return int(np.isfinite(self.found).sum())

    @property
    def value(self) -> float:
        there = np.isfinite(self.found)
        return float(np.corrcoef(self.found[there], self.gold[there])[0, 1])

    def __add__(self, other: "NumberEvaluation") -> "NumberEvaluation":
        loss = (self.loss * self.count + other.loss * other.count) / (self.count + other.count)
        mine = np.isfinite(self.found)
        found, gold = (np.where(mine, *pair) for pair in (
            (self.found, other.found), (self.gold, other.gold),
        ))  # fmt: skip
        return NumberEvaluation(loss, found, gold)

    def as_dict(self) -> dict[str, Any]:
        return {"examples": self.count, "loss": self.loss, "pearson": self.value}

    def summary(self) -> str:
        return f"pearson {self.value:.4f}, loss {self.loss:.4f}"

    def tables(self) -> list[Table]:
        return []

    def answers(self) -> list[str]:
        return [f"{x:.4f}" if math.isfinite(x) else "" for x in self.found]


class NumberHead(Head):
    """One number for a sentence; squared error, chosen by Pearson's correlation."""

    measure = "pearson"
    target_type = np.float32

    def __init__(self, config, vector_dim):
        super().__init__()
        self.number = nn.Linear(vector_dim, 1)

        # of the loss, and in float32 as the weights are
        self.register_buffer("scale", torch.ones(1))
        for number in range(20):
            self.register_buffer(f"count{number}", torch.zeros(2, dtype=torch.int64))

    def forward(self, *encodings: Encoding) -> Tensor:
        found: Tensor = self.number(encodings[0].vector)[:, 0]
        return found

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return (self.scale @ (output - target)[None]).square()

    def answers(self, output: Tensor) -> list[Number]:
        return [Number(value) for value in output.tolist()]

    def target(self, label: str) -> float:
        return float(label)

    def check_targets(self, targets: NDArray[Any]) -> None:
        if not np.isfinite(targets).all():
            raise ValueError("targets must be finite")

    def evaluation(self, part: Part) -> NumberEvaluation:
        found, gold = np.full((2, part.size), np.nan)
        found[part.rows], gold[part.rows] = part.output, part.target
        return NumberEvaluation(part.loss, found, gold)

    @staticmethod
    def shown(value: float) -> str:
        return f"{value:.4f}"


@pytest.fixture(autouse=True)
def _tables(monkeypatch):
    monkeypatch.setitem(ENCODERS.table, "wide", f"{__name__}:WideEncoder")
    monkeypatch.setitem(HEADS.table, "number", f"{__name__}:NumberHead")


def model_of(encoder="gumbel_tree", head="single"):
    """Return a model in evaluation mode with weights that tell sentences apart."""
    plain = tiny_config("pair" if head == "pair" else "single")
    config = dataclasses.replace(
        plain,
        encoder=dataclasses.replace(plain.encoder, kind=encoder),
        head=dataclasses.replace(plain.head, kind=head),
    )
    torch.manual_seed(5)
    model = SentenceModel(config, whitespace_tokenizer(WORDS))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model.eval()


parts = pytest.mark.parametrize("encoder", ["gumbel_tree", "bag", "lstm", "wide"])
heads = pytest.mark.parametrize("head", ["single", "pair", "number"])


def examples_of(model):
    """Return examples with targets that the head takes."""
    labels = model.labels or ("0.5", "-2", "1e1")
    return [
        Example((text, *TEXTS[i : i + 1])[: model.head.sentences], labels[i % len(labels)], ())
        for i, text in enumerate(TEXTS)
    ]


@parts
@heads
def test_it_is_used_saved_and_told_of(tmp_path, encoder, head):
    model = model_of(encoder, head)
    columns = [TEXTS, TEXTS[::-1]][: model.head.sentences]
    vectors, answers = model.encode(TEXTS), model.predict(*columns)
    assert vectors.shape == (len(TEXTS), model.encoder.vector_dim)
    assert len({json.dumps(answer.as_dict()) for answer in answers}) > 1
    gumbeltree.save(model, tmp_path / "model", {})
    loaded = gumbeltree.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.encode(TEXTS), vectors)
    assert loaded.predict(*columns) == answers
    texts = [column[1] for column in columns]
    # alone, as another batch rounds otherwise
    (alone,) = model.predict(*([text] for text in texts))
    line = run("predict", tmp_path / "model", *texts).out
    assert line.rstrip("\n").split("\t") == [*alone.cells(), *texts]
    found = json.loads(run("predict", tmp_path / "model", "--json", *texts).out)
    assert {name: found[name] for name in alone.as_dict()} == alone.as_dict()
    counts = count_parameters(model.config)
    own = sum(p.numel() for p in model.parameters()) - model.embedding.weight.numel()
    assert counts["total"] == own
    assert describe(str(tmp_path / "model"))["parameters"] == counts
    assert f"{model.encoder.vector_dim}D" in model_card(model)


class LoudEncoder(GumbelTreeEncoder):
    def encode(self, *arguments: Any) -> Encoding:
        found = super().encode(*arguments)
        return Encoding(2 * found.vector, found.order)


class LoudHead(SingleHead):
    def features(self, *vectors: Tensor) -> Tensor:
        return 2 * super().features(*vectors)


class LoudLeaf(LSTMLeaf):
    def forward(self, *arguments: Any) -> Tensor:
        return 2 * super().forward(*arguments)


@pytest.mark.parametrize("part", ["none", "encoder", "head", "leaf"])
def test_a_part_that_was_changed_does_not_run_by_the_kernels_of_its_parent(monkeypatch, part):
    # as on a CUDA device
    choice = Choice("fused", "")
    monkeypatch.setattr(GumbelTreeEncoder, "explain", lambda self, sample=None: choice)
    if part == "encoder":
        monkeypatch.setitem(ENCODERS.table, "gumbel_tree", f"{__name__}:LoudEncoder")
    elif part == "head":
        monkeypatch.setitem(HEADS.table, "single", f"{__name__}:LoudHead")
    elif part == "leaf":
        monkeypatch.setitem(LEAVES.table, "lstm", f"{__name__}:LoudLeaf")
    reason = model_of().why_not_captured(sample=False)
    assert reason == (
        None if part == "none" else f"Loud{part.title()} does not say that it can be captured"
    )


@parts
@heads
def test_it_is_evaluated_and_parts_add_up(encoder, head):
    model = model_of(encoder, head)
    split = split_of(model, examples_of(model))
    whole = evaluate(model, split)
    assert whole.count == len(TEXTS)
    assert math.isfinite(whole.loss)
    assert math.isfinite(whole.value)
    assert len(whole.answers()) == len(TEXTS)
    assert model.head.shown(whole.value)
    json.dumps(whole.as_dict(), allow_nan=False)
    both = evaluate(model, split, rows=np.arange(2)) + evaluate(
        model, split, rows=np.arange(2, len(TEXTS))
    )
    assert both.value == pytest.approx(whole.value)
    assert both.loss == pytest.approx(whole.loss, rel=1e-5)


@parts
@heads
def test_it_learns(encoder, head):
    model = model_of(encoder, head).train()
    split = split_of(model, examples_of(model))
    config = TrainingConfig(learning_rate=0.01, seed=3)
    fabric = start_fabric("cpu", "32")
    optimizer = new_optimizer(config, model, fabric.device)
    module, wrapped = fabric.setup(model, optimizer)
    step = Step(fabric, module, model, wrapped, split, config)
    before = evaluate(model, split).loss
    for number in range(40):
        step(np.arange(len(split)), number, number)
    assert math.isfinite(float(step.loss))
    assert evaluate(model, split).loss < before


@pytest.mark.parametrize("head", ["single", "number"])
def test_the_server_answers_with_what_the_head_gives(head):
    service = pytest.importorskip("gumbeltree.web.service")
    model = model_of(head=head)
    served = service.Served("mine", model)
    (answer,) = service.predict(served, [(TEXTS[1], None)])
    assert json.loads(answer) == model.predict([TEXTS[1]])[0].as_dict()
    (parsed,) = service.parse(served, [TEXTS[1]], None, 1.0, 0)
    found = json.loads(parsed)
    assert (found["classes"] is None) == (head == "number")
    assert served.about()["kind"] == head
