"""Advantages of drawn trees, which the estimators `reinforce` and `ppo` learn from."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gumbeltree.config import LSTMConfig, ModelConfig, ReinforceConfig, TrainingConfig
from gumbeltree.data.split import Batch, Split
from gumbeltree.model import SentenceModel
from gumbeltree.nn.encoders.baselines import LSTMEncoder
from gumbeltree.nn.encoders.beam_tree import BeamTreeEncoder
from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.nn.estimators.estimator import AdvanceEstimator
from gumbeltree.parts import ENCODERS, ESTIMATORS
from gumbeltree.states import Encoding


class Policy:
    """Compares the losses of drawn trees with a baseline, and remembers what this needs.

    Args:
        model: the model that is trained. Unless the settings of its estimator are a
            `ReinforceConfig`, the baseline is the mean loss of the other examples.
        seed: seed of the critic's initial weights.
        total: sums tensors over all processes.

    Attributes:
        estimator: the estimator of the model.
        samples: number of trees drawn per example.
        sums: running sums of 1, of the losses minus their baseline, and of their squares, float64
            `[3]`.
        critic: predicts the loss of an example from its words; None unless the baseline is nvil.
        optimizer: optimizer of the critic.
    """

    def __init__(
        self, model: SentenceModel, seed: int, total: Callable[..., Sequence[Tensor]]
    ) -> None:
        estimator = estimator_of(model.encoder)
        # other encoders may provide log-probabilities on their own
        plain = not isinstance(estimator, AdvanceEstimator)
        self.estimator: AdvanceEstimator = AdvanceEstimator() if plain else estimator
        own = self.estimator.config
        self.config = own if isinstance(own, ReinforceConfig) else ReinforceConfig()
        self.model, self.total = model, total
        self.samples = self.config.samples if self.config.baseline == "rloo" else 1
        weight = model.embedding.weight
        self.sums = torch.zeros(3, dtype=torch.float64, device=weight.device)
        self.critic: Critic | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        if self.config.baseline == "nvil":
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                impl = getattr(model.config.encoder, "impl", "auto")
                lstm = LSTMConfig(weight.shape[1], self.config.critic_dim, impl=impl)
                critic = Critic(lstm, model.head.sentences)
            self.critic = critic.to(weight)
            self.optimizer = torch.optim.Adam(
                critic.parameters(),
                lr=self.config.critic_rate,
                capturable=weight.is_cuda,
                fused=True,
            )

    def advantage(
        self, batch: Batch, cost: Tensor, greedy: Callable[[], Tensor], weight: float = 1.0
    ) -> Tensor:
        """Return the advantage of each example `[B]`; update the running sums and the critic.

        The advantages depend only on the sums of earlier batches, which keeps the estimator
        unbiased.

        Args:
            batch: sentences and targets.
            cost: losses with the drawn trees, without gradient `[B]`.
            greedy: returns the losses with the highest-scoring merges, without gradient `[B]`.
            weight: 0 to learn nothing from the batch, else 1.
        """
        baseline, predicted = self.config.baseline, None
        signal = cost
        if baseline == "batch":
            signal = cost - _mean_of_others(cost[None])[0]
        elif baseline == "rloo":
            trees = cost.view(self.samples, -1)
            signal = (trees - _mean_of_others(trees.mT).mT).flatten()
        elif baseline == "self_critical":
            signal = cost - greedy()
        elif self.critic is not None:
            predicted = self.critic(self.model, batch)
            signal = cost - predicted.detach()
        count, mean, square = self.sums.clone()
        known = count > 0
        mean, square = (torch.where(known, x / count, 0.0) for x in (mean, square))
        centred = signal
        if baseline in ("running", "nvil"):
            centred = signal - mean.to(signal.dtype)
        advantage = centred
        if self.config.scaled or baseline == "nvil":
            deviation = (square - mean.square()).clamp(min=1.0).sqrt()
            advantage = centred / deviation.to(signal.dtype)
        wide = signal.double()
        new = torch.stack([torch.ones_like(wide), wide, wide.square()]).sum(1)
        (new,) = self.total(weight * new)
        self.sums.mul_(self.config.decay).add_((1 - self.config.decay) * new / new[0])
        if predicted is not None:
            # `centred` is the error of prediction and running mean together
            self._improve(predicted, centred + predicted.detach(), weight / new[0])
        return advantage

    def _improve(self, predicted: Tensor, target: Tensor, share: Tensor) -> None:
        """Reduce the squared error of the critic by one step."""
        assert self.critic is not None
        assert self.optimizer is not None
        parameters = list(self.critic.parameters())
        error = (predicted - target).square().sum() * share.to(predicted.dtype)
        gradients = self.total(*torch.autograd.grad(error, parameters))
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient.contiguous()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a checkpoint must restore."""
        state: dict[str, Any] = {"sums": self.sums}
        if self.critic is not None and self.optimizer is not None:
            state["critic"] = self.critic.state_dict()
            state["optimizer"] = self.optimizer.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        # in place: captured graphs read it
        self.sums.copy_(state["sums"])
        if self.critic is not None and self.optimizer is not None:
            self.critic.load_state_dict(state["critic"])
            load_optimizer(self.optimizer, state["optimizer"])


class Critic(nn.Module):
    """Predict the loss of an example from its words, regardless of the tree.

    Args:
        config: settings of its LSTM.
        sentences: sentences per example.
    """

    def __init__(self, config: LSTMConfig, sentences: int) -> None:
        super().__init__()
        self.encoder = LSTMEncoder(config)
        self.output = nn.Linear(sentences * config.hidden_dim, 1)
        # predict zero at first: the running mean is the better guess
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)
        self.sentences = sentences

    def forward(self, model: SentenceModel, batch: Batch) -> Tensor:
        """Return predictions `[B]`; no gradient reaches the model."""
        sentences = batch.sentences.with_words(model.embedding(batch.sentences.words).detach())
        # its gradients are read at once, so no work may wait on another stream
        sentences.layout = copy.copy(sentences.layout)
        sentences.layout.overlap = None
        encoding: Encoding = self.encoder(sentences)
        vectors = encoding.vector.chunk(self.sentences)
        return self.output(torch.cat(vectors, dim=1).to(self.output.weight.dtype))[:, 0]  # type: ignore[no-any-return]


def estimator_of(encoder: Encoder) -> Any:
    """Return the estimator of an encoder or of its parser; None if it has none."""
    return getattr(getattr(encoder, "parser", encoder), "estimator", None)


def check_policy(model: ModelConfig, training: TrainingConfig) -> bool:
    """Return whether an encoder learns by policy gradients; raise an error if it cannot.

    Weights of the policy need such an encoder, and its estimator needs drawn trees.
    """
    encoder = model.encoder
    kind = getattr(getattr(encoder, "estimator", None), "kind", None)
    if kind is None or not issubclass(ESTIMATORS[kind], AdvanceEstimator):
        for name, unused in (("entropy", 0), ("policy_weight", 1)):
            if (value := getattr(training, name)) != unused:
                has = f"the estimator {kind!r}" if kind else f"the encoder {encoder.kind!r}"
                raise ValueError(
                    f"`training.{name}` is {value:g}, but {has} does not learn from probabilities "
                    f"of trees; set it to {unused}, or use estimator=reinforce or ppo"
                )
        return False
    if issubclass(ENCODERS[encoder.kind], BeamTreeEncoder):
        raise ValueError(
            f"the encoder {encoder.kind!r} draws no trees, but the estimator {kind!r} learns from "
            "them; use encoder.kind=gumbel_tree or parser_composer, or estimator=st_gumbel"
        )
    return True


def check_drawn(model: ModelConfig, training: TrainingConfig, split: Split) -> None:
    """Raise an error if the estimator needs drawn trees, but the data set has its own."""
    if check_policy(model, training) and split.orders is not None:
        raise ValueError(
            f"the estimator {model.encoder.estimator.kind!r} learns from drawn trees, but the data "
            "set contains trees, which are followed instead; remove them, or use another estimator"
        )


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Restore the state of an optimizer that may have been on another device."""
    for group, own in zip(state["param_groups"], optimizer.param_groups, strict=True):
        for name in ("capturable", "fused", "foreach"):
            if name in own:
                group[name] = own[name]
    optimizer.load_state_dict(state)


def _mean_of_others(x: Tensor) -> Tensor:
    """Return the mean of the other entries of each row `[n, m]`; 0 if there is none."""
    return (x.sum(1, keepdim=True) - x) / max(1, x.shape[1] - 1)
