"""Test Latent Syntax: counts, a list as the stack, samples, policy gradients, plain text."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

import gumbeltree
from gumbeltree import Draw, Sentences, Tree
from gumbeltree.analysis.samples import sample_trees
from gumbeltree.card import model_card
from gumbeltree.config import TrainingConfig, load_recipe
from gumbeltree.describe import count_parameters
from gumbeltree.evaluation import split_of
from gumbeltree.nn.encoders.latent_syntax import LatentSyntaxEncoder
from gumbeltree.ops.stack.transitions import to_order, to_transitions
from gumbeltree.peers import LatentSyntaxConfig
from gumbeltree.tasks.task import Example
from gumbeltree.training.loop import new_optimizer
from gumbeltree.training.policy import Policy
from gumbeltree.training.start import start_fabric
from gumbeltree.training.step import Step
from tests.commands import run
from tests.models import TEXTS, tiny_model
from tests.nn.equations import check_company, check_same, encoder_of, words_of
from tests.nn.shift_reduce import Run, by_list

LENGTHS = [4, 1, 6, 2, 3]
E, D = 3, 4
WEIGHTS = ["log_prob", "entropy"]
each_tracker = pytest.mark.parametrize("tracker", [0, 2], ids=["bare", "tracked"])
each_impl = pytest.mark.parametrize("impl", ["exact", "reference"])


def made(tracker: int = 0, **fields: object) -> LatentSyntaxEncoder:
    sizes = {"embedding_dim": E, "hidden_dim": D}
    return encoder_of("latent_syntax", tracker=tracker, **sizes, **fields).train()


def words(lengths: list[int] = LENGTHS) -> Tensor:
    return words_of(lengths, E)[0]


def run_list(e: LatentSyntaxEncoder, x: Tensor, transitions: list[int] | None = None) -> Run:
    """Run one sentence `[L, E]` with a list as the stack."""

    def scores(top: Tensor, second: Tensor, word: Tensor, h: Tensor, c: Tensor) -> Tensor:
        if e.tracker is not None:
            return e.policy.weight @ h + e.policy.bias
        layer = e.policy[0].weight @ torch.cat([second, top, word]) + e.policy[0].bias
        return e.policy[2].weight @ layer.clamp(min=0) + e.policy[2].bias

    leaves = x @ e.leaf.weight.t() + e.leaf.bias
    # the forget gates have an offset of 1
    bias = e.cell.bias + torch.tensor([0.0, 1, 1, 0, 0]).repeat_interleave(D)
    missing = leaves.new_zeros(3, D) if e.absent is None else e.absent
    return by_list(leaves, e.cell.weight, bias, missing, e.tracker, transitions, scores)


def all_trees(length: int) -> list[list[int]]:
    """Return the merges of all trees, in the order of a stack."""
    found = []
    for transitions in itertools.product((0, 1), repeat=2 * length - 1):
        try:
            order = to_order(transitions)
        except ValueError:
            continue
        if len(order) == length - 1:
            found.append(order)
    return found


def test_counts() -> None:
    recipe = load_recipe("latent-syntax-matched")
    assert count_parameters(recipe.model)["total"] == 232_105
    recipe = gumbeltree.with_settings(recipe, ["tracker=100"])
    assert count_parameters(recipe.model)["total"] == 412_105


@each_tracker
@each_impl
@pytest.mark.parametrize("given", [False, True], ids=["drawn", "given"])
def test_equals_a_list_as_the_stack(tracker: int, impl: str, given: bool) -> None:
    e = made(tracker, impl=impl)
    x, lengths = words().requires_grad_(), torch.tensor(LENGTHS)
    garbage = torch.arange(max(LENGTHS)) >= lengths[:, None]
    keys = torch.arange(10).view(5, 2)
    padded = x.masked_fill(garbage[..., None], torch.nan)
    order = e(padded, lengths, noise=keys).order if given else None
    found = e(padded, lengths, noise=keys + given, order=order)
    assert (found.order[:, 0] >= 0).tolist() == [length > 1 for length in LENGTHS]
    runs = [
        run_list(e, x[b, :length], to_transitions(found.order[b, : length - 1].tolist()))
        for b, length in enumerate(LENGTHS)
    ]
    vectors = torch.stack([run.nodes[-1][:D] for run in runs])
    wanted = [vectors, *(torch.stack([getattr(run, x) for run in runs]) for x in WEIGHTS)]
    inputs = {"words": x, **dict(e.named_parameters())}
    check_same([found.vector, *(getattr(found, x) for x in WEIGHTS)], wanted, inputs, {"absent"})


@each_tracker
def test_takes_the_better_action_without_noise(tracker: int) -> None:
    e = made(tracker).eval()
    lengths = [4, 1, 7, 2, 6, 7, 5]
    x = words(lengths)
    found = e(x, torch.tensor(lengths), details=True)
    assert found.log_prob is None
    assert len({tuple(row) for row in found.order.tolist()}) > 3
    for b, length in enumerate(lengths):
        run = run_list(e, x[b, :length])
        assert to_transitions(found.order[b, : length - 1].tolist()) == run.actions
        torch.testing.assert_close(found.vector[b], run.nodes[-1][:D], rtol=0, atol=1e-12)
    check_company(e, lengths)


@each_tracker
def test_draws_do_not_depend_on_company(tracker: int) -> None:
    e, x, lengths = made(tracker), words(), torch.tensor(LENGTHS)
    keys = torch.arange(10).view(5, 2) * 7919
    check_company(e, LENGTHS, noise=keys)
    keys = torch.arange(80).view(40, 2)
    many = e(x[2:3].expand(40, -1, -1), lengths[2:3].expand(40), noise=keys)
    assert len({tuple(row) for row in many.order.tolist()}) > 2


@each_tracker
@pytest.mark.parametrize("length", [3, 4])
def test_mean_gradient_is_that_of_the_expected_loss(tracker: int, length: int) -> None:
    """All trees weighted by their probability; then the mean over many draws approaches it."""
    e = made(tracker)
    x, target = words([length]), torch.linspace(-1, 1, D, dtype=torch.float64)
    orders = torch.tensor(all_trees(length))
    count = {3: 2, 4: 5}[length]
    assert len(orders) == count
    batch = x.expand(count, -1, -1), torch.full((count,), length)
    keys = torch.zeros((count, 2), dtype=torch.int64)
    forced = e(*batch, order=orders, noise=keys)
    probability = forced.log_prob.exp()
    assert probability.sum().item() == pytest.approx(1)
    losses = (forced.vector - target).square().sum(1)
    parameters = list(e.parameters())
    exact = torch.autograd.grad((probability * losses).sum(), parameters, retain_graph=True)
    # the gradient that training uses, in expectation over the trees; a baseline changes nothing
    weights = probability.detach()
    surrogate = losses + (losses.detach() - 0.3) * forced.log_prob
    mean = torch.autograd.grad((weights * surrogate).sum(), parameters, retain_graph=True)
    for one, other in zip(exact, mean, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)
    # draws are as frequent as probable, so means over draws approach means over trees
    many = 3000
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        drawn = e(
            x.expand(many, -1, -1), torch.full((many,), length), sample=True, generator=generator
        )
    for order, p in zip(orders, weights, strict=True):
        share = (drawn.order == order).all(1).double().mean()
        assert abs(share - p) < 4 * (p * (1 - p) / many).sqrt() + 1e-9


def test_score_and_policy(tmp_path) -> None:
    model = tiny_model("single", encoder="latent_syntax", estimator="ppo").train()
    policy = Policy(model, 0, lambda *x: x)
    assert policy.estimator is model.encoder.estimator
    sentences, draw = Sentences.of([[1, 2, 3, 4], [5], [2, 2]]), Draw(torch.arange(6).view(3, 2))
    vectors = sentences.with_words(model.embedding(sentences.words))
    found = model.encoder(vectors, draw=draw)
    again = model.encoder.score(vectors.with_order(found.order), Draw(draw.noise + 9))
    torch.testing.assert_close(again.log_prob, found.log_prob)
    torch.testing.assert_close(again.entropy, found.entropy)
    mean = tiny_model(
        "single", encoder="latent_syntax", estimator={"kind": "reinforce", "mean_entropy": True}
    )
    mean.load_state_dict(model.state_dict())
    averaged = mean.encoder(vectors, draw=draw)
    torch.testing.assert_close(averaged.entropy * torch.tensor([3.0, 1.0, 1.0]), found.entropy)
    with pytest.raises(ValueError, match=r"no gradient reaches the actions.*'st_gumbel'"):
        LatentSyntaxEncoder(LatentSyntaxConfig(estimator="st_gumbel"))


@pytest.mark.parametrize("estimator", ["reinforce", {"kind": "ppo", "updates": 2}], ids=str)
def test_it_trains(estimator: object) -> None:
    torch.manual_seed(0)
    model = tiny_model("single", encoder="latent_syntax", tracker=3, estimator=estimator).train()
    labels = model.labels
    examples = [Example((text,), labels[i % 2], ()) for i, text in enumerate(TEXTS)]
    split = split_of(model, examples)
    config = TrainingConfig(learning_rate=0.03, entropy=0.01)
    fabric = start_fabric("cpu", "32")
    optimizer = new_optimizer(config, model, fabric.device)
    module, wrapped = fabric.setup(model, optimizer)
    step = Step(fabric, module, model, wrapped, split, config)
    before = model.encoder.policy.weight.detach().clone()
    losses = []
    for k in range(12):
        step.loss.zero_()
        step(np.arange(len(split)), k, k)
        losses.append(float(step.loss))
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    assert not torch.equal(model.encoder.policy.weight, before)


def test_a_model_parses_plain_text(tmp_path) -> None:
    model = tiny_model("single", encoder="latent_syntax")
    gumbeltree.save(model, tmp_path / "model", {})
    loaded = gumbeltree.load(tmp_path / "model")
    tree = loaded.parse(TEXTS[1])
    assert run("parse", tmp_path / "model", TEXTS[1]).out.strip() == str(tree)
    drawn = sample_trees(loaded, "the dog sleeps now .", samples=200, seed=1)
    assert len(drawn.trees) == 200
    assert 1 < len(set(drawn.trees)) <= 14
    assert isinstance(drawn.greedy, Tree)


@pytest.mark.parametrize("settings", [{}, {"encoder": "spinn", "parses": True}])
def test_cards_do_not_call_it_the_model_of_the_paper(settings: dict[str, object]) -> None:
    kind = settings.get("encoder", "latent_syntax")
    card = model_card(tiny_model("single", **{"encoder": kind, **settings}))
    assert "is a [Gumbel Tree-LSTM]" not in card
    assert f"encoder, `{kind}`, turns a sentence" in card
    assert "is a [Gumbel Tree-LSTM]" in model_card(tiny_model("single"))
