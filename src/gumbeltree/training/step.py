"""One update of the weights: eager, or captured as a CUDA graph."""

import contextlib
import math
from collections.abc import Callable, Hashable, Sequence
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
from gumbeltree.nn.evaluation_mode import in_evaluation_mode
from gumbeltree.states import Draw
from gumbeltree.threads import for_step, limited
from gumbeltree.training.noise import example_keys, sample_keys, step_seed
from gumbeltree.training.optimizers import learning_rates, make_state
from gumbeltree.training.policy import Policy, check_drawn


class Step:
    """Update the weights eagerly: with any model, on any device.

    Args:
        fabric: Fabric on the training device or devices.
        module: the model as wrapped by `fabric`.
        model: the model itself.
        optimizer: the optimizer as wrapped by `fabric`.
        split: training examples.
        config: training settings.

    Attributes:
        loss: sum of the examples' losses since the caller last reset it, float64 `[]`.
        norm: sum of the gradient norms before clipping, float64 `[]`.
        policy: computes the advantages of drawn trees.
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
        self.buckets: dict[tuple[int, torch.dtype], Tensor] = {}
        check_drawn(model.config, config, split)
        self.policy = Policy(model, config.seed, self._total)
        self.samples = self.policy.samples

    def __call__(self, rows: NDArray[np.int64], epoch: int, step: int) -> None:
        """Update the weights on the examples in `rows`, split across the processes."""
        mine, weight = self._share(rows)
        batch = self.split.batch(mine, self.fabric.device)
        examples = torch.from_numpy(mine).to(self.fabric.device)
        keys = example_keys(self.config.seed, epoch, examples, self.columns)
        keys = sample_keys(keys, self.columns, self.samples)
        torch.manual_seed(step_seed(self.config.seed, step, self.fabric.global_rank))
        cpu = self.fabric.device.type == "cpu"
        threads = for_step(len(batch.sentences), self.model.encoder.vector_dim)
        # gradients are averaged over processes; the last factor makes this a mean over examples
        with limited(threads) if cpu else contextlib.nullcontext():
            self._update(batch, Draw(keys), weight, self.fabric.world_size / len(rows))

    def reserve(self, batches: Sequence[NDArray[np.int64]]) -> None:
        """Prepare for the largest of these batches, if that saves memory."""

    def _share(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], float]:
        """Return the examples of this process, `samples` times, and their weight, 0 or 1."""
        rank, world = self.fabric.global_rank, self.fabric.world_size
        # neighbours in a batch can belong together
        mine = np.array_split(rows, world)[rank] if self.model.head.grouped else rows[rank::world]
        weight = 1.0
        if not len(mine):
            # fewer examples than processes: gradients are summed over all of them nevertheless
            mine, weight = rows[:1], 0.0
        return np.tile(mine, self.samples), weight

    def _update(self, batch: Batch, draw: Draw, weight: float, share: float) -> None:
        """Update the weights on a batch.

        Args:
            batch: sentences and targets; each example occurs `samples` times.
            draw: noise and temperature of the merges.
            weight: 0 to exclude the batch from loss and gradients, else 1.
            share: scale of the summed losses in the objective.
        """
        share = weight * share / self.samples
        drawn: list[tuple[ModelOutput, Tensor]] = []

        def first() -> Tensor:
            output = self._forward(batch, draw)
            losses = self._losses(batch, output)
            total = losses.sum()
            self.loss.add_(total.detach(), alpha=weight / self.samples)
            objective = self._objective(total, output)
            if output.log_prob is not None:
                advantage = self.policy.advantage(
                    batch, losses.detach(), lambda: self._greedy_losses(batch), weight
                )
                drawn.append((output, advantage))
                objective = objective + self._surrogate(output, output, advantage)
            return objective

        self._descend(first, share)
        for _ in range(self.policy.estimator.updates - 1):
            output, advantage = drawn[0]
            assert output.order is not None
            forced = batch._replace(sentences=batch.sentences.with_order(output.order))

            def again() -> Tensor:
                # the loss has had its update; only the choice of merges changes further
                now = self._forward(forced, draw, head=False)  # noqa: B023
                return self._surrogate(now, output, advantage)  # noqa: B023

            self._descend(again, share)

    def _forward(self, batch: Batch, draw: Draw, head: bool = True) -> ModelOutput:
        """Return the output of the model; without `head`, only log-probabilities and entropies."""
        output: ModelOutput = self.module(batch.sentences, draw, head)
        return output

    def _descend(self, objective: Callable[[], Tensor], share: float) -> None:
        """Update the weights by the gradient of `share` times an objective."""
        self.fabric.backward(share * objective())
        self.norm += clip(self.model, self.config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _total(self, *tensors: Tensor) -> Sequence[Tensor]:
        """Return the sums of tensors over all processes; the next call can overwrite them."""
        if self.fabric.world_size == 1:
            return tensors
        sizes = [x.numel() for x in tensors]
        kind = sum(sizes), tensors[0].dtype
        if kind not in self.buckets:
            # one for all graphs, each of which would keep its own otherwise
            self.buckets[kind] = tensors[0].new_empty(kind[0])
        bucket = self.buckets[kind]
        torch.cat([x.reshape(-1) for x in tensors], out=bucket)
        self._outside(lambda: torch.distributed.all_reduce(bucket))
        parts = bucket.split(sizes)
        return [part.view(x.shape) for part, x in zip(parts, tensors, strict=True)]

    def _outside(self, work: Callable[[], object]) -> None:
        """Do work that cannot be part of a graph."""
        work()

    @torch.no_grad()
    def _greedy_losses(self, batch: Batch) -> Tensor:
        """Return the losses with the highest-scoring merges, in evaluation mode `[B]`."""
        with self.fabric.autocast():
            output = in_evaluation_mode(self.model)(batch.sentences, Draw())
        return self._losses(batch, output)

    def _losses(self, batch: Batch, output: ModelOutput) -> Tensor:
        """Return the head's loss for each example `[B]`."""
        scores = output.output
        if scores.dtype.itemsize < 4:
            scores = scores.float()
        head, labels = self.model.head, batch.sentences.node_labels
        losses: Tensor = head.loss(scores, labels if head.node_targets else batch.targets)
        return losses

    def _objective(self, total: Tensor, output: ModelOutput) -> Tensor:
        """Return the total loss of the head `[]` plus the losses of the encoder."""
        if unknown := sorted(self.config.losses.keys() - output.losses.keys()):
            kind = self.model.config.encoder.kind
            known = ", ".join(sorted(output.losses)) or "none"
            raise ValueError(
                f"`training.losses.{unknown[0]}` weighs a loss that the encoder {kind!r} does not "
                f"have; it has {known}; remove the setting, or correct its name"
            )
        for name, extra in output.losses.items():
            total = total + self.config.losses.get(name, 1.0) * extra.sum()
        return total

    def _surrogate(self, now: ModelOutput, drawn: ModelOutput, advantage: Tensor) -> Tensor:
        """Return the weighted sum of the estimator's surrogate, minus the entropy bonus.

        Args:
            now: log-probabilities and entropies with the current weights.
            drawn: those with which the trees were drawn.
            advantage: advantages of the trees `[B]`.
        """
        assert now.log_prob is not None
        assert now.entropy is not None
        assert drawn.log_prob is not None
        surrogate = self.policy.estimator.surrogate
        total = surrogate(advantage, now.log_prob, drawn.log_prob.detach()).sum()
        return self.config.policy_weight * total - self.config.entropy * now.entropy.sum()


class CapturedStep(Step):
    """Run the whole update as one CUDA graph; with several processes, as one up to each exchange.

    Batches of similar sizes share a graph; see `device.graphs.Graphs`. The first batch runs
    eagerly, with the same result. Takes the arguments of `Step` except the wrapped model, which
    would sum the gradients over the processes once more; the optimizer must be capturable and not
    wrapped.
    """

    def __init__(
        self,
        fabric: Fabric,
        model: SentenceModel,
        optimizer: torch.optim.Optimizer,
        split: Split,
        config: TrainingConfig,
    ) -> None:
        super().__init__(fabric, model, model, optimizer, split, config)
        device = fabric.device
        self.on_device = DeviceSplit(split, device, model.word_symbols())
        self.graphs = Graphs(device, at_once=True)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.examples = torch.arange(len(split), device=device)
        self.keys = torch.zeros((self.columns * len(split), 2), dtype=torch.int64, device=device)
        self.epoch = -1
        self.largest: NDArray[np.int64] | None = None
        self.overlap = Overlap(device) if device.type == "cuda" else None
        # a graph would freeze the value of a Python number at capture
        self.rates = [_Number(device) for _ in optimizer.param_groups]
        self.temperature = _Number(device)
        if fabric.world_size > 1:
            # all processes start from the weights of the first
            for x in model.state_dict().values():
                torch.distributed.broadcast(x, 0)

    def __call__(self, rows: NDArray[np.int64], epoch: int, step: int) -> None:
        """Update the weights on the examples in `rows`, split across the processes."""
        if epoch != self.epoch:
            self.keys.copy_(example_keys(self.config.seed, epoch, self.examples, self.columns))
            self.epoch = epoch
        for rate, group in zip(self.rates, self.optimizer.param_groups, strict=True):
            rate.set(group["lr"])
        self.temperature.set(getattr(self.model.encoder, "temperature", 1.0))
        if self.largest is not None and self.graphs.seen:
            self.graphs.reserve(*self._graph(self.largest))
            self.largest = None
        graph = self._graph(rows)
        torch.manual_seed(step_seed(self.config.seed, step, self.fabric.global_rank))
        self.graphs(*graph)

    def reserve(self, batches: Sequence[NDArray[np.int64]]) -> None:
        """Capture the largest of these batches before all others, which then share its memory.

        In another order, each larger graph would need memory of its own.
        """
        data = self.on_device
        lengths = data.lengths if data.text_lengths is None else data.text_lengths
        longest = lengths[self.split.sentences].max(axis=1, initial=1)
        self.largest = max(batches, key=lambda rows: len(rows) * longest[rows].max(), default=None)

    def _graph(
        self, rows: NDArray[np.int64]
    ) -> tuple[Hashable, Callable[[Tensor], None], NDArray[np.int64]]:
        """Return the key of the graph of a batch, the function to capture and its input."""
        mine, weight = self._share(rows)
        bounds, numbers = self.on_device.place(mine)
        # graphs reuse each other's memory, so allocate persistent tensors before the capture
        self.model.encoder.prepare(bounds.T)
        make_state(self.optimizer, self.parameters)
        if self.policy.optimizer is not None:
            make_state(self.policy.optimizer, self.policy.optimizer.param_groups[0]["params"])

        def function(numbers: Tensor) -> None:
            batch = self.on_device.read(numbers, bounds, self.overlap)
            keys = sample_keys(self.keys[batch.own], self.columns, self.samples)
            self._update(batch, Draw(keys, self.temperature.tensor), weight, 1 / len(rows))

        # shares of the same size can belong to batches of different sizes
        return (bounds, len(rows)), function, numbers

    def _forward(self, batch: Batch, draw: Draw, head: bool = True) -> ModelOutput:
        """Return the output of the model."""
        with self.fabric.autocast():
            output: ModelOutput = self.model(batch.sentences, draw, head)
        return output

    def _descend(self, objective: Callable[[], Tensor], share: float) -> None:
        """Update the weights without reading any value back to the CPU."""
        with self.overlap or contextlib.nullcontext():
            value = objective()
            # where the gradient begins, since a product would take three more kernels
            scale = torch.full_like(value, share)
            found = torch.autograd.grad(value, self.parameters, scale, allow_unused=True)
        # models that can be captured use the same weights in every batch, so in every process
        used = [(p, x) for p, x in zip(self.parameters, found, strict=True) if x is not None]
        try:
            self._set_gradients([p for p, _ in used], self._total(*(x for _, x in used)))
            self.norm += self._clip()
            with learning_rates(self.optimizer, [rate.tensor for rate in self.rates]):
                self.optimizer.step()
        finally:
            for p in self.parameters:
                p.grad = None
            # steps outside this class clip separately and must not be scaled as well
            self.optimizer.grad_scale = None

    def _outside(self, work: Callable[[], object]) -> None:
        """Do work between two graphs."""
        if self.overlap is not None:
            self.overlap.finish()
        self.graphs.outside(work)

    def _set_gradients(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Assign each parameter a contiguous gradient of its own."""
        taken: set[int] = set()
        for p, gradient in zip(parameters, gradients, strict=True):
            if gradient.data_ptr() in taken or not gradient.is_contiguous():
                # terms of a sum can share one gradient tensor, which clipping would scale twice
                gradient = gradient.clone(memory_format=torch.contiguous_format)
            p.grad = gradient
            taken.add(gradient.data_ptr())

    def _clip(self) -> Tensor:
        """Clip the gradients, in the optimizer if possible; return the unclipped norm `[]`."""
        # torch sets this attribute on optimizers that accept `grad_scale`
        scales = getattr(self.optimizer, "_step_supports_amp_scaling", False)
        if not (self.config.clip and scales):
            return clip(self.model, self.config.clip)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        # fused optimizers divide by this as they read the gradients, which saves a pass over them
        self.optimizer.grad_scale = ((norm.float() + 1e-6) / self.config.clip).clamp(min=1.0)
        return norm


class _Number:
    """A scalar on the device, written only when its value changes."""

    def __init__(self, device: torch.device) -> None:
        self.tensor = torch.zeros((), device=device)
        self.value = math.nan

    def set(self, value: float) -> None:
        if value != self.value:
            self.tensor.fill_(value)
            self.value = value


def clip(model: nn.Module, limit: float) -> Tensor:
    """Clip the total gradient norm to `limit` (0: no limit); return the norm before clipping."""
    parameters = [p for p in model.parameters() if p.grad is not None]
    return nn.utils.clip_grad_norm_(parameters, limit or math.inf)


def why_not_captured(fabric: Fabric, model: SentenceModel) -> str | None:
    """Return why training steps cannot be captured, or None if they can."""
    if fabric.device.type != "cuda":
        return f"graphs require a CUDA device, but the device is {fabric.device}"
    if torch.is_anomaly_enabled():
        return "anomaly detection requires eager execution"
    return model.why_not_captured(sample=True)
