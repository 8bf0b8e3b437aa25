"""One update of the weights: eager, or captured as a CUDA graph."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor, nn

from gumbeltree.config import TrainingConfig
from gumbeltree.data.device_split import DeviceSplit
from gumbeltree.data.split import Batch, Split
from gumbeltree.device.graphs import Graphs
from gumbeltree.device.overlap import Overlap
from gumbeltree.model import ModelOutput, SentenceModel
from gumbeltree.states import Draw
from gumbeltree.training.noise import example_keys, step_seed


class Step:
    """Update the weights eagerly: with any model, on any device, in several processes.

    Args:
        fabric: device or devices.
        module: the model as wrapped by `fabric`.
        model: the model itself.
        optimizer: as wrapped by `fabric`.
        split: training examples.
        config: training settings.

    Attributes:
        loss: sum of the examples' losses since the caller last set it to zero, float64 `[]`.
        norm: sum of the gradient norms before clipping, float64 `[]`.
    """

    def __init__(
        self,
        fabric: Fabric,
        module: nn.Module,
        model: SentenceModel,
        optimizer: Any,
        split: Split,
        config: TrainingConfig,
    ) -> None:
        self.fabric, self.module, self.model = fabric, module, model
        self.optimizer, self.split, self.config = optimizer, split, config
        self.loss = torch.zeros((), dtype=torch.float64, device=fabric.device)
        self.norm = torch.zeros((), dtype=torch.float64, device=fabric.device)
        self.columns = split.sentences.shape[1]

    def __call__(self, rows: NDArray[np.int64], epoch: int, step: int) -> None:
        """Update the weights on the examples of `rows`, of which each process takes a share."""
        rank, world = self.fabric.global_rank, self.fabric.world_size
        mine = rows[rank::world]
        weight = 1.0
        if not len(mine):
            # fewer examples than processes: compute gradients all the same, with weight zero
            mine, weight = rows[:1], 0.0
        batch = self.split.batch(mine, self.fabric.device)
        examples = torch.from_numpy(mine).to(self.fabric.device)
        keys = example_keys(self.config.seed, epoch, examples, self.columns)
        torch.manual_seed(step_seed(self.config.seed, step, rank))
        # gradients are averaged over processes; the last factor makes that the mean over examples
        self._update(batch, Draw(keys), weight, world / len(rows))

    def _update(self, batch: Batch, draw: Draw, weight: float, share: float) -> None:
        """Update the weights on a batch.

        Args:
            batch: sentences and targets.
            draw: noise and temperature of the merges.
            weight: 0 if the batch must not count, else 1.
            share: factor from the sum of the losses to the objective.
        """
        output = self.module(batch.sentences, draw)
        losses = self._losses(batch, output)
        total = weight * losses.sum()
        self.fabric.backward(weight * self._objective(losses, output) * share)
        norm = clip(self.model, self.config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.loss += total.detach()
        self.norm += norm

    def _losses(self, batch: Batch, output: ModelOutput) -> Tensor:
        """Return the head's loss of each example `[B]`."""
        scores = output.output
        if scores.dtype.itemsize < 4:
            scores = scores.float()
        losses: Tensor = self.model.head.loss(scores, batch.targets)
        return losses

    def _objective(self, losses: Tensor, output: ModelOutput) -> Tensor:
        """Return the sum to minimise: losses `[B]` of the head, of the encoder, and surrogates.

        If the merges have log-probabilities, the surrogate of REINFORCE (Williams 1992) is added,
        with the mean loss of the other examples as the baseline, which keeps it unbiased.
        """
        total = losses.sum()
        for name, extra in output.losses.items():
            total = total + self.config.losses.get(name, 1.0) * extra.sum()
        if output.log_prob is not None and output.entropy is not None:
            cost = losses.detach()
            baseline = (cost.sum() - cost) / max(1, len(cost) - 1)
            total = total + ((cost - baseline) * output.log_prob).sum()
            total = total - self.config.entropy * output.entropy.sum()
        return total


class CapturedStep(Step):
    """Run the whole update as one CUDA graph.

    Batches of similar sizes share a graph; see `device.graphs.Graphs`. The very first batch runs
    eagerly, with the same result. Arguments are those of `Step`, except that the optimizer is not
    wrapped, and capturable.
    """

    def __init__(
        self,
        fabric: Fabric,
        module: nn.Module,
        model: SentenceModel,
        optimizer: torch.optim.Optimizer,
        split: Split,
        config: TrainingConfig,
    ) -> None:
        super().__init__(fabric, module, model, optimizer, split, config)
        device = fabric.device
        self.on_device = DeviceSplit(split, device)
        self.graphs = Graphs(device, at_once=True)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.examples = torch.arange(len(split), device=device)
        self.keys = torch.zeros((self.columns * len(split), 2), dtype=torch.int64, device=device)
        self.epoch = -1
        self.overlap = Overlap(device) if device.type == "cuda" else None
        # a graph would keep the value that a Python number has at capture
        self.rate = _Number(device)
        self.temperature = _Number(device)

    def __call__(self, rows: NDArray[np.int64], epoch: int, step: int) -> None:
        """Update the weights on the examples of `rows`."""
        if epoch != self.epoch:
            self.keys.copy_(example_keys(self.config.seed, epoch, self.examples, self.columns))
            self.epoch = epoch
        self.rate.set(self.optimizer.param_groups[0]["lr"])
        self.temperature.set(getattr(self.model.encoder, "temperature", 1.0))
        bounds, numbers = self.on_device.place(rows)
        # memory allocated inside a graph is reused by other graphs, so allocate what lasts here
        self.model.encoder.prepare(bounds.T)
        make_state(self.optimizer, self.parameters)

        def function(numbers: Tensor) -> None:
            batch = self.on_device.read(numbers, bounds, self.overlap)
            draw = Draw(self.keys[batch.own], self.temperature.tensor)
            self._update(batch, draw, 1.0, 1 / len(rows))

        torch.manual_seed(step_seed(self.config.seed, step, 0))
        self.graphs(bounds, function, numbers)

    def _update(self, batch: Batch, draw: Draw, weight: float, share: float) -> None:
        """Update the weights on a batch, without reading any value back to the CPU."""
        with self.overlap or contextlib.nullcontext():
            with self.fabric.autocast():
                output = self.model(batch.sentences, draw)
            losses = self._losses(batch, output)
            total = losses.sum()
            objective = self._objective(losses, output) * share
            gradients = torch.autograd.grad(objective, self.parameters, allow_unused=True)
        try:
            self._set_gradients(gradients)
            norm = self._clip()
            with _learning_rate(self.optimizer, self.rate.tensor):
                self.optimizer.step()
        finally:
            for p in self.parameters:
                p.grad = None
            # for other users of the optimizer, who clip by themselves
            self.optimizer.grad_scale = None
        self.loss += total.detach()
        self.norm += norm

    def _set_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """Give each parameter a contiguous gradient that it shares with no other."""
        taken: set[int] = set()
        for p, gradient in zip(self.parameters, gradients, strict=True):
            if gradient is not None and (
                gradient.data_ptr() in taken or not gradient.is_contiguous()
            ):
                # the terms of a sum share one gradient, which clipping would scale twice
                gradient = gradient.clone(memory_format=torch.contiguous_format)
            p.grad = gradient
            if gradient is not None:
                taken.add(gradient.data_ptr())

    def _clip(self) -> Tensor:
        """Clip the gradients, in the optimizer if it can, and return their norm before `[]`."""
        # how torch marks optimizers that take `grad_scale`
        scales = getattr(self.optimizer, "_step_supports_amp_scaling", False)
        if not (self.config.clip and scales):
            return clip(self.model, self.config.clip)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        # fused optimizers divide by this as they read the gradients, which saves a pass over them
        self.optimizer.grad_scale = ((norm.float() + 1e-6) / self.config.clip).clamp(min=1.0)
        return norm


class _Number:
    """A number on the device, written only when it changes."""

    def __init__(self, device: torch.device) -> None:
        self.tensor = torch.zeros((), device=device)
        self.value = math.nan

    def set(self, value: float) -> None:
        if value != self.value:
            self.tensor.fill_(value)
            self.value = value


@contextlib.contextmanager
def _learning_rate(optimizer: torch.optim.Optimizer, rate: float | Tensor) -> Iterator[None]:
    """Replace the learning rate for a while."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = rate
    try:
        yield
    finally:
        for group, former in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = former


def make_state(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> None:
    """Create the optimizer's state of parameters that it has not updated yet.

    Optimizers create it at a parameter's first gradient, which could be inside a graph. The state
    must start at zero, as that of Adam, Adadelta and SGD does.
    """
    new = [p for p in parameters if p not in optimizer.state]
    if not new:
        return
    try:
        for p in new:
            p.grad = torch.zeros_like(p)
        with _learning_rate(optimizer, 0.0):
            optimizer.step()
        for p in new:
            # the look-up also marks parameters of optimizers without state as seen
            for x in optimizer.state[p].values():
                if isinstance(x, Tensor):
                    x.zero_()
    finally:
        for p in new:
            p.grad = None


def clip(model: nn.Module, limit: float) -> Tensor:
    """Scale all gradients to a norm of at most `limit` (0: no limit); return the norm before."""
    parameters = [p for p in model.parameters() if p.grad is not None]
    return nn.utils.clip_grad_norm_(parameters, limit or math.inf)


def why_not_captured(fabric: Fabric, model: SentenceModel) -> str | None:
    """Return why training steps cannot be captured, or None if they can."""
    if fabric.device.type != "cuda":
        return f"only CUDA devices have graphs, this one is {fabric.device}"
    if fabric.world_size > 1:
        return f"{fabric.world_size} processes train together"
    if torch.is_anomaly_enabled():
        return "anomaly detection needs eager gradients"
    return model.why_not_captured(sample=True)
