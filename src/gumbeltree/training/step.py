"""One update of the weights: as it comes, or captured as a CUDA graph."""

import contextlib
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor, nn

from gumbeltree.config import TrainingConfig
from gumbeltree.data.rows import RowBatch, RowData, Shape
from gumbeltree.data.split import Split
from gumbeltree.graphs import Graphs, outside_graphs
from gumbeltree.model import SentenceModel
from gumbeltree.ops.overlap import Overlap
from gumbeltree.training.noise import example_keys, step_seed


class Step(Protocol):
    """Updates the weights on some examples, and adds up losses and gradient norms.

    Attributes:
        loss: sum of the examples' losses, float64; the loop sets it back to zero.
        norm: sum of the gradients' norms before clipping, float64.
    """

    loss: Tensor
    norm: Tensor

    def __call__(self, rows: NDArray[np.int64], epoch: int, step: int) -> None:
        """Do one update on the examples of `rows`, this process's share of them."""


class EagerStep:
    """Runs operation by operation: any model, any device, several processes.

    Args:
        fabric: of the device or devices.
        module: the model as `fabric` wraps it.
        model: the same without the wrapping.
        optimizer: as `fabric` wraps it.
        split: training examples.
        config: seed, clipping.
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

    def __call__(self, rows: NDArray[np.int64], epoch: int, step: int) -> None:
        """Do one update."""
        config, fabric = self.config, self.fabric
        rank, world = fabric.global_rank, fabric.world_size
        mine = rows[rank::world]
        # fewer examples than processes: one is read twice, and counts once
        weight = 1.0 if len(mine) else 0.0
        batch = self.split.batch(mine if len(mine) else rows[:1]).to(fabric.device)
        keys = example_keys(config.seed, epoch, batch.rows.to(fabric.device), len(batch.ids))
        torch.manual_seed(step_seed(config.seed, step, rank))
        columns = zip(batch.ids, batch.lengths, strict=True)
        scores = self.module(*(x for column in columns for x in column), noise=keys)
        total = weight * self.model.head.loss(scores, batch.labels).sum()
        # processes' gradients are averaged: this makes it the mean over all examples
        fabric.backward(total * (world / len(rows)))
        norm = clip(self.model, config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.loss += total.detach()
        self.norm += norm


class CapturedStep:
    """Runs the whole update as one CUDA graph, from ids to new weights.

    Batches of similar sizes share a graph; see `graphs.Graphs`. The very first batch runs operation
    by operation, as does one that first gives a parameter a gradient, with the same result.

    Args:
        fabric: of the device.
        model: what is trained.
        optimizer: torch's own, capturable.
        split: training examples.
        config: seed, clipping.
    """

    def __init__(
        self,
        fabric: Fabric,
        model: SentenceModel,
        optimizer: torch.optim.Optimizer,
        split: Split,
        config: TrainingConfig,
    ) -> None:
        device = fabric.device
        self.fabric, self.model, self.optimizer, self.config = fabric, model, optimizer, config
        self.loss = torch.zeros((), dtype=torch.float64, device=device)
        self.norm = torch.zeros((), dtype=torch.float64, device=device)
        self.data = RowData(split, device)
        self.graphs = Graphs(device, at_once=True)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.updated: set[int] = set()
        """Places of parameters for which the optimizer has made what it keeps."""
        self.columns = split.sentences.shape[1]
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
        shape, numbers = self.data.place(rows)
        torch.manual_seed(step_seed(self.config.seed, step, 0))
        self.graphs(shape, lambda numbers: self._update(numbers, shape), numbers)

    def _update(self, numbers: Tensor, shape: Shape) -> None:
        batch = self.data.read(numbers, shape)
        with self.overlap or contextlib.nullcontext():
            with self.fabric.autocast():
                scores = self._scores(batch)
            if scores.dtype.itemsize < 4:
                scores = scores.float()
            total = self.model.head.loss(scores, batch.labels).sum()
            gradients = torch.autograd.grad(
                total / shape.examples, self.parameters, allow_unused=True
            )
        new = {i for i, x in enumerate(gradients) if x is not None} - self.updated
        if new:
            outside_graphs(self.fabric.device)
        groups = self.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        try:
            self._set_gradients(gradients)
            norm = self._clip()
            for group in groups:
                group["lr"] = self.rate.tensor
            self.optimizer.step()
            self.updated |= new
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate
            for p in self.parameters:
                p.grad = None
            # whoever else uses the optimizer has clipped already
            self.optimizer.grad_scale = None  # type: ignore[attr-defined]
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
        self.optimizer.grad_scale = scale  # type: ignore[attr-defined]
        return norm

    def _scores(self, batch: RowBatch) -> Tensor:
        return self.model.score_rows(
            batch.ids,
            batch.layout,
            keys=self.keys[batch.own],
            temperature=self.temperature.tensor,
        )


class _Number:
    """A number on the device, written when it changes."""

    def __init__(self, device: torch.device) -> None:
        self.tensor = torch.zeros((), device=device)
        self.value = math.nan

    def set(self, value: float) -> None:
        if value != self.value:
            self.tensor.fill_(value)
            self.value = value


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
    return model.why_not_rows(sample=True)
