"""Learning rates over time."""

from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from gumbeltree.config import TrainingConfig


class Schedule:
    """Set the learning rate of each parameter group.

    The rate is the initial one, halved after `patience` evaluations without improvement and every
    `halve_every` epochs, times decay^(step / decay_steps).

    Args:
        optimizer: optimizer with the initial rates.
        config: training settings.
        lower: whether lower values of the metric are better.

    Attributes:
        halvings: number of halvings for lack of improvement.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, config: TrainingConfig, lower: bool
    ) -> None:
        self.optimizer, self.config = optimizer, config
        self.rates = self._current()
        self.halvings = 0
        self.plateau = ReduceLROnPlateau(
            optimizer, "min" if lower else "max", factor=0.5, patience=config.patience
        )

    def _current(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def begin(self, epoch: int, step: int) -> None:
        """Set the rates of a step; both counts start at 0."""
        config = self.config
        factor = config.decay ** (step / config.decay_steps)
        if config.halve_every:
            factor *= 0.5 ** (epoch // config.halve_every)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor

    def evaluated(self, value: float) -> bool:
        """Return whether the rates are halved after an evaluation with this value."""
        before = self._current()
        self.plateau.step(value)
        halved = [now < then for now, then in zip(self._current(), before, strict=True)]
        self.rates = [x / 2 if half else x for x, half in zip(self.rates, halved, strict=True)]
        self.halvings += any(halved)
        return any(halved)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that a checkpoint must restore."""
        plateau = self.plateau.state_dict()
        return {"plateau": plateau, "rates": self.rates, "halvings": self.halvings}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state, after that of the optimizer."""
        if "plateau" not in state:
            # earlier versions had nothing else, and the optimizer has the rates
            state = {"plateau": state, "rates": self._current(), "halvings": 0}
        self.plateau.load_state_dict(state["plateau"])
        self.rates, self.halvings = list(state["rates"]), state["halvings"]


def share_of_examples(config: TrainingConfig, epoch: int) -> float:
    """Return the share of the training examples, the shortest ones, that an epoch has."""
    return min(1.0, (epoch + 1) / (config.curriculum + 1))
