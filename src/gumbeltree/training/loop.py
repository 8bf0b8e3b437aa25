"""The training loop."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import math
import operator
import platform
import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from gumbeltree import __version__
from gumbeltree.code_version import CodeVersion, code_version
from gumbeltree.config import Recipe, TrainingConfig
from gumbeltree.data.compile import with_labels
from gumbeltree.data.prepared import Prepared, check_fit
from gumbeltree.data.split import Split, shuffled
from gumbeltree.evaluate import Evaluator, merge_orders
from gumbeltree.migrate import FORMAT_VERSION
from gumbeltree.model import SentenceModel, load, save
from gumbeltree.nn.estimators.temperature import annealed_temperature
from gumbeltree.nn.heads.head import Evaluation
from gumbeltree.signals import StopRequest
from gumbeltree.training.display import Display
from gumbeltree.training.folder import (
    CHECKPOINT,
    MODEL,
    ORDERS,
    RESULT,
    SETTINGS,
    RunFolder,
    saving,
)
from gumbeltree.training.start import new_model, start_fabric
from gumbeltree.training.step import CapturedStep, Step, why_not_captured
from gumbeltree.training.stopping import InterruptedRunError
from gumbeltree.training.tensorboard import TensorBoard

logger = logging.getLogger(__name__)

LOOK_EVERY = 16
"""On accelerators and over several processes, steps between two looks at the loss and at requests
to stop: each look waits for the device."""


@dataclasses.dataclass
class Progress:
    """How far training has come; with weights and optimizer, all that a resumed run needs."""

    epoch: int = 0
    batch: int = 0
    """Batches of this epoch that are done."""
    step: int = 0
    seconds: float = 0.0
    examples: int = 0
    """Examples since the last evaluation, with the sum of their losses in `loss`."""
    loss: float = 0.0
    best: float = math.nan
    """The best value of the head's measure on the development split; NaN before the first."""
    best_step: int = 0
    best_epoch: float = 0.0
    worse: int = 0
    """Evaluations since the best one."""
    metrics_size: int = 0
    finished: bool = False
    code: list[CodeVersion] = dataclasses.field(default_factory=list)
    """Which code made these steps, in order: a resumed run may go on with another."""


class NotFiniteError(ValueError):
    """The loss or a gradient is NaN or infinite."""


def train(
    recipe: Recipe,
    prepared: Prepared,
    out: str | Path,
    *,
    recipe_name: str = "",
    resume: bool = False,
    device: str = "auto",
    init: SentenceModel | None = None,
    display: Display | None = None,
) -> dict[str, Any]:
    """Train a model, keep the best one on the development split, and return its result.

    Args:
        recipe: sizes, optimizer, seed: all that decides the result, with the data.
        prepared: the data.
        out: folder of the run; see `training.folder`.
        recipe_name: for the records.
        resume: go on with the run in `out` if there is one.
        device: auto, cpu, cuda or cuda:N.
        init: a model whose encoder and words training starts from.
        display: told what happens; None: nothing is shown.

    Returns:
        What result.json holds: accuracies of the best model, its epoch, the time.
    """
    recipe = with_labels(recipe, prepared)
    check_fit(prepared, recipe)
    # what the data was made with counts, whatever else the recipe says
    recipe = dataclasses.replace(recipe, data=prepared.data)
    fabric = start_fabric(device, recipe.training.precision)
    settings: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "recipe_name": recipe_name,
        "recipe": dataclasses.asdict(recipe),
        "data_digest": prepared.fingerprint(),
        "init_digest": _digest(init) if init is not None else "",
    }
    # tuples come back from JSON as lists
    settings = json.loads(json.dumps(settings))
    with contextlib.ExitStack() as stack:
        folder = RunFolder(out, settings, resume)
        if fabric.is_global_zero:
            # the others see through rank 0 whether this worked
            stack.enter_context(folder)
        fabric.barrier()
        if folder.ended_long_ago():
            return folder.read(RESULT)
        run = _Run(recipe, prepared, folder, fabric, init, display or Display(quiet=True))
        if not run.progress.finished:
            return run.train()
        # as it was: neither evaluated nor written again
        return folder.read(RESULT) if folder.has(RESULT) else run.finish()


class _Run:
    """One training run: model, optimizer, data, and how far it has come."""

    def __init__(
        self,
        recipe: Recipe,
        prepared: Prepared,
        folder: RunFolder,
        fabric: Fabric,
        init: SentenceModel | None,
        display: Display,
    ) -> None:
        self.recipe, self.prepared, self.folder = recipe, prepared, folder
        self.fabric, self.display = fabric, display
        self.config: TrainingConfig = recipe.training
        self.splits: dict[str, Split] = prepared.splits
        self.progress = Progress()
        dtype = torch.float64 if self.config.precision == "64" else torch.float32
        self.model = new_model(recipe.model, prepared, self.config.seed, init, dtype)
        # once, before anything is trained
        self.model.encoder.check_needs(self.splits["train"].batch([0]).sentences)
        optimizer = new_optimizer(self.config, self.model, fabric.device)
        self.best: SentenceModel | None = None
        self.unsaved = False
        module, self.optimizer = fabric.setup(self.model, optimizer)
        self.module: nn.Module = module
        self.schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, "max", factor=0.5, patience=self.config.patience
        )
        self.step = self._new_step(optimizer)
        self.evaluator: Evaluator | None = None
        if folder.has(CHECKPOINT):
            self._load()
        if self.progress.code[-1:] != [code_version()] and not self.progress.finished:
            self.progress.code.append(code_version())
        self.saved_at = time.monotonic()

    def _new_step(self, optimizer: torch.optim.Optimizer) -> Step:
        """Return what updates the weights, captured where that can be."""
        reason = why_not_captured(self.fabric, self.model)
        if reason is None and self.splits["train"].orders is not None:
            reason = "the data bring trees, which graphs do not read"
        logger.info(
            "training steps are captured as CUDA graphs"
            if reason is None
            else f"training steps are not captured: {reason}"
        )
        train = self.splits["train"]
        if reason is None:
            return CapturedStep(self.fabric, self.module, self.model, optimizer, train, self.config)
        return Step(self.fabric, self.module, self.model, self.optimizer, train, self.config)

    def train(self) -> dict[str, Any]:
        """Train to the end, or until stopped."""
        config, progress = self.config, self.progress
        board = TensorBoard(self.folder.path, progress.step) if self.fabric.is_global_zero else None
        with StopRequest() as stop, contextlib.closing(board or contextlib.ExitStack()):
            if self.fabric.is_global_zero:
                # epochs may be more than before
                self.folder.write(SETTINGS, self.folder.settings)
                self.folder.cut_metrics(progress.metrics_size)
            started = time.monotonic() - progress.seconds
            batches = self._batches(progress.epoch)
            self.display.start(
                len(batches) * config.epochs, progress.step, progress.best, self.model.head
            )
            while progress.epoch < config.epochs and not self._stale():
                due = evaluation_points(len(batches), config.evaluations)
                for rows in batches[progress.batch :]:
                    self._step(rows)
                    progress.batch += 1
                    progress.step += 1
                    progress.seconds = time.monotonic() - started
                    looks = progress.step % LOOK_EVERY == 0 or self._is_cheap()
                    if looks:
                        self._check_finite()
                    self.display.step(
                        progress.epoch + 1,
                        config.epochs,
                        len(rows),
                        self.step.loss,
                        progress.examples,
                    )
                    if progress.batch in due:
                        line = self._evaluate(len(batches))
                        progress.seconds = line["seconds"] = time.monotonic() - started
                        if self.fabric.is_global_zero:
                            progress.metrics_size = self.folder.add_metrics(line)
                            assert board is not None
                            board.add(line)
                        self.display.evaluated(line)
                        if time.monotonic() - self.saved_at >= config.checkpoint_seconds:
                            self._save()
                        if self._stale():
                            break
                    if looks and self._asked_to_stop(stop):
                        self._save()
                        raise InterruptedRunError(stop.number or 15, self.folder.path)
                else:
                    progress.epoch += 1
                    progress.batch = 0
                    batches = self._batches(progress.epoch)
            progress.finished = True
            self._save()
        return self.finish()

    def _batches(self, epoch: int) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
        # batch normalisation needs two examples in every process; otherwise the batches are the
        # same over however many processes
        least = (
            2 * self.fabric.world_size
            if getattr(self.recipe.model.head, "batch_norm", False)
            else 1
        )
        config, split = self.config, self.splits["train"]
        return shuffled(split, config.batch_size, config.seed, epoch, least, config.pool)

    def _step(self, rows: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Do one update on the examples of `rows`."""
        config, progress = self.config, self.progress
        if config.anneal_rate:
            self.model.encoder.temperature = annealed_temperature(progress.step, config.anneal_rate)
        self.step(rows, progress.epoch, progress.step)
        progress.examples += len(rows)

    def _is_cheap(self) -> bool:
        """Return whether looking at the loss costs nothing."""
        return self.fabric.device.type == "cpu" and self.fabric.world_size == 1

    def _check_finite(self) -> None:
        if not math.isfinite(float(self.step.loss) + float(self.step.norm)):
            self._fail("the loss is")

    def _check_weights(self) -> None:
        if not all(bool(x.isfinite().all()) for x in self.model.parameters()):
            self._fail("weights are")

    def _fail(self, what: str) -> NoReturn:
        raise NotFiniteError(
            f"{what} NaN or infinite at step {self.progress.step} (epoch "
            f"{self.progress.epoch + 1}); the state saved before is intact in "
            f"{self.folder.path}. Try a lower --set learning_rate, or look at the word vectors"
        )

    def _asked_to_stop(self, stop: StopRequest) -> bool:
        return bool(self._sum(torch.tensor(stop.number, device=self.fabric.device)))

    def _sum(self, x: Tensor) -> Tensor:
        """Return the sum of `x` over all processes."""
        if self.fabric.world_size == 1:
            return x
        total = self.fabric.all_reduce(x.clone(), reduce_op="sum")
        assert isinstance(total, Tensor)
        return total

    def _share_statistics(self) -> None:
        """Give all processes the batch statistics of the first one, which is the one that saves."""
        if self.fabric.world_size > 1:
            for buffer in self.model.buffers():
                torch.distributed.broadcast(buffer, 0)

    def _stale(self) -> bool:
        return 0 < self.config.stop_after <= self.progress.worse

    def _evaluate(self, batches: int) -> dict[str, Any]:
        """Evaluate, remember the best model, adapt the learning rate; return a metrics line."""
        progress = self.progress
        self._check_finite()
        loss = float(self._sum(self.step.loss))
        self._share_statistics()
        evaluation = self._evaluation(self.model, "dev")
        value, measure = evaluation.value, self.model.head.measure
        epoch = progress.epoch + progress.batch / batches
        if math.isnan(progress.best) or value > progress.best:
            progress.best, progress.worse = value, 0
            progress.best_step, progress.best_epoch = progress.step, epoch
            self._remember()
        else:
            progress.worse += 1
        line = {
            "step": progress.step,
            "epoch": round(epoch, 4),
            "seconds": 0.0,
            "train_loss": loss / progress.examples,
            "dev_loss": evaluation.loss,
            f"dev_{measure}": value,
            f"best_{measure}": progress.best,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
        }
        if self.config.anneal_rate:
            line["temperature"] = self.model.encoder.temperature
        self.schedule.step(value)
        self.step.loss.zero_()
        self.step.norm.zero_()
        progress.examples = 0
        return line

    def _evaluation(self, model: SentenceModel, name: str) -> Evaluation:
        """Return how good a model is on a split, each process taking a share of it."""
        rank, world = self.fabric.global_rank, self.fabric.world_size
        split = self.splits[name]
        rows = np.arange(rank, len(split), world)
        if model is not self.model:
            evaluator = Evaluator(model, split, rows=rows)
        else:
            # the development split comes again and again
            evaluator = self.evaluator = self.evaluator or Evaluator(model, split, rows=rows)
        with self.fabric.autocast():
            part = evaluator()
        if world == 1:
            return part
        parts: list[Any] = [None] * world
        torch.distributed.all_gather_object(parts, part)
        whole: Evaluation = functools.reduce(operator.add, parts)
        return whole

    def _remember(self) -> None:
        """Keep a copy of the model, the best so far; it is written with the next state."""
        if not self.fabric.is_global_zero:
            return
        if self.best is None:
            self.best = new_model(self.recipe.model, self.prepared, self.config.seed)
            self.best.to(self.fabric.device, self.model.embedding.weight.dtype)
        self.best.load_state_dict(self.model.state_dict())
        self.unsaved = True

    def _save(self) -> None:
        """Write the best model and the state; only what is finite is ever written."""
        self._check_finite()
        self._check_weights()
        loss = self._sum(self.step.loss)
        if self.fabric.is_global_zero:
            if self.unsaved and self.best is not None:
                with saving(self.folder.path / MODEL):
                    save(self.best, self.folder.path / MODEL, self._provenance())
                self.unsaved = False
            state = {
                "progress": {**dataclasses.asdict(self.progress), "loss": float(loss)},
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "schedule": self.schedule.state_dict(),
            }
            self.folder.save_checkpoint(state)
        self.saved_at = time.monotonic()
        self.fabric.barrier()

    def _load(self) -> None:
        """Go on from the saved state."""
        state = self.folder.load_checkpoint()
        saved = dict(state["progress"])
        if "best_accuracy" in saved:
            # version 0.1, which knew no other measure; -1: none yet
            best = saved.pop("best_accuracy")
            saved["best"] = best if best >= 0 else math.nan
        self.progress = Progress(**saved)
        if self.progress.step and not self.progress.code:
            # before version 0.2 none was kept
            self.progress.code.append({"commit": None, "clean": None, "source": None})
        self.model.load_state_dict(state["model"])
        optimizer = state["optimizer"]
        for group, own in zip(optimizer["param_groups"], self.optimizer.param_groups, strict=True):
            # how it computes belongs to the device, not to the state
            for name in ("capturable", "fused", "foreach"):
                if name in own:
                    group[name] = own[name]
        self.optimizer.load_state_dict(optimizer)
        self.schedule.load_state_dict(state["schedule"])
        if self.fabric.is_global_zero:
            # the sum over all processes goes on in one of them
            self.step.loss += self.progress.loss
        if self.progress.epoch < self.config.epochs and not self._stale():
            self.progress.finished = False

    def _provenance(self) -> dict[str, Any]:
        progress = self.progress
        # what bad lines say is nobody's business
        splits = {
            name: {key: value for key, value in about.items() if key != "first_bad"}
            for name, about in self.prepared.report["splits"].items()
        }
        counts = {**self.prepared.report, "splits": splits}
        init = self.folder.settings["init_digest"]
        return {
            "recipe_name": self.folder.settings["recipe_name"],
            "recipe": self.folder.settings["recipe"],
            "seed": self.config.seed,
            "metrics": {
                f"dev_{self.model.head.measure}": progress.best,
                "step": progress.best_step,
                "epoch": round(progress.best_epoch, 4),
            },
            "data": {"digest": self.folder.settings["data_digest"], **counts},
            **({"init_digest": init} if init else {}),
            "versions": versions(),
            "code": progress.code,
        }

    def finish(self) -> dict[str, Any]:
        """Evaluate the best model and write the result, once."""
        folder = self.folder
        best = load(folder.path / MODEL, self.fabric.device)
        if self.config.precision == "64":
            best.double()
        measure = best.head.measure
        result: dict[str, Any] = {
            "recipe": folder.settings["recipe_name"],
            "seed": self.config.seed,
            "best_epoch": round(self.progress.best_epoch, 4),
            "steps": self.progress.step,
            "seconds": round(self.progress.seconds, 1),
            "measure": measure,
        }
        for name in ("dev", "test"):
            if name in self.splits:
                evaluation = self._evaluation(best, name)
                result[f"{name}_{measure}"] = evaluation.value
                result[f"{name}_loss"] = evaluation.loss
        result["labels"] = list(best.labels)
        result["versions"] = versions()
        result["code"] = self.progress.code
        result["machine"] = machine(self.fabric.device)
        if self.fabric.is_global_zero:
            provenance = self._provenance()
            for name in (f"dev_{measure}", f"test_{measure}"):
                if name in result:
                    provenance["metrics"][name] = result[name]
            with saving(folder.path / MODEL):
                save(best, folder.path / MODEL, provenance)
            if best.encoder.builds_trees:
                with self.fabric.autocast():
                    folder.write_arrays(ORDERS, merge_orders(best, self.splits["dev"]))
            folder.write(RESULT, result)
        self.fabric.barrier()
        self.display.finished(result)
        return result


def new_optimizer(
    config: TrainingConfig, model: nn.Module, device: torch.device
) -> torch.optim.Optimizer:
    """Return the optimizer that a recipe names, over the parameters that are trained."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    cuda = device.type == "cuda"
    if config.optimizer == "adam":
        return torch.optim.Adam(
            parameters, lr=config.learning_rate, capturable=cuda, fused=cuda or None
        )
    return torch.optim.Adadelta(
        parameters, lr=config.learning_rate, rho=0.9, eps=1e-6, capturable=cuda
    )


def evaluation_points(batches: int, evaluations: int) -> set[int]:
    """Return after how many batches of an epoch to evaluate, the last included."""
    count = min(batches, evaluations)
    return {round(batches * (i + 1) / count) for i in range(count)}


def versions() -> dict[str, str]:
    """Return the versions that a result depends on."""
    return {
        "gumbeltree": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def machine(device: torch.device) -> str:
    """Return the name of what training runs on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {torch.get_num_threads()} threads"


def _digest(model: SentenceModel) -> str:
    digest = hashlib.sha256()
    for name, x in model.state_dict().items():
        digest.update(name.encode())
        digest.update(x.detach().cpu().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]
