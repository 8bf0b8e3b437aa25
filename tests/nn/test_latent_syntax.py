"""Test Latent Syntax: counts, a list as the stack, samples, policy gradients, plain text."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

import gumbeltree
from gumbeltree import Draw, Sentences, Tree
from gumbeltree.analysis.samples import sample_trees
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

LENGTHS = [4, 1, 6, 2, 3]
E, D = 3, 4
each_tracker = pytest.mark.parametrize("tracker", [0, 2], ids=["bare", "tracked"])
each_impl = pytest.mark.parametrize("impl", ["exact", "reference"])


def made(tracker: int = 0, **fields: object) -> LatentSyntaxEncoder:
    torch.manual_seed(1)
    encoder = LatentSyntaxEncoder(LatentSyntaxConfig(E, D, tracker=tracker, **fields)).double()
    for p in encoder.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return encoder


def words(lengths: list[int] = LENGTHS) -> Tensor:
    torch.manual_seed(2)
    return torch.randn(len(lengths), max(lengths), E, dtype=torch.float64)


def by_list(e: LatentSyntaxEncoder, x: Tensor, transitions: list[int] | None) -> tuple:
    """Return vector, log-probability, entropy and actions for one sentence `[L, E]`.

    Without transitions, take the possible action with the higher score.
    """
    stack, queue = [], list(x @ e.leaf.weight.t() + e.leaf.bias)
    log_prob = entropy = torch.zeros((), dtype=torch.float64)
    absent = torch.zeros(3, D, dtype=torch.float64) if e.absent is None else e.absent
    d = e.config.tracker
    hidden = cell = x.new_zeros(d)
    actions: list[int] = []
    for step in range(2 * len(x) - 1):
        top = stack[-1][:D] if stack else absent[0]
        second = stack[-2][:D] if len(stack) > 1 else absent[1]
        word = queue[0][:D] if queue else absent[2]
        if d:
            gates = e.tracker.weight_ih @ torch.cat([top, second, word])
            i, f, g, o = (gates + e.tracker.weight_hh @ hidden + e.tracker.bias).split(d)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            hidden = o.sigmoid() * cell.tanh()
            scores = e.policy.weight @ hidden + e.policy.bias
        else:
            layer = e.policy[0].weight @ torch.cat([second, top, word]) + e.policy[0].bias
            scores = e.policy[2].weight @ layer.clamp(min=0) + e.policy[2].bias
        action = 0 if queue else 1
        if queue and len(stack) > 1:
            action = int(scores.argmax()) if transitions is None else transitions[step]
            logs = scores.log_softmax(0)
            log_prob, entropy = log_prob + logs[action], entropy - (logs.exp() * logs).sum()
        actions.append(action)
        if action == 0:
            stack.append(queue.pop(0))
            continue
        right, left = stack.pop(), stack.pop()
        gates = e.cell.weight @ torch.cat([left[:D], right[:D]]) + e.cell.bias
        if d:
            gates = gates + e.tracker.to_cell @ hidden
        i, f_l, f_r, g, o = gates.split(D)
        # the forget gates have an offset of 1
        c = (f_l + 1).sigmoid() * left[D:] + (f_r + 1).sigmoid() * right[D:]
        c = c + i.sigmoid() * g.tanh()
        stack.append(torch.cat([o.sigmoid() * c.tanh(), c]))
    return stack[0][:D], log_prob, entropy, actions


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
    loss = expected = torch.zeros((), dtype=torch.float64)
    weight = torch.linspace(-1, 2, D, dtype=torch.float64)
    for b, length in enumerate(LENGTHS):
        merges = found.order[b, : length - 1].tolist()
        *wanted, actions = by_list(e, x[b, :length], to_transitions(merges))
        assert actions == to_transitions(merges)
        for y, z, factor in zip(
            (found.vector, found.log_prob, found.entropy), wanted, (weight, 2.0, -0.7), strict=True
        ):
            torch.testing.assert_close(y[b], z, rtol=0, atol=1e-12)
            loss = loss + (1 + b) * (factor * y[b]).sum()
            expected = expected + (1 + b) * (factor * z).sum()
    inputs = [x, *e.parameters()]
    gradients = (
        torch.autograd.grad(y, inputs, allow_unused=True, materialize_grads=True)
        for y in (loss, expected)
    )
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@each_tracker
def test_takes_the_better_action_without_noise(tracker: int) -> None:
    e = made(tracker).eval()
    lengths = [4, 1, 7, 2, 6, 7, 5]
    x = words(lengths)
    found = e(x, torch.tensor(lengths), details=True)
    assert found.log_prob is None
    assert len({tuple(row) for row in found.order.tolist()}) > 3
    for b, length in enumerate(lengths):
        vector, _, _, actions = by_list(e, x[b, :length], None)
        assert to_transitions(found.order[b, : length - 1].tolist()) == actions
        torch.testing.assert_close(found.vector[b], vector, rtol=0, atol=1e-12)
        alone = e(x[b : b + 1, :length], torch.tensor([length]))
        assert torch.equal(alone.order[0], found.order[b, : length - 1])


@each_tracker
def test_draws_do_not_depend_on_company(tracker: int) -> None:
    e, x, lengths = made(tracker), words(), torch.tensor(LENGTHS)
    keys = torch.arange(10).view(5, 2) * 7919
    together = e(x, lengths, noise=keys)
    for b, length in enumerate(LENGTHS):
        one = e(x[b : b + 1, :length], lengths[b : b + 1], noise=keys[b : b + 1])
        assert torch.equal(one.order[0], together.order[b, : length - 1])
        torch.testing.assert_close(one.log_prob[0], together.log_prob[b], rtol=0, atol=1e-12)
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
    policy = Policy(model, 0, lambda x: x)
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
