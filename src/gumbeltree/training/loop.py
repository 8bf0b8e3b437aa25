"""The training loop: epochs, evaluations, checkpoints, and the final result."""

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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from lightning_fabric import Fabric
from lightning_fabric.loggers.logger import Logger
from numpy.typing import NDArray
from torch import Tensor

from gumbeltree import __version__
from gumbeltree.code_version import CodeVersion, code_version
from gumbeltree.config import Recipe
from gumbeltree.data.compile import with_labels
from gumbeltree.data.prepared import Prepared, check_fit
from gumbeltree.data.split import shortest, shuffled
from gumbeltree.evaluation import Evaluator, merge_orders
from gumbeltree.migrate import FORMAT_VERSION
from gumbeltree.model import SentenceModel, load, save
from gumbeltree.nn.estimators.temperature import annealed_temperature
from gumbeltree.nn.heads.head import Evaluation
from gumbeltree.signals import StopRequest
from gumbeltree.threads import get_threads
from gumbeltree.training.average import WeightAverage
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
from gumbeltree.training.loggers import RunLoggers, check_loggers
from gumbeltree.training.optimizers import new_optimizer
from gumbeltree.training.policy import load_optimizer
from gumbeltree.training.schedule import Schedule, share_of_examples
from gumbeltree.training.start import new_model, start_fabric
from gumbeltree.training.step import CapturedStep, Step, why_not_captured
from gumbeltree.training.stopping import InterruptedRunError
from gumbeltree.training.tensorboard import TensorBoard

logger = logging.getLogger(__name__)

LOOK_EVERY = 16
"""Steps between checks of the loss and for stop requests if a check has to wait for the device or
for other processes."""


@dataclasses.dataclass
class Progress:
    """Progress of a run, saved in checkpoints together with the weights and the optimizer."""

    epoch: int = 0
    batch: int = 0
    """Completed batches of this epoch."""
    step: int = 0
    seconds: float = 0.0
    examples: int = 0
    """Examples since the last evaluation; `loss` is the sum of their losses."""
    loss: float = 0.0
    best: float = math.nan
    """Best development score so far; NaN before the first evaluation."""
    best_step: int = 0
    best_epoch: float = 0.0
    worse: int = 0
    """Evaluations since the best one."""
    metrics_size: int = 0
    finished: bool = False
    code: list[CodeVersion] = dataclasses.field(default_factory=list)
    """Versions of the code that ran these steps; resuming can add another one."""


class NotFiniteError(ValueError):
    """The loss, a gradient or a weight is NaN or infinite."""


def train(
    recipe: Recipe,
    prepared: Prepared,
    out: str | Path,
    *,
    recipe_name: str = "",
    resume: bool = False,
    device: str = "auto",
    init: SentenceModel | None = None,
    quiet: bool = False,
    display: Display | None = None,
    test: bool = True,
    on_step: Callable[[int], object] | None = None,
    loggers: Sequence[Logger | str] = (),
) -> dict[str, Any]:
    """Train a model, keep the best one on the development split, and return its results.

    Args:
        recipe: all settings; together with the data they determine the result.
        prepared: the data, as `gumbeltree.prepare` returns it.
        out: run folder; see `training.folder` for its files.
        recipe_name: recorded with the result.
        resume: continue the run in `out` if there is one.
        device: auto, cpu, cuda or cuda:N.
        init: a trained model that provides the initial encoder and word vectors.
        quiet: show no progress.
        display: shows progress instead of a new display.
        test: evaluate the best model on the test split, if there is one. Another call with
            `resume=True` can do so later.
        on_step: called after each step with the number of completed steps, following any
            evaluation and checkpoint due at that step. If it raises, training stops, and
            `resume=True` continues from the last checkpoint.
        loggers: receive the metrics of each evaluation, in addition to TensorBoard: "mlflow",
            "wandb", or loggers of Lightning Fabric, which you end yourself. A resumed run
            continues their logs without repeating steps.

    Returns:
        The content of result.json: scores of the best model, its epoch, the training time.
    """
    check_loggers(loggers)
    recipe = with_labels(recipe, prepared)
    check_fit(prepared, recipe)
    # record the settings that the data were actually compiled with
    recipe = dataclasses.replace(recipe, data=prepared.data)
    fabric = start_fabric(device, recipe.training.precision)
    settings: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "recipe_name": recipe_name,
        "recipe": dataclasses.asdict(recipe),
        "data_digest": prepared.fingerprint(),
        "init_digest": _digest(init) if init is not None else "",
    }
    # JSON turns tuples into lists
    settings = json.loads(json.dumps(settings))
    display = display or Display(quiet or not fabric.is_global_zero)
    with contextlib.ExitStack() as stack:
        stack.callback(display.close)
        # every step sets a seed; the caller's random numbers must not change
        gpus = range(torch.cuda.device_count() if fabric.device.type == "cuda" else 0)
        stack.enter_context(torch.random.fork_rng(devices=gpus))
        folder = RunFolder(out, settings, resume)
        if fabric.is_global_zero:
            stack.enter_context(folder)
        # the other processes wait until the first one has locked the folder
        fabric.barrier()
        if folder.has_unreadable_checkpoint():
            return folder.read(RESULT)
        try:
            run = _Run(recipe, prepared, folder, fabric, init, display)
        except Exception:
            folder.forget()
            raise
        if not run.progress.finished:
            run.train(on_step or (lambda step: None), loggers)
        elif folder.has(RESULT):
            result = folder.read(RESULT)
            if not test or "test_loss" in result or "test" not in prepared.splits:
                return result
        return run.finish(test)


class _Run:
    """One training run: model, optimizer, data and progress."""

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
        self.config, self.splits = recipe.training, dict(prepared.splits)
        self.progress = Progress()
        dtype = torch.float64 if self.config.precision == "64" else torch.float32
        self.model = new_model(recipe.model, prepared, self.config.seed, init, dtype)
        self.metric = self.model.head.metric(self.config.best_by)
        self.model.head.check_selection(self.splits["dev"].labels, self.metric.name)
        self.model.encoder.check_needs(self.splits["train"].batch([0]).sentences)
        encoder = self.model.encoder
        if "order" in encoder.learns_from and self.splits["train"].orders is None:
            raise ValueError(
                f"the encoder {encoder.config.kind!r} learns from trees, but the training data has "
                "none; use data with trees, such as those of the task parses, or another encoder"
            )
        for name, split in prepared.splits.items():
            used = encoder.needs | (encoder.learns_from if name == "train" else frozenset())
            if "order" not in used:
                # encoders follow trees that come with a batch, but this one finds its own
                self.splits[name] = dataclasses.replace(split, orders=None)
        self.model.to(fabric.device)
        self.optimizer: Any = new_optimizer(self.config, self.model, fabric.device)
        self.schedule = Schedule(self.optimizer, self.config, self.metric.lower)
        self.step = self._new_step()
        self.average: WeightAverage | None = None
        if self.config.average:
            self.average = WeightAverage(self.model, self._copy(), self.config.average)
        self.best: SentenceModel | None = None
        self.best_is_saved = True
        self.dev_evaluator = self._evaluator(self._candidate(), "dev")
        if folder.has(CHECKPOINT):
            self._load()
        if self.progress.code[-1:] != [code_version()] and not self.progress.finished:
            self.progress.code.append(code_version())
        self.saved_at = time.monotonic()
        self.started = self.saved_at - self.progress.seconds

    def _new_step(self) -> Step:
        """Return the training step, captured as a CUDA graph if possible."""
        fabric, model, optimizer = self.fabric, self.model, self.optimizer
        split, config = self.splits["train"], self.config
        reason = why_not_captured(fabric, model)
        if reason is None:
            logger.info("training steps are captured as CUDA graphs")
            return CapturedStep(fabric, model, optimizer, split, config)
        logger.info("training steps are not captured as CUDA graphs: %s", reason)
        module, wrapped = fabric.setup(model, optimizer)
        return Step(fabric, module, model, wrapped, split, config)

    def train(self, on_step: Callable[[int], object], loggers: Sequence[Logger | str]) -> None:
        """Train until the last epoch, early stopping, or a request to stop."""
        config, progress = self.config, self.progress
        steps = sum(map(self._steps_of, range(config.epochs)))
        if 0 < config.epochs <= config.curriculum:
            logger.warning(
                "the curriculum leaves out the longest examples in the first %d epochs, and "
                "training has %d; set `curriculum` below `epochs` to train on all",
                config.curriculum,
                config.epochs,
            )
        self.display.start(steps, config.epochs, progress.step, progress.best, self.metric)
        board = logs = None
        if self.fabric.is_global_zero:
            logged = self.folder.last_logged()
            # a resumed run can have new settings, and repeats the steps after its checkpoint
            self.folder.write(SETTINGS, self.folder.settings)
            self.folder.cut_metrics(progress.metrics_size)
            board = TensorBoard(self.folder.path, progress.step)
            logs = RunLoggers(loggers, self.folder, logged)
        with (
            StopRequest() as stop,
            contextlib.closing(board or contextlib.ExitStack()),
            logs or contextlib.ExitStack(),
        ):
            # the first of the longest epochs to come
            largest = min(max(progress.epoch, config.curriculum), config.epochs - 1)
            self.step.reserve(self._batches(largest))
            while progress.epoch < config.epochs and not self._is_stale():
                batches = self._batches(progress.epoch)
                due = self._due(len(batches))
                for rows in batches[progress.batch :]:
                    passed = progress.epoch + progress.batch / len(batches)
                    self.model.encoder.advance(progress.step, passed)
                    self._update(rows)
                    if progress.batch in due:
                        record = self._evaluate(len(batches))
                        if board is not None:
                            progress.metrics_size = self.folder.add_metrics(record)
                            board.add(record)
                        if logs is not None:
                            logs.add(record)
                        self.display.evaluated(record)
                        if time.monotonic() - self.saved_at >= config.checkpoint_seconds:
                            self._save()
                    on_step(progress.step)
                    if self._is_stale():
                        break
                    if self._is_check_due() and self._sum(torch.tensor(stop.number)) > 0:
                        self._save()
                        raise InterruptedRunError(stop.number or 15, self.folder.path)
                else:
                    progress.epoch, progress.batch = progress.epoch + 1, 0
            progress.finished = True
            self._save()

    def _due(self, batches: int) -> set[int]:
        """Return the batches of this epoch, counted from 1, after which to evaluate."""
        apart, epoch, since = self.config.evaluation_steps, self.progress.epoch, 0
        for number in range(epoch + 1):
            since = self._steps_of(number) + (since if since < apart else 0)
        if since < apart and epoch + 1 < self.config.epochs:
            return set()
        return evaluation_points(batches, min(self.config.evaluations, max(1, batches // apart)))

    @property
    def _least(self) -> int:
        """Smallest size of a batch: batch normalisation needs two examples per process."""
        batch_norm = getattr(self.recipe.model.head, "batch_norm", False)
        return 2 * self.fabric.world_size if batch_norm else 1

    def _steps_of(self, epoch: int) -> int:
        """Return the number of batches of an epoch; see `shuffled`."""
        examples = shortest(len(self.splits["train"]), self._least, self._share(epoch))
        full, rest = divmod(examples, self.config.batch_size)
        return max(1, full + (rest >= self._least))

    def _share(self, epoch: int) -> float:
        return share_of_examples(self.config, epoch)

    def _batches(self, epoch: int) -> list[NDArray[np.int64]]:
        config, split, share = self.config, self.splits["train"], self._share(epoch)
        size, grouped = config.batch_size, self.model.head.grouped
        return shuffled(split, size, config.seed, epoch, self._least, config.pool, grouped, share)

    def _update(self, rows: NDArray[np.int64]) -> None:
        """Update the weights on the examples in `rows`."""
        config, progress = self.config, self.progress
        if config.anneal_rate:
            self.model.encoder.temperature = annealed_temperature(progress.step, config.anneal_rate)
        if config.reset_every and progress.batch == 0 and progress.epoch % config.reset_every == 0:
            self.optimizer.reset()
        self.schedule.begin(progress.epoch, progress.step)
        self.step(rows, progress.epoch, progress.step)
        progress.examples += len(rows)
        progress.batch += 1
        progress.step += 1
        if self.average is not None:
            self.average.update(progress.step)
        progress.seconds = time.monotonic() - self.started
        if self._is_check_due():
            self._check_loss()
        self.display.step(progress.epoch + 1, len(rows), self.step.loss, progress.examples)

    def _is_check_due(self) -> bool:
        """Return whether to check the loss and for stop requests after this step."""
        cheap = self.fabric.device.type == "cpu" and self.fabric.world_size == 1
        return cheap or self.progress.step % LOOK_EVERY == 0

    def _check_loss(self) -> None:
        if not math.isfinite(float(self.step.loss) + float(self.step.norm)):
            self._fail("the loss is")

    def _fail(self, what: str) -> NoReturn:
        saved = self.folder.has(CHECKPOINT)
        kept = f"; the last checkpoint in {self.folder.path} is intact" if saved else ""
        raise NotFiniteError(
            f"{what} NaN or infinite at step {self.progress.step} (epoch "
            f"{self.progress.epoch + 1}){kept}. Try a lower learning rate (the "
            "setting learning_rate=...), or check the word vectors"
        )

    def _sum(self, x: Tensor) -> Tensor:
        """Return the sum of `x` over all processes."""
        if self.fabric.world_size == 1:
            return x
        total = self.fabric.all_reduce(x.to(self.fabric.device, copy=True), reduce_op="sum")
        assert isinstance(total, Tensor)
        return total

    def _is_stale(self) -> bool:
        config = self.config
        return (
            0 < config.stop_after <= self.progress.worse
            or 0 < config.stop_halvings <= self.schedule.halvings
        )

    def _evaluate(self, batches: int) -> dict[str, Any]:
        """Evaluate, update the best model and the learning rate; return a metrics record."""
        progress = self.progress
        self._check_loss()
        loss = float(self._sum(self.step.loss))
        if self.fabric.world_size > 1:
            # evaluate with the batch statistics of the first process, which are the ones saved
            for buffer in self.model.buffers():
                torch.distributed.broadcast(buffer, 0)
        if self.average is not None:
            self.average.copy_buffers()
        evaluation = self._evaluation(self.dev_evaluator)
        if not math.isfinite(evaluation.loss):
            self._fail("the development loss is")
        scores = self._scores(evaluation)
        value, measure = scores[self.metric.name], self.metric.name
        epoch = progress.epoch + progress.batch / batches
        if self.metric.improves(value, progress.best):
            progress.best, progress.worse = value, 0
            progress.best_step, progress.best_epoch = progress.step, epoch
            self._remember_best()
        else:
            progress.worse += 1
        progress.seconds = time.monotonic() - self.started
        record = {
            "step": progress.step,
            "epoch": round(epoch, 4),
            "seconds": progress.seconds,
            "train_loss": loss / progress.examples,
            "dev_loss": evaluation.loss,
            f"dev_{measure}": value,
            f"best_{measure}": progress.best,
            "learning_rate": self.optimizer.param_groups[0]["lr"],
            **{f"dev_{name}": score for name, score in scores.items() if name != measure},
        }
        if self.config.anneal_rate:
            record["temperature"] = self.model.encoder.temperature
        if self.schedule.evaluated(value) and self.config.restore:
            self._restore_best()
        self.step.loss.zero_()
        self.step.norm.zero_()
        progress.examples = 0
        return record

    def _scores(self, evaluation: Evaluation) -> dict[str, float]:
        """Return the metric that selects the best model and the other ones, by name."""
        head = self.model.head
        names = dict.fromkeys([self.metric.name, head.measure, *head.metrics, "loss"])
        return {name: head.value(evaluation, name) for name in names}

    def _evaluator(self, model: SentenceModel, name: str) -> Evaluator:
        """Return an evaluator of a model on this process's share of a split."""
        split = self.splits[name]
        rows = np.arange(self.fabric.global_rank, len(split), self.fabric.world_size)
        return Evaluator(model, split, rows=rows)

    def _evaluation(self, evaluator: Evaluator) -> Evaluation:
        """Return the evaluation combined over all processes."""
        with self.fabric.autocast():
            share = evaluator()
        shares = [share] * self.fabric.world_size
        if self.fabric.world_size > 1:
            torch.distributed.all_gather_object(shares, share)
        whole: Evaluation = functools.reduce(operator.add, shares)
        return whole

    def _candidate(self) -> SentenceModel:
        """Return the model that is evaluated and saved: the one trained, or its average."""
        return self.model if self.average is None else self.average.model

    def _copy(self) -> SentenceModel:
        """Return a model with the settings and the device of the one trained."""
        copy = new_model(self.recipe.model, self.prepared, self.config.seed)
        return copy.to(self.fabric.device, self.model.embedding.weight.dtype)

    def _remember_best(self) -> None:
        """Copy the model; the next checkpoint writes the copy to disk."""
        if not (self.fabric.is_global_zero or self.config.restore):
            return
        if self.best is None:
            self.best = self._copy()
        self.best.load_state_dict(self._candidate().state_dict())
        self.best_is_saved = False

    def _restore_best(self) -> None:
        """Return to the weights of the best model, if there is one yet."""
        if self.best is None:
            return
        # in place: captured graphs read them
        self.model.load_state_dict(self.best.state_dict())
        if self.average is not None:
            self.average.model.load_state_dict(self.best.state_dict())

    def _save(self) -> None:
        """Write the best model and a checkpoint; raise if the loss or a weight is not finite."""
        self._check_loss()
        if not all(bool(x.isfinite().all()) for x in self.model.parameters()):
            self._fail("weights are")
        loss = self._sum(self.step.loss)
        if self.fabric.is_global_zero:
            if self.best is not None and not self.best_is_saved:
                self._write_model(self.best, {})
                self.best_is_saved = True
            state = {
                "progress": {**dataclasses.asdict(self.progress), "loss": float(loss)},
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "schedule": self.schedule.state_dict(),
                "policy": self.step.policy.state_dict(),
            }
            if self.average is not None:
                state["average"] = self.average.model.state_dict()
            if self.config.restore and self.best is not None:
                state["best"] = self.best.state_dict()
            self.folder.save_checkpoint(state)
        self.saved_at = time.monotonic()
        self.fabric.barrier()

    def _load(self) -> None:
        """Continue from the checkpoint."""
        state = self.folder.load_checkpoint()
        saved = dict(state["progress"])
        if "best_accuracy" in saved:
            # version 0.1 supported only accuracy, and stored -1 before the first evaluation
            best = saved.pop("best_accuracy")
            saved["best"] = best if best >= 0 else math.nan
        progress = self.progress = Progress(**saved)
        if progress.step and not progress.code:
            # versions before 0.2 did not record the code version
            progress.code.append({"commit": None, "clean": None, "source": None})
        self.model.load_state_dict(state["model"])
        load_optimizer(self.optimizer, state["optimizer"])
        if "policy" in state:
            # earlier versions had none
            self.step.policy.load_state_dict(state["policy"])
        self.schedule.load_state_dict(state["schedule"])
        if self.average is not None:
            self.average.model.load_state_dict(state["average"])
        if "best" in state:
            self.best = self._copy()
            self.best.load_state_dict(state["best"])
        if self.fabric.is_global_zero:
            # the checkpoint stores the sum over all processes
            self.step.loss += progress.loss
        if progress.epoch < self.config.epochs and not self._is_stale():
            progress.finished = False

    def _write_model(self, model: SentenceModel, scores: dict[str, Any]) -> None:
        """Write the model folder with its provenance, whose metrics include `scores`."""
        progress, settings = self.progress, self.folder.settings
        # omit excerpts of malformed lines, which could be private
        splits = {
            name: {key: value for key, value in counts.items() if key != "first_bad"}
            for name, counts in self.prepared.report["splits"].items()
        }
        init = settings["init_digest"]
        provenance = {
            "recipe_name": settings["recipe_name"],
            "recipe": settings["recipe"],
            "seed": self.config.seed,
            "metrics": {
                f"dev_{self.metric.name}": progress.best,
                "step": progress.best_step,
                "epoch": round(progress.best_epoch, 4),
                **scores,
            },
            "data": {"digest": settings["data_digest"], **self.prepared.report, "splits": splits},
            **({"init_digest": init} if init else {}),
            "versions": _versions(),
            "code": progress.code,
        }
        with saving(self.folder.path / MODEL):
            save(model, self.folder.path / MODEL, provenance)

    def finish(self, test: bool) -> dict[str, Any]:
        """Evaluate the best model, also on the test split if `test`, and write the result."""
        folder, device = self.folder, self.fabric.device
        best = load(folder.path / MODEL, device)
        if self.config.precision == "64":
            best.double()
        result: dict[str, Any] = {
            "recipe": folder.settings["recipe_name"],
            "seed": self.config.seed,
            "best_epoch": round(self.progress.best_epoch, 4),
            "steps": self.progress.step,
            "seconds": round(self.progress.seconds, 1),
            "measure": self.metric.name,
        }
        scores: dict[str, float] = {}
        for name in ("dev", "test") if test else ("dev",):
            if name in self.splits:
                evaluation = self._evaluation(self._evaluator(best, name))
                found = self._scores(evaluation)
                # JSON has no NaN
                scores |= {f"{name}_{key}": x for key, x in found.items() if not math.isnan(x)}
                if name == "dev" and evaluation.value <= getattr(evaluation, "majority", -math.inf):
                    self.display.say(
                        "The model is no better on the development split than always predicting "
                        "the most frequent label; train on more examples, or for longer"
                    )
        result |= scores
        cpu = f"CPU, {get_threads()} threads"
        result |= {
            "labels": list(best.labels),
            "versions": _versions(),
            "code": self.progress.code,
            "machine": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
        }
        if self.fabric.is_global_zero:
            self._write_model(best, scores)
            if best.encoder.builds_trees:
                with self.fabric.autocast():
                    folder.write_arrays(ORDERS, merge_orders(best, self.splits["dev"]))
            folder.write(RESULT, result)
        self.fabric.barrier()
        return result


def evaluation_points(batches: int, evaluations: int) -> set[int]:
    """Return the batches of an epoch, counted from 1, after which to evaluate."""
    count = min(batches, evaluations)
    return {round(batches * (i + 1) / count) for i in range(count)}


def _versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect results."""
    return {
        "gumbeltree": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _digest(model: SentenceModel) -> str:
    digest = hashlib.sha256()
    for name, x in model.state_dict().items():
        digest.update(name.encode())
        digest.update(x.detach().cpu().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]
