"""Policy gradients: enumerated expectations, baselines, several updates, checkpoints."""

import copy
import dataclasses
import itertools
import json
import re

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from torch import nn
from torch.utils._pytree import tree_leaves

from gumbeltree import Draw, Keep
from gumbeltree.config import LSTMConfig, PPOConfig, TrainingConfig
from gumbeltree.data.split import Split
from gumbeltree.model import SentenceModel
from gumbeltree.nn.encoders.tree_encoder import of_choices
from gumbeltree.nn.estimators.ppo import PPO
from gumbeltree.noise import mixed
from gumbeltree.text.tokenizer import whitespace_tokenizer
from gumbeltree.training.folder import RunFolder
from gumbeltree.training.loop import train
from gumbeltree.training.noise import example_keys, sample_keys
from gumbeltree.training.optimizers import new_optimizer
from gumbeltree.training.policy import Critic
from gumbeltree.training.step import Step
from tests.commands import run
from tests.models import WORDS, encoder_settings, tiny_config
from tests.runs import contents, small

SUMS = (0.5, 0.35, 3.0)
"""Running sums with the mean 0.7 and the deviation (6 - 0.49) ** 0.5."""
BASELINES = ("none", "batch", "running", "self_critical", "rloo", "nvil")


def split_of(lengths, columns=1):
    """Return single sentences of some lengths, or one pair of them."""
    generator = np.random.default_rng(3)
    words = generator.integers(2, len(WORDS) + 2, sum(lengths)).astype(np.uint16)
    sentences = np.arange(len(lengths), dtype=np.int32).reshape(-1, columns)
    return Split(words, np.cumsum([0, *lengths]), sentences, np.arange(len(sentences)) % 2)


class Recorder:
    """Stand-in for an optimizer: keeps every gradient and changes no weight."""

    def __init__(self, parameters):
        self.parameters, self.seen = parameters, []

    def step(self):
        self.seen.append([torch.zeros_like(p) if p.grad is None else p.grad.clone()
                          for p in self.parameters])  # fmt: skip

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None


class ForcedStep(Step):
    """Draws the trees that a test prescribes."""

    order = None

    def _forward(self, batch, draw, head=True):
        if self.order is not None:
            batch = batch._replace(sentences=batch.sentences.with_order(self.order))
        return super()._forward(batch, draw, head)


def step_of(head="single", optimizer=None, lengths=(3, 4), training=None, **settings):
    """Return the step of a model in float64 whose losses do not depend on the rest of the batch."""
    config = dataclasses.replace(tiny_config(head), encoder=encoder_settings(**settings))
    model = SentenceModel(config, whitespace_tokenizer(WORDS)).double().eval()
    torch.manual_seed(0)
    for p in model.parameters():
        nn.init.normal_(p, std=0.7)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = Recorder(parameters) if optimizer is None else optimizer(parameters)
    fabric = Fabric(accelerator="cpu", devices=1)
    config = TrainingConfig(clip=0, seed=5, **training or {})
    split = split_of(lengths, model.head.sentences)
    step = ForcedStep(fabric, model, model, optimizer, split, config)
    step.policy.sums.copy_(torch.tensor(SUMS, dtype=torch.float64))
    if step.policy.critic is not None:
        nn.init.normal_(step.policy.critic.output.weight)
    return step


def estimator(baseline="batch", kind="reinforce", **settings):
    return {"kind": kind, "baseline": baseline, "samples": 2, **settings}


def batch_of(step, samples=1):
    """Return all examples, several times, and any noise."""
    batch = step.split.batch(np.tile(np.arange(len(step.split)), samples))
    return batch, Draw(torch.arange(2 * len(batch.sentences)).view(-1, 2))


def orders(batch):
    """Yield every combination of the merge orders of the sentences, padded with -1."""
    lengths = batch.sentences.layout.own_lengths().tolist()
    each = [list(itertools.product(*(range(n) for n in range(T - 1, 0, -1)))) for T in lengths]
    for combination in itertools.product(*each):
        yield torch.tensor([[*order, *[-1] * (max(lengths) - 1 - len(order))]
                            for order in combination])  # fmt: skip


def enumerated(step):
    """Return the gradients of the expected loss: through the vectors, and through the choices."""
    batch, draw = batch_of(step)
    through_vectors = through_choices = total = 0.0
    for order in orders(batch):
        found = step.model(batch.sentences.with_order(order), draw)
        probability = found.log_prob.sum().exp()
        loss = step._losses(batch, found).sum()
        through_vectors = through_vectors + probability.detach() * loss
        through_choices = through_choices + probability * loss.detach()
        total += float(probability.detach())
    assert total == pytest.approx(1)
    parameters = step.optimizer.parameters
    return [
        torch.autograd.grad(
            x, parameters, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        for x in (through_vectors, through_choices)
    ]


def expected(step):
    """Return the expected gradient of a step, each outcome weighted by its probability."""
    batch, draw = batch_of(step, step.samples)
    state = copy.deepcopy(step.policy.state_dict())
    total = [torch.zeros_like(p) for p in step.optimizer.parameters]
    for step.order in orders(batch):
        probability = float(step._forward(batch, draw).log_prob.sum().exp().detach())
        step.policy.load_state_dict(copy.deepcopy(state))
        step._update(batch, draw, 1.0, 1.0)
        for sum_, gradient in zip(total, step.optimizer.seen.pop(), strict=True):
            sum_ += probability * gradient
    return total


def agree(found, wanted):
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


# the mean over all trees


@pytest.mark.parametrize("impl", ["exact", "reference"])
@pytest.mark.parametrize(
    ("baseline", "lengths"),
    [
        *((name, (3, 4)) for name in BASELINES if name != "rloo"),
        # the examples are drawn twice
        *(("rloo", lengths) for lengths in ((3, 3), (4,))),
    ],
    ids=lambda x: x if isinstance(x, str) else "-".join(map(str, x)),
)
def test_mean_gradient_is_that_of_the_expected_loss(baseline, lengths, impl):
    step = step_of(estimator=estimator(baseline), impl=impl, lengths=lengths)
    vectors, choices = enumerated(step)
    deviation = (6 - 0.49) ** 0.5 if baseline == "nvil" else 1.0
    agree(expected(step), [v + c / deviation for v, c in zip(vectors, choices, strict=True)])
    names = [name for name, p in step.model.named_parameters() if p.requires_grad]
    assert choices[names.index("encoder.query")].abs().max() > 1e-3


def test_reported_loss_is_a_mean_over_the_samples():
    step = step_of(estimator=estimator("rloo"), lengths=(3, 4))
    batch, draw = batch_of(step, step.samples)
    step.order = next(orders(batch))
    losses = step._losses(batch, step._forward(batch, draw))
    step._update(batch, draw, 0.5, 1.0)
    assert float(step.loss) == pytest.approx(0.5 * float(losses.detach().sum()) / 2)


@pytest.mark.parametrize("kind", ["reinforce", "ppo"])
@pytest.mark.parametrize("baseline", ["none", "self_critical", "nvil"])
def test_mean_gradient_of_pairs(baseline, kind):
    settings = estimator(baseline, kind, scaled=True)
    step = step_of("pair", estimator=settings | ({"updates": 1} if kind == "ppo" else {}))
    vectors, choices = enumerated(step)
    deviation = (6 - 0.49) ** 0.5
    agree(expected(step), [v + c / deviation for v, c in zip(vectors, choices, strict=True)])


@pytest.mark.parametrize("baseline", ["running", "self_critical"])
def test_mean_gradient_of_parser_and_composer(baseline):
    step = step_of(**parser_composer(estimator(baseline)))
    vectors, choices = enumerated(step)
    agree(expected(step), [v + c for v, c in zip(vectors, choices, strict=True)])
    named = [name for name, p in step.model.named_parameters() if p.requires_grad]
    for name, v, c in zip(named, vectors, choices, strict=True):
        # each module learns from one of both
        of_parser = name.startswith("encoder.parser.")
        assert bool(v.any()) != of_parser, name
        assert bool(c.any()) == of_parser, name


def parser_composer(settings, **parser):
    return {"kind": "parser_composer", "estimator": settings, "parser": parser, "leaf": "affine"}


@pytest.mark.parametrize("baseline", ["self_critical", "rloo", "nvil"])
def test_a_policy_learns_the_best_trees(baseline):
    """With a fixed composer, the expected loss falls almost to that of the best trees."""
    settings = estimator(baseline, "ppo", updates=2)
    step = step_of(
        kind="parser_composer",
        optimizer=lambda parameters: torch.optim.Adam(parameters, 0.03),
        lengths=(4, 4, 4),
        estimator=settings,
    )
    for name, p in step.model.named_parameters():
        p.requires_grad_(name.startswith("encoder.parser."))
        if name.startswith("head.output"):
            # larger outputs, so that the losses of trees differ more
            p.data *= 5
    batch, draw = batch_of(step)
    alike = list(orders(step.split.batch([0])))

    @torch.no_grad()
    def losses():
        """Return the losses with every tree, and the expected losses, summed over the sentences."""
        found = [
            step.model(batch.sentences.with_order(order.expand(3, -1)), draw) for order in alike
        ]
        each = torch.stack([step._losses(batch, x) for x in found])  # [trees, 3]
        probabilities = torch.stack([x.log_prob.exp() for x in found])
        return each.amin(0).sum(), (probabilities * each).sum()

    best, first = losses()
    for number in range(60):
        step(np.arange(3), number, number)
    last = losses()[1]
    assert first > best + 0.1
    assert last - best < 0.25 * (first - best)


# several updates


@pytest.mark.parametrize("baseline", BASELINES)
def test_first_update_of_ppo_is_that_of_reinforce(baseline):
    gradients = []
    for kind in ("reinforce", "ppo"):
        step = step_of(estimator=estimator(baseline, kind, scaled=True), training={"entropy": 0.1})
        batch, draw = batch_of(step, step.samples)
        step._update(batch, draw, 1.0, 1.0)
        gradients.append(step.optimizer.seen)
    assert (len(gradients[0]), len(gradients[1])) == (1, PPOConfig().updates)
    agree(gradients[0][0], gradients[1][0])


@pytest.mark.parametrize("kind", ["gumbel_tree", "parser_composer"])
def test_updates_of_ppo_by_hand(kind):
    settings = {"estimator": estimator("running", "ppo", updates=3, epsilon=0.02)}
    rate = 0.5
    step = step_of(
        kind=kind,
        optimizer=lambda parameters: torch.optim.SGD(parameters, rate),
        training={"entropy": 0.01},
        **settings,
    )
    model = copy.deepcopy(step.model)
    batch, draw = batch_of(step)
    step._update(batch, draw, 1.0, 0.5)

    found = model(batch.sentences, draw)
    losses = model.head.loss(found.output, batch.targets)
    advantage = losses.detach() - 0.7
    parameters = [p for p in model.parameters() if p.requires_grad]
    forced, first = batch.sentences.with_order(found.order), found.log_prob.detach()
    clipped = 0
    for update in range(3):
        now = model(forced, draw)
        ratio = (now.log_prob - first).exp()
        # the gradient stops if the probability has moved far enough in the right direction
        moves = torch.where(advantage > 0, ratio > 0.98, ratio < 1.02)
        clipped += int((~moves).sum())
        total = (torch.where(moves, ratio, ratio.detach()) * advantage).sum()
        total = total - 0.01 * now.entropy.sum()
        if update == 0:
            total = total + model.head.loss(now.output, batch.targets).sum()
        gradients = torch.autograd.grad(
            0.5 * total, parameters, allow_unused=True, materialize_grads=True
        )
        with torch.no_grad():
            for p, gradient in zip(parameters, gradients, strict=True):
                p -= rate * gradient
    assert clipped > 0
    trained = [p.detach() for p in step.model.parameters() if p.requires_grad]
    agree(trained, [p.detach() for p in parameters])


def test_ppo_clips_in_the_direction_that_lowers_the_loss():
    log_ratio = torch.tensor([-0.5, -0.1, 0.1, 0.5, 200.0]).repeat(2).requires_grad_()
    advantage = torch.tensor([2.0] * 5 + [-3.0] * 5)
    surrogate = PPO(PPOConfig(epsilon=0.2)).surrogate(advantage, log_ratio, torch.zeros(10))
    (gradient,) = torch.autograd.grad(surrogate.sum(), log_ratio)
    ratio = log_ratio.detach().exp() * advantage
    # a bad tree that is already rarer, and a good one that is already more frequent
    still = [False, True, True, True, None, True, True, True, False, False]
    for i, moves in enumerate(still):
        if moves is not None:
            assert gradient[i] == pytest.approx(float(ratio[i]) if moves else 0.0), i
    assert gradient.isfinite().all()


@pytest.mark.parametrize("impl", ["exact", "reference"])
@pytest.mark.parametrize("kind", ["gumbel_tree", "parser_composer"])
def test_sentences_of_one_word(kind, impl):
    step = step_of(kind=kind, impl=impl, estimator=estimator("nvil", "ppo"), lengths=(1, 1))
    batch, draw = batch_of(step)
    step._update(batch, draw, 1.0, 1.0)
    first, *others = step.optimizer.seen
    assert any(x.any() for x in first)
    assert len(others) == 3
    assert not any(x.any() for gradients in others for x in gradients)


def test_batch_normalisation_counts_each_batch_once():
    step = step_of(estimator=estimator("self_critical", "ppo"))
    step.model.train()
    batch, draw = batch_of(step)
    for _ in range(2):
        step._update(batch, draw, 1.0, 1.0)
    assert int(step.model.head.batch_norm_in.num_batches_tracked) == 2


# entropy


@pytest.mark.parametrize("mean", [False, True], ids=["sum", "mean"])
def test_entropy_and_its_gradient(mean):
    gradients = []
    for impl in ("exact", "reference"):
        step = step_of(estimator=estimator(mean_entropy=mean), impl=impl)
        batch, draw = batch_of(step)
        found = step.model(batch.sentences, draw)
        gradients.append(torch.autograd.grad(
            found.entropy @ torch.tensor([1.0, -2.0]).double(), step.optimizer.parameters,
            allow_unused=True, materialize_grads=True, retain_graph=True,
        ))  # fmt: skip
    agree(*gradients)
    scores = step.model.encode_batch(batch.sentences, draw, Keep(scores=True)).scores.detach()
    wanted, slopes = torch.zeros(2).double(), torch.zeros_like(scores)
    for b, T in enumerate((3, 4)):
        for t in range(T - 1):
            p = scores[b, t, : T - 1 - t].softmax(0)
            layer = -(p * p.log()).sum()
            wanted[b] += layer
            slopes[b, t, : T - 1 - t] = -p * (p.log() + layer)
    divisor = torch.tensor([2.0, 3.0] if mean else [1.0, 1.0])
    torch.testing.assert_close(found.entropy.detach(), wanted / divisor)
    scores.requires_grad_()
    (slope,) = torch.autograd.grad(of_choices(scores, found.order)[1].sum(), scores)
    torch.testing.assert_close(slope, slopes)


@pytest.mark.parametrize("kind", ["reinforce", "ppo"])
def test_weight_of_the_policy(kind):
    first = []
    for weight in (0.0, 1.0, 3.0):
        training = {"entropy": 0.1, "policy_weight": weight}
        step = step_of(estimator=estimator("running", kind), training=training)
        batch, draw = batch_of(step, step.samples)
        step._update(batch, draw, 1.0, 1.0)
        first.append(step.optimizer.seen[0])
    # the gradient of the loss and of the bonus is that without a policy
    changed = 0.0
    for without, once, thrice in zip(*first, strict=True):
        torch.testing.assert_close(thrice - without, 3 * (once - without))
        changed += (once - without).abs().sum().item()
    assert changed > 0.01


# running numbers


def test_running_sums_by_hand():
    step = step_of(estimator=estimator("running", scaled=True, decay=0.75))
    policy, batch = step.policy, batch_of(step)[0]
    policy.sums.zero_()
    costs = [torch.tensor([4.0, 9.0]), torch.tensor([1.0, 2.0]), torch.tensor([0.0, -7.0])]
    found = [policy.advantage(batch, cost, lambda: None) for cost in costs]
    torch.testing.assert_close(found[0], costs[0])
    torch.testing.assert_close(found[1], (costs[1] - 6.5) / (97 / 2 - 6.5**2) ** 0.5)
    weights = np.array([0.75, 1.0]) / 1.75
    mean, square = weights @ [6.5, 1.5], weights @ [97 / 2, 5 / 2]
    torch.testing.assert_close(
        found[2], (costs[2] - mean) / (square - mean**2) ** 0.5, rtol=1e-6, atol=1e-6
    )
    # weight 0: a process without examples of its own
    policy.total = lambda x: [x + torch.tensor([2.0, 20.0, 500.0])]
    before = policy.sums.clone()
    policy.advantage(batch, torch.tensor([1e9, 1e9]), lambda: None, weight=0.0)
    torch.testing.assert_close(
        policy.sums, 0.75 * before + 0.25 * torch.tensor([1.0, 10.0, 250.0]).double()
    )


def test_small_deviations_do_not_enlarge_advantages():
    step = step_of(estimator=estimator("none", scaled=True))
    step.policy.sums.copy_(torch.tensor([1.0, 0.0, 0.01]))
    cost = torch.tensor([0.5, -0.25])
    assert torch.equal(step.policy.advantage(batch_of(step)[0], cost, lambda: None), cost)


def test_critic_learns_the_loss_of_each_sentence():
    step = step_of(estimator=estimator("nvil", critic_rate=0.05))
    policy, batch = step.policy, batch_of(step)[0]
    before = [p.clone() for p in step.model.parameters()]
    cost = torch.tensor([0.5, 4.5]).double()
    sizes = [policy.advantage(batch, cost, lambda: None).abs().sum() for _ in range(60)]
    assert sizes[-1] < 0.2 * sizes[0]
    assert all(p.grad is None for p in step.model.parameters())
    agree(step.model.parameters(), before)
    # of pairs, it reads both sentences
    pair = step_of("pair", estimator=estimator("nvil"), lengths=(3, 4, 3, 2))
    one, other = pair.policy.critic(pair.model, batch_of(pair)[0]).tolist()
    assert one != pytest.approx(other)
    assert pair.policy.critic.output.in_features == 2 * 64


def test_critic_predicts_zero_at_first():
    assert not Critic(LSTMConfig(5, 4), 2).output.weight.any()


def test_repeated_examples_have_noise_of_their_own():
    rows = torch.tensor([3, 8]).repeat(3)
    keys = example_keys(1, 2, rows, 2)  # [2 * 3 * 2, 2]
    found = sample_keys(keys, 2, 3)
    assert torch.equal(sample_keys(keys, 2, 1), keys)
    assert len({tuple(key) for key in found.tolist()}) == 12
    # column 1, sample 2, example 0
    assert torch.equal(found[6 + 4], mixed(keys[6] ^ 2, 23))
    # the noise of a sample does not depend on the batch
    alone = example_keys(1, 2, torch.tensor([3]).repeat(3), 2)
    assert torch.equal(sample_keys(alone, 2, 3)[3 + 2], found[6 + 4])


# runs

PARSER = ("encoder.kind=parser_composer", "encoder.leaf=affine", "parser.hidden_dim=6")
RUNS = {
    "self_critical": ("estimator=reinforce", "baseline=self_critical", "scaled=true"),
    "running": ("estimator=reinforce", "baseline=running", "entropy=0.01"),
    "nvil": ("estimator=reinforce", "baseline=nvil", "critic_dim=5"),
    "rloo": ("estimator=reinforce", "baseline=rloo", "samples=2"),
    "ppo": ("estimator=ppo", "baseline=self_critical", "scaled=true", "updates=3"),
    "parser": (
        "estimator=ppo", *PARSER, "baseline=nvil", "updates=2", "parser_rate=0.1",
        "optimizer=adadelta", "patience=0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_resumes_with_the_same_bits(demo, tmp_path, name):
    recipe = small("data.generate=280", *RUNS[name])

    def fail(step):
        if step == 7:
            # the first epoch has 7 steps
            raise RuntimeError("failed")

    train(recipe, demo, tmp_path / "straight")
    with pytest.raises(RuntimeError, match="failed"):
        train(recipe, demo, tmp_path / "run", on_step=fail)
    train(recipe, demo, tmp_path / "run", resume=True)
    one = check_resumed(tmp_path, "model", "optimizer", "policy")
    assert one["policy"]["sums"][0] == pytest.approx(1 - 0.9**14)


def last_state(folder):
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    with RunFolder(folder, settings, True) as run:
        return run.load_checkpoint()


def check_resumed(folder, *parts):
    """Compare "run", which was interrupted, with "straight"; return its last state."""
    runs = folder / "run", folder / "straight"
    found, wanted = map(contents, runs)
    assert found == wanted
    # the best model may be older than the last state
    one, other = map(last_state, runs)
    for part in parts:
        assert one[part].keys() == other[part].keys()
        for x, y in zip(tree_leaves(one[part]), tree_leaves(other[part]), strict=True):
            assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
    return one


def test_the_parser_has_a_learning_rate_of_its_own():
    model = step_of(kind="parser_composer", estimator="ppo").model
    config = TrainingConfig(learning_rate=1.0, parser_rate=0.1, optimizer="adadelta")
    rest, parser = new_optimizer(config, model, torch.device("cpu")).param_groups
    assert (rest["lr"], parser["lr"]) == (1.0, 0.1)
    wanted = {id(p) for p in model.encoder.parser.parameters()}
    assert {id(p) for p in parser["params"]} == wanted
    everything = {id(p) for p in model.parameters() if p.requires_grad}
    assert {id(p) for p in rest["params"]} == everything - wanted


# contradictory settings

ERRORS = {
    "beams": (
        ("estimator=ppo", "encoder.kind=beam_tree"),
        "the encoder 'beam_tree' draws no trees, but the estimator 'ppo' learns from them",
    ),
    "entropy": (
        ("entropy=0.1",),
        "`training.entropy` is 0.1, but the estimator 'st_gumbel' does not learn from",
    ),
    "weight of no policy": (
        ("policy_weight=0.5",),
        "`training.policy_weight` is 0.5, but the estimator 'st_gumbel' does not learn from",
    ),
    "entropy of a bag": (
        ("encoder.kind=bag", "entropy=0.1"),
        "`training.entropy` is 0.1, but the encoder 'bag' does not learn from",
    ),
    "parser without a policy": (
        ("encoder.kind=parser_composer", "estimator=gapped"),
        "no gradient reaches the parser with the estimator 'gapped'; use estimator=reinforce",
    ),
    "rate of no parser": (
        ("estimator=ppo", "parser_rate=0.1"),
        "`training.parser_rate` is 0.1, but the encoder has no parser",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_rejects_contradictory_settings_before_training(demo, tmp_path, name):
    settings, message = ERRORS[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        train(small(*settings), demo, tmp_path / "run")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_rejects_trees_of_the_data():
    step = step_of(estimator="reinforce")
    split = dataclasses.replace(step.split, orders=np.zeros(5, np.uint8))
    with pytest.raises(ValueError, match="'reinforce' learns from drawn trees, but the data set"):
        Step(step.fabric, step.model, step.model, None, split, step.config)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("samples=1", "`model.encoder.estimator.samples` must be at least 2, got 1"),
        ("epsilon=0", "`model.encoder.estimator.epsilon` must be at least 1e-06, got 0.0"),
        ("epsilon=-0.2", "must be at least 1e-06, got -0.2"),
        ("updates=0", "`model.encoder.estimator.updates` must be at least 1, got 0"),
        ("estimator.decay=1", "`model.encoder.estimator.decay` must be in 0..0.9999, got 1.0"),
        ("baseline=greedy", "must be one of none, batch, running, self_critical, rloo, nvil"),
        ("encoder.kind=bag estimator=ppo", "the encoder 'bag' does not learn which"),
        ("encoder.kind=fixed_tree estimator.baseline=rloo", "'fixed_tree' does not learn"),
    ],
)
def test_rejects_bad_settings(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        small("estimator=ppo", *settings.split())


@pytest.mark.parametrize("name", ["beams", "entropy", "entropy of a bag"])
def test_the_command_rejects_them_before_it_reads_data(name, tmp_path):
    settings, message = ERRORS[name]
    changes = [x for setting in settings for x in ("--set", setting)]
    bad = tmp_path / "train.tsv"
    bad.write_text("no example\n")
    refused = run("train", "listops", *changes, "--data", bad, "--out", tmp_path / "run")
    assert message in refused.refused()
    assert not (tmp_path / "run").exists()
