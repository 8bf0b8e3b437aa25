"""One update of the weights: as it comes, or captured as a CUDA graph."""

import contextlib
import math
from collections.abc import Sequence
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
    """Updates the weights on some examples, and adds up losses and gradient norms.

    Operation by operation, it takes any model, any device and several processes.

    Args:
        fabric: of the device or devices.
        module: the model as `fabric` wraps it.
        model: the same without the wrapping.
        optimizer: as `fabric` wraps it.
        split: training examples.
        config: seed, clipping.

    Attributes:
        loss: sum of the examples' losses, float64; the loop sets it back to zero.
        norm: sum of the gradients' norms before clipping, float64.
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
        """Do one update on the examples of `rows`, this process's share of them."""
        rank, world = self.fabric.global_rank, self.fabric.world_size
        mine = rows[rank::world]
        # fewer examples than processes: one is read twice, and counts once
        weight = 1.0 if len(mine) else 0.0
        mine = mine if len(mine) else rows[:1]
        batch = self.split.batch(mine, self.fabric.device)
        own = torch.from_numpy(mine).to(self.fabric.device)
        keys = example_keys(self.config.seed, epoch, own, self.columns)
        torch.manual_seed(step_seed(self.config.seed, step, rank))
        # processes' gradients are averaged: this makes it the mean over all examples
        self._update(batch, Draw(keys), weight, world / len(rows))

    def _update(self, batch: Batch, draw: Draw, weight: float, share: float) -> None:
        """Turn a batch into new weights.

        Args:
            batch: what to read.
            draw: how choices are made.
            weight: of the batch's loss.
            share: of the loss' sum in what is minimised.
        """
        found = self.module(batch.sentences, draw)
        losses = self._losses(batch, found)
        total = weight * losses.sum()
        self.fabric.backward(weight * self._objective(losses, found) * share)
        norm = clip(self.model, self.config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.loss += total.detach()
        self.norm += norm

    def _losses(self, batch: Batch, found: ModelOutput) -> Tensor:
        """Return the loss of each example `[B]`."""
        output = found.output
        if output.dtype.itemsize < 4:
            output = output.float()
        losses: Tensor = self.model.head.loss(output, batch.targets)
        return losses

    def _objective(self, losses: Tensor, found: ModelOutput) -> Tensor:
        """Return what is minimised: the head's losses `[B]`, those of the encoder, and surrogates.

        Where choices have log-probabilities, an example's reward is its loss with the sign turned,
        compared with the mean of the others: its gradient is then that of the expected loss
        (Williams 1992), and an example's own choices do not move what it is compared with.
        """
        total = losses.sum()
        for name, own in found.losses.items():
            total = total + self.config.losses.get(name, 1.0) * own.sum()
        if found.log_prob is not None and found.entropy is not None:
            known = losses.detach()
            others = (known.sum() - known) / max(1, len(known) - 1)
            total = total + ((known - others) * found.log_prob).sum()
            total = total - self.config.entropy * found.entropy.sum()
        return total


class CapturedStep(Step):
    """Runs the whole update as one CUDA graph, from numbers to new weights.

    Batches of similar sizes share a graph; see `device.graphs.Graphs`. The very first batch runs
    operation by operation, with the same result. Arguments are those of `Step`; the optimizer is
    torch's own, capturable.
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
        # what a graph reads from memory, since numbers of Python would be fixed in it
        self.rate = _Number(device)
        self.temperature = _Number(device)

    def __call__(self, rows: NDArray[np.int64], epoch: int, step: int) -> None:
        """Do one update."""
        if epoch != self.epoch:
            self.keys.copy_(example_keys(self.config.seed, epoch, self.examples, self.columns))
            self.epoch = epoch
        self.rate.set(self.optimizer.param_groups[0]["lr"])
        self.temperature.set(getattr(self.model.encoder, "temperature", 1.0))
        bounds, numbers = self.on_device.place(rows)
        # what is to last must not be made in a graph: it would be made anew in each replay, in
        # memory that other graphs overwrite
        self.model.encoder.prepare(bounds.T)
        make_state(self.optimizer, self.parameters)

        def function(numbers: Tensor) -> None:
            batch = self.on_device.read(numbers, bounds, self.overlap)
            draw = Draw(self.keys[batch.own], self.temperature.tensor)
            self._update(batch, draw, 1.0, 1 / len(rows))

        torch.manual_seed(step_seed(self.config.seed, step, 0))
        self.graphs(bounds, function, numbers)

    def _update(self, batch: Batch, draw: Draw, weight: float, share: float) -> None:
        """Turn a batch into new weights, without any value that Python would have to know."""
        with self.overlap or contextlib.nullcontext():
            with self.fabric.autocast():
                found = self.model(batch.sentences, draw)
            losses = self._losses(batch, found)
            total = losses.sum()
            objective = self._objective(losses, found) * share
            gradients = torch.autograd.grad(objective, self.parameters, allow_unused=True)
        groups = self.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        try:
            self._set_gradients(gradients)
            norm = self._clip()
            for group in groups:
                group["lr"] = self.rate.tensor
            self.optimizer.step()
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate
            for p in self.parameters:
                p.grad = None
            # whoever else uses the optimizer has clipped already
            self.optimizer.grad_scale = None
        self.loss += total.detach()
        self.norm += norm

    def _set_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        """Give each parameter a gradient of its own."""
        taken: set[int] = set()
        for p, gradient in zip(self.parameters, gradients, strict=True):
            if gradient is not None and (
                gradient.data_ptr() in taken or not gradient.is_contiguous()
            ):
                # terms of a sum have one gradient between them, and clipping writes into it
                gradient = gradient.clone(memory_format=torch.contiguous_format)
            p.grad = gradient
            if gradient is not None:
                taken.add(gradient.data_ptr())

    def _clip(self) -> Tensor:
        """Clip the gradients, or have the optimizer do it, and return their norm before."""
        # torch's own mark of optimizers that take `grad_scale`
        scales = getattr(self.optimizer, "_step_supports_amp_scaling", False)
        if not (self.config.clip and scales):
            return clip(self.model, self.config.clip)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        # torch's fused optimizers divide by this as they read the gradients: one pass less
        scale = ((norm.float() + 1e-6) / self.config.clip).clamp(min=1.0)
        self.optimizer.grad_scale = scale
        return norm


class _Number:
    """A number on the device, written when it changes."""

    def __init__(self, device: torch.device) -> None:
        self.tensor = torch.zeros((), device=device)
        self.value = math.nan

    def set(self, value: float) -> None:
        if value != self.value:
            self.tensor.fill_(value)
            self.value = value


def make_state(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> None:
    """Make what an optimizer keeps of parameters that it never updated, as before the first update.

    Optimizers make it at a parameter's first gradient, which may come in the middle of a graph. It
    must start at zero, as that of Adam, Adadelta and SGD does.
    """
    new = [p for p in parameters if p not in optimizer.state]
    if not new:
        return
    groups = optimizer.param_groups
    rates = [group["lr"] for group in groups]
    try:
        for p in new:
            p.grad = torch.zeros_like(p)
        for group in groups:
            group["lr"] = 0.0
        optimizer.step()
        for p in new:
            # also where it keeps nothing, so that it is asked once
            for x in optimizer.state[p].values():
                if isinstance(x, Tensor):
                    x.zero_()
    finally:
        for p in new:
            p.grad = None
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate


def clip(model: nn.Module, limit: float) -> Tensor:
    """Scale all gradients to a norm of `limit` at most (0: any) and return the norm before."""
    parameters = [p for p in model.parameters() if p.grad is not None]
    return nn.utils.clip_grad_norm_(parameters, limit or math.inf)


def why_not_captured(fabric: Fabric, model: SentenceModel) -> str | None:
    """Return why training steps cannot be captured, or None if they can."""
    if fabric.device.type != "cuda":
        return f"graphs exist on CUDA devices, this one is {fabric.device}"
    if fabric.world_size > 1:
        return f"{fabric.world_size} processes train together"
    if torch.is_anomaly_enabled():
        return "torch's anomaly detection looks at every gradient as it comes"
    return model.why_not_captured(sample=True)
