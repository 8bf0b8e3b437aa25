"""Parts of one's own, a class and a line each, through everything that users do with a model."""

import copy
import dataclasses
import json
import math
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import gumbeltree
from gumbeltree import Draw, EncoderConfig, Encoding, GumbelTreeEncoder, Keep, Sentences
from gumbeltree.analysis.curves import draw as draw_curves
from gumbeltree.card import model_card
from gumbeltree.config import TrainingConfig, TreeSettings
from gumbeltree.data.prepared import load_prepared, save_prepared
from gumbeltree.describe import count_parameters, describe
from gumbeltree.evaluation import evaluate, split_of
from gumbeltree.model import SentenceModel
from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.nn.encoders.tree_encoder import TreeEncoder, of_choices
from gumbeltree.nn.estimators.estimator import AdvanceEstimator
from gumbeltree.nn.heads.classes import SingleHead
from gumbeltree.nn.heads.head import Head, Part, ResultTable
from gumbeltree.nn.leaves.lstm import LSTMLeaf
from gumbeltree.noise import keyed_noise
from gumbeltree.ops.merge import Choice
from gumbeltree.parts import ENCODERS, ESTIMATORS, HEADS, LEAVES
from gumbeltree.settings import PartConfig
from gumbeltree.tasks.task import Example
from gumbeltree.text.tokenizer import whitespace_tokenizer
from gumbeltree.training.optimizers import new_optimizer
from gumbeltree.training.start import start_fabric
from gumbeltree.training.step import Step
from tests.commands import run
from tests.models import TEXTS, WORDS, encoder_settings, finished, tiny_config


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

    def tables(self) -> list[ResultTable]:
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


class GivenTreeEncoder(TreeEncoder):
    """A Tree-LSTM over trees that come with the sentences."""

    Config = TreeSettings
    trees = "given"
    needs = frozenset({"order"})

    @property
    def query(self) -> Tensor:
        return self.cell.weight.new_zeros(self.config.hidden_dim)

    def encode(self, sentences: Sentences, draw: Draw, keep: Keep) -> Encoding:
        return self.merge(sentences, Draw(), keep)


class Reinforce(AdvanceEstimator):
    """The score-function estimator; training gives the reward."""


class AttendingHead(SingleHead):
    """Classes of pairs: every node of one sentence looks at all nodes of the other."""

    sentences = 2
    parts = 2
    keep = Keep(nodes=True)

    def forward(self, *encodings: Encoding) -> Tensor:
        (u, v), (m, n) = ([x.nodes.h for x in encodings], [x.mask for x in encodings])
        scores = u @ v.transpose(1, 2)  # [B, nodes, nodes]
        to_v = scores.masked_fill(~n[:, None], -torch.inf).softmax(2) @ v
        to_u = scores.masked_fill(~m[..., None], -torch.inf).softmax(1).transpose(1, 2) @ u
        first, second = ((x * there[..., None]).sum(1) for x, there in ((to_v, m), (to_u, n)))
        return self.classify(torch.cat([first, second], dim=1).tanh())


@pytest.fixture(autouse=True)
def _tables(monkeypatch):
    monkeypatch.setitem(ENCODERS.table, "wide", f"{__name__}:WideEncoder")
    monkeypatch.setitem(ENCODERS.table, "given", f"{__name__}:GivenTreeEncoder")
    monkeypatch.setitem(HEADS.table, "number", f"{__name__}:NumberHead")
    monkeypatch.setitem(HEADS.table, "attending", f"{__name__}:AttendingHead")
    monkeypatch.setitem(ESTIMATORS.table, "own_reinforce", f"{__name__}:Reinforce")


def model_of(encoder="gumbel_tree", head="single"):
    """Return a model in evaluation mode with weights that tell sentences apart."""
    plain = tiny_config("single" if head in ("single", "number") else "pair")
    config = dataclasses.replace(
        plain,
        encoder=encoder_settings(kind=encoder),
        head=PartConfig(kind=head)
        if head == "number"
        else dataclasses.replace(plain.head, kind=head),
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
    options = ("--json", "--runtime", "torch")
    found = json.loads(run("predict", tmp_path / "model", *options, *texts).out)
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
        None if part == "none" else f"Loud{part.title()} does not declare itself capturable"
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
    (parsed,) = finished(service.parse(served, [TEXTS[1]], service.Options()))
    found = json.loads(parsed)
    assert (found["classes"] is None) == (head == "number")
    assert found["answer"] == model.predict([TEXTS[1]])[0].as_dict()
    assert served.describe()["kind"] == head


# a head that reads nodes


def test_a_head_may_attend_between_sentences(tmp_path):
    model = model_of(head="attending")
    pairs = [TEXTS, TEXTS[::-1]]
    answers = model.predict(*pairs)
    # alone, or with others of other lengths
    for i, answer in enumerate(answers):
        (alone,) = model.predict([pairs[0][i]], [pairs[1][i]])
        assert alone.logits == pytest.approx(answer.logits, abs=1e-5)
    assert model.predict(*pairs, batch_size=2)[3].logits == pytest.approx(
        answers[3].logits, abs=1e-5
    )
    gumbeltree.save(model, tmp_path / "model", {})
    assert gumbeltree.load(tmp_path / "model").predict(*pairs) == answers
    split = split_of(model, examples_of(model))
    whole = evaluate(model, split)
    gold = [model.head.target(example.label) for example in examples_of(model)]
    told = model.predict([e.texts for e in examples_of(model)])
    expected = [
        -math.log(p.probabilities[model.labels[g]]) for p, g in zip(told, gold, strict=True)
    ]
    assert whole.loss == pytest.approx(np.mean(expected), rel=1e-4)
    losses = trained(model, split)
    assert losses[-1] < losses[0]


def trained(model, split, steps=40, **settings):
    """Train for some steps, and return the loss before and after."""
    config = TrainingConfig(learning_rate=0.01, seed=3, **settings)
    fabric = start_fabric("cpu", "32")
    optimizer = new_optimizer(config, model, fabric.device)
    module, wrapped = fabric.setup(model.train(), optimizer)
    step = Step(fabric, module, model, wrapped, split, config)
    before = evaluate(model, split).loss
    for number in range(steps):
        step(np.arange(len(split)), number, number)
    return before, evaluate(model, split).loss


# trees that come with the sentences


def with_orders(split):
    """Return a split whose sentences have right-branching trees."""
    merges = [np.arange(n - 2, -1, -1) for n in np.diff(split.starts)]
    orders = np.concatenate([np.empty(0, np.int64), *merges]).astype(np.uint16)
    return dataclasses.replace(split, orders=orders)


@pytest.mark.parametrize("head", ["single", "pair"])
def test_an_encoder_over_given_trees(head, tmp_path):
    model = model_of("given", head)
    bare = split_of(model, examples_of(model))
    split = with_orders(bare)
    batch = split.batch(np.arange(len(split)))
    encoding = model.encode_batch(batch.sentences)
    assert torch.equal(encoding.order, batch.sentences.order)
    fixed = SentenceModel(
        dataclasses.replace(model.config, encoder=encoder_settings(trees="right")), model.tokenizer
    ).eval()
    fixed.load_state_dict(model.state_dict())
    assert evaluate(model, split).loss == pytest.approx(evaluate(fixed, bare).loss, rel=1e-6)
    losses = trained(model, split)
    assert losses[-1] < losses[0]
    message = "the encoder 'given' needs `order`"
    with pytest.raises(ValueError, match=message):
        evaluate(model, bare)
    with pytest.raises(ValueError, match=message):
        model.encode(TEXTS)
    assert "does not declare itself capturable" in model.why_not_captured(sample=True)
    model.encoder.needs = frozenset({"order", "tags"})
    assert "needs tags" in model.why_not_captured(sample=True)


def test_given_trees_are_kept_in_prepared_files(tmp_path):
    recipe = gumbeltree.with_settings(gumbeltree.load_recipe("demo"), ["generate=40", "epochs=1"])
    data = gumbeltree.prepare(recipe)
    recipe = gumbeltree.with_settings(recipe, ["encoder.kind=given", "embedding_dim=8"])
    with pytest.raises(ValueError, match="needs `order`"):
        gumbeltree.train(recipe, data, tmp_path / "bare")
    given = {name: with_orders(split) for name, split in data.splits.items()}
    data = dataclasses.replace(data, splits=given)
    save_prepared(data, tmp_path / "data.safetensors")
    again = load_prepared(tmp_path / "data.safetensors")
    assert again.fingerprint() == data.fingerprint()
    result = gumbeltree.train(recipe, again, tmp_path / "run")
    assert 0 <= result["dev_accuracy"] <= 1


# an estimator whose gradient is known before the backward pass


@pytest.mark.parametrize("impl", ["reference", "exact"])
def test_reinforce_by_hand(impl):
    model = model_of()
    encoder = encoder_settings(estimator="own_reinforce", impl=impl)
    config = dataclasses.replace(model.config, encoder=encoder)
    model = SentenceModel(config, model.tokenizer).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    model.eval()
    split = split_of(model, examples_of(model))
    batch = split.batch(np.arange(len(split)))
    draw = Draw(keyed_noise(torch.arange(2 * len(split)).view(-1, 2), batch.sentences.layout.T))
    found = model(batch.sentences, draw)
    losses = model.head.loss(found.output, batch.targets)
    # each merge's log-probability from all of its layer's scores
    encoding = model.encode_batch(batch.sentences, draw, Keep(scores=True))
    log_prob, entropy = [], []
    for scores, order in zip(encoding.scores, encoding.order.tolist(), strict=True):
        layers = [
            scores[t, : len(order) - t][scores[t, : len(order) - t] > -math.inf].log_softmax(0)
            for t in range(len(order))
        ]
        chosen = [x[k] for x, k in zip(layers, order, strict=True) if k >= 0]
        log_prob.append(sum(chosen, torch.zeros((), dtype=torch.float64)))
        entropy.append(-sum((x.exp() * x).sum() for x in layers))
    torch.testing.assert_close(found.log_prob, torch.stack(log_prob))
    torch.testing.assert_close(found.entropy, torch.stack(entropy))
    known = losses.detach()
    others = torch.stack([(known.sum() - x) / (len(known) - 1) for x in known])
    objective = losses.sum() + ((known - others) * torch.stack(log_prob)).sum()
    objective = objective - 0.3 * torch.stack(entropy).sum()
    fabric = start_fabric("cpu", "32")
    settings = TrainingConfig(entropy=0.3)
    step = Step(fabric, model, model, None, split, settings)
    parameters = list(model.parameters())
    expected = torch.autograd.grad(objective, parameters, allow_unused=True, retain_graph=True)
    advantage = step.policy.advantage(batch, known, lambda: None)
    found = step._objective(losses.sum(), found) + step._surrogate(found, found, advantage)
    gradients = torch.autograd.grad(found, parameters, allow_unused=True)
    for (name, _), one, other in zip(model.named_parameters(), expected, gradients, strict=True):
        torch.testing.assert_close(one, other, msg=lambda text, name=name: f"{name}: {text}")
    query = [name for name, _ in model.named_parameters()].index("encoder.query")
    assert gradients[query].abs().max() > 0


def test_reinforce_is_unbiased():
    """The mean of many gradients is that of the loss, averaged over all trees."""
    torch.manual_seed(0)
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4, estimator="own_reinforce")).double()
    for parameter in encoder.parameters():
        nn.init.normal_(parameter, std=0.8)
    words = torch.randn(1, 3, 3, dtype=torch.float64)
    lengths, target = torch.tensor([3]), torch.randn(4, dtype=torch.float64)
    expected = 0.0
    for order in ([[0, 0]], [[1, 0]]):
        forced = encoder(words, lengths, order=torch.tensor(order), sample=False, details=True)
        log_prob, _ = of_choices(forced.scores, forced.order)
        expected = expected + (log_prob.exp() * (forced.vector - target).square().sum(1)).sum()
    (wanted,) = torch.autograd.grad(expected, encoder.query)
    many = 4000
    found = encoder(words.expand(many, -1, -1), lengths.expand(many))
    losses = (found.vector - target).square().sum(1)
    assert len({tuple(order) for order in found.order.tolist()}) == 2
    known = losses.detach()
    weights = (known - (known.sum() - known) / (many - 1)) / many
    (gradient,) = torch.autograd.grad(
        losses.mean() + (weights * found.log_prob).sum(), encoder.query
    )
    torch.testing.assert_close(gradient, wanted, rtol=0.1, atol=0.05 * float(wanted.abs().max()))


def test_reinforce_trains():
    model = model_of()
    config = dataclasses.replace(
        model.config, encoder=encoder_settings(estimator="own_reinforce", hidden_dim=6)
    )
    torch.manual_seed(1)
    model = SentenceModel(config, model.tokenizer)
    split = split_of(model, examples_of(model))
    losses = trained(model, split, entropy=0.01)
    assert losses[-1] < losses[0]


class Lossy(WideEncoder):
    """Adds losses of its own: that of its vectors' size."""

    def encode(self, *arguments: Any) -> Encoding:
        found = super().encode(*arguments)
        return dataclasses.replace(found, losses={"size": found.vector.square().sum(1)})


@pytest.mark.parametrize("head", ["single", "pair"])
def test_a_recipe_weighs_the_losses_of_an_encoder(head, monkeypatch):
    monkeypatch.setitem(ENCODERS.table, "wide", f"{__name__}:Lossy")
    sizes = []
    for weight in ({}, {"size": 0.0}, {"size": 30.0}):
        model = model_of("wide", head)
        split = split_of(model, examples_of(model))
        batch = split.batch(np.arange(len(split)))
        found = model(batch.sentences)
        assert found.losses["size"].shape == (len(split),)
        trained(model, split, steps=60, losses=weight)
        vectors = model.eval().encode_batch(batch.sentences).vector.detach()
        sizes.append(float(vectors.square().sum()))
    assert sizes[2] < sizes[0] < sizes[1]
    recipe = gumbeltree.with_settings(gumbeltree.load_recipe("demo"), ["losses.size=0.5"])
    assert recipe.training.losses == {"size": 0.5}
    with pytest.raises(ValueError, match=r"`training\.losses\.size` must be a number, got 'much'"):
        gumbeltree.with_settings(recipe, ["training.losses.size=much"])


# what a caller may get wrong


def test_arguments_of_the_other_form_are_refused():
    model = model_of()
    vectors = model.embed(Sentences.of([[1, 2, 3], [4]]))
    for name, value in (("noise", torch.zeros(2, 2, 2)), ("sample", False), ("details", True)):
        with pytest.raises(TypeError, match=f"`{name}` cannot be combined with Sentences"):
            model.encoder(vectors, **{name: value})
    with pytest.raises(TypeError, match="`keep` cannot be combined with a padded batch"):
        model.encoder(torch.randn(1, 2, 5), torch.tensor([2]), keep=Keep(nodes=True))


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (Draw(torch.full((2, 2, 2), math.nan)), "`noise` must not be NaN"),
        (Draw(torch.zeros(2, 2, 2), 0.0), "`temperature` must be a positive finite number"),
        (Draw(torch.zeros(9, 2, dtype=torch.int64)), r"`noise` must be keys \[B, 2\] = \[2, 2\]"),
        (Draw(torch.zeros(2, 3, 3)), r"`noise` must be \[B, T-1, T-1\] = \[2, 2, 2\]"),
    ],
)
def test_a_draw_that_makes_no_sense_is_refused(draw, message):
    with pytest.raises(ValueError, match=message):
        model_of()(Sentences.of([[1, 2, 3], [4]]), draw)


def test_sentences_that_make_no_sense_are_refused():
    model = model_of(head="pair")
    with pytest.raises(TypeError, match=r"must be Sentences, got Tensor"):
        model(torch.tensor([[1, 2]]))
    with pytest.raises(ValueError, match=r"PairHead reads 2 sentences per example, got 3"):
        model(Sentences.of([[1], [2], [3]]))
    encoder = model.encoder
    good = model.embed(Sentences.of([[1, 2, 3], [4]]))
    wide, double = good.with_words(torch.randn(4, 6)), good.with_words(good.words.double())
    with pytest.raises(ValueError, match=r"word vectors \[N, E\] with E=5, got \[4, 6\]"):
        encoder(wide)
    with pytest.raises(TypeError, match=r"`words` must be torch.float32"):
        encoder(double)
    broken = good.words.detach().clone()
    broken[1] = math.nan
    with pytest.raises(ValueError, match="NaN or infinity in sentence 1 at position 0"):
        encoder(good.with_words(broken))
    with pytest.raises(ValueError, match=r"`order` must lie in 0\.\.1 for sentence 0 at step 0"):
        encoder(good.with_order(torch.tensor([[5, 0], [0, 0]])))
    with pytest.raises(ValueError, match="no sentences"):
        Sentences.of([])
    with pytest.raises(ValueError, match="a sentence of 0 words"):
        Sentences.of([[1], []])
    with pytest.raises(TypeError, match=r"word ids must be integers.*float64"):
        Sentences.of([[1.5]])
    padded = torch.tensor([[1, 2, 0], [1, 0, 0]])
    with pytest.raises(ValueError, match=r"`lengths` must not exceed .* 3, got 4"):
        Sentences.padded(padded, torch.tensor([4, 2]))
    with pytest.raises(ValueError, match=r"`lengths` must be an integer tensor of shape \[2\]"):
        Sentences.padded(padded, torch.tensor([1.9, 2.0]))
    with pytest.raises(ValueError, match="a sentence of 0 words"):
        Sentences.padded(padded, torch.tensor([0, 2]))


def test_a_split_with_an_empty_sentence_is_refused():
    model = model_of()
    split = split_of(model, examples_of(model))
    starts = split.starts.copy()
    starts[1] = 0
    with pytest.raises(ValueError, match="a sentence of 0 words"):
        evaluate(model, dataclasses.replace(split, starts=starts))


def test_sentences_are_copied_and_pickled():
    sentences = Sentences.of([[1, 2, 3], [4]])
    for other in (copy.deepcopy(sentences), pickle.loads(pickle.dumps(sentences))):
        assert torch.equal(other.words, sentences.words)
        assert torch.equal(other.layout.rank, sentences.layout.rank)


def test_what_a_head_does_not_ask_for_is_nowhere_there():
    seen = []

    class Looking(SingleHead):
        keep = Keep(scores=True)

        def forward(self, *encodings: Encoding) -> Tensor:
            seen.append(encodings[0])
            return super().forward(*encodings)

    class Plain(Looking):
        keep = Keep()

    for head, expected in ((Plain, (False, False, False)), (Looking, (True, True, False))):
        model = model_of()
        model.head.__class__ = head
        model.predict(TEXTS)
        evaluate(model, split_of(model, examples_of(model)))
        asked = {(x.order is not None, x.scores is not None, x.nodes is not None) for x in seen}
        assert asked == {expected}
        seen.clear()


def test_masks_are_widened_with_their_nodes():
    encoder = model_of().encoder
    words = torch.randn(2, 5, 5)
    encoding = encoder(words, torch.tensor([3, 1]), details=True)
    expected = [[1, 1, 1, 0, 0, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0, 0]]
    assert encoding.mask.int().tolist() == expected
    assert torch.equal(encoding.mask, encoding.nodes.h.abs().sum(-1) > 0)


def test_an_encoder_that_draws_nothing_leaves_the_generator_alone():
    for kind in ("bag", "lstm"):
        encoder = model_of(kind).encoder.train()
        state = torch.get_rng_state()
        encoder(torch.randn(1, 2, 5, generator=torch.Generator()), torch.tensor([2]))
        assert torch.equal(torch.get_rng_state(), state)


def test_an_encoder_in_a_wrapper_is_not_captured():
    # such as that of torch.compile
    model = model_of()
    model.encoder = nn.Sequential(model.encoder)
    assert "is not an Encoder" in model.why_not_captured(sample=True)


# targets that are no classes, from files


def test_numbers_are_learned_from_files(tmp_path):
    rows = [f"{'the dog sleeps ' * (i % 3)}now {i} .\t{i % 3 - 0.5}" for i in range(60)]
    path = tmp_path / "train.tsv"
    path.write_text("\n".join(["text\tscore", *rows, ""]))
    recipe = gumbeltree.with_settings(
        gumbeltree.load_recipe("text"),
        [
            "text=text", "label=score", "dev_fraction=0.2", "head.kind=number", "epochs=2",
            "embedding_dim=6", "encoder.hidden_dim=6", "batch_size=8", "tuned=true",
        ],
    )  # fmt: skip
    data = gumbeltree.prepare(recipe, path)
    assert data.labels == ()
    assert data.splits["train"].labels.dtype == np.float32
    assert set(data.splits["train"].labels.tolist()) == {-0.5, 0.5, 1.5}
    save_prepared(data, tmp_path / "data.safetensors")
    again = load_prepared(tmp_path / "data.safetensors")
    assert again.fingerprint() == data.fingerprint()
    result = gumbeltree.train(recipe, again, tmp_path / "run")
    assert result["measure"] == "pearson"
    assert -1 <= result["dev_pearson"] <= 1
    model = gumbeltree.load(tmp_path / "run")
    assert isinstance(model.predict(["the dog"])[0].value, float)
    drawn = draw_curves([tmp_path / "run"], tmp_path / "curves.svg")
    assert drawn[0].runs[0].measure == "pearson"
    picture = (tmp_path / "curves.svg").read_text(encoding="utf-8")
    assert "development pearson" in picture
    assert "accuracy" not in picture
    path.write_text("\n".join(["text\tscore", *rows, "the cat\thigh", ""]))
    with pytest.raises(ValueError, match=r"label 'high' of 'the cat'"):
        gumbeltree.prepare(recipe, path)


def test_a_card_tells_of_any_measure():
    model = model_of(head="number")
    model.provenance = {
        "metrics": {"dev_pearson": -0.25, "step": 3},
        "recipe": {"data": {"task": "x"}},
    }
    card = model_card(model)
    (row,) = [line for line in card.splitlines() if "dev pearson" in line]
    assert "0.2500" in row
    assert "ccurac" not in card
    assert "text-classification" not in card
