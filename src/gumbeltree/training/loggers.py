"""Log metrics to experiment trackers, through the logger interface of Lightning Fabric."""

import contextlib
import math
import os
from collections.abc import Iterable, Sequence
from importlib import util
from pathlib import Path
from typing import Any, Self

from lightning_fabric.loggers.logger import Logger

from gumbeltree.extras import is_missing
from gumbeltree.registry import UnknownNameError, suggest
from gumbeltree.training.folder import RunFolder
from gumbeltree.training.stopping import InterruptedRunError

NAMES = ("tensorboard", "mlflow", "wandb")
"""Loggers that can be selected by name."""
PROJECT = "gumbeltree"
"""Experiment in MLflow, project in Weights & Biases."""
LONGEST = 500
"""Longest value of a setting that all versions of MLflow accept."""


def check_loggers(loggers: Iterable[Logger | str]) -> None:
    """Raise unless all loggers are known and the packages of those given by name are installed."""
    for logger in loggers:
        if isinstance(logger, Logger):
            continue
        if not isinstance(logger, str):
            raise TypeError(
                "`loggers` must contain names or instances of lightning_fabric.loggers.Logger, got "
                f"{type(logger).__name__}"
            )
        if logger not in NAMES:
            raise UnknownNameError(
                f"unknown logger {logger!r}; known: {', '.join(NAMES)}."
                f"{suggest(logger, list(NAMES))}"
            )
        if util.find_spec(logger) is None:
            raise ImportError(is_missing(f"the logger {logger!r}", logger, logger))


class MLflowLogger(Logger):
    """Log to MLflow: to MLFLOW_TRACKING_URI if it is set, otherwise to files in the run folder.

    Args:
        folder: run folder.
        run: id of the MLflow run to continue; None for a new one.
    """

    def __init__(self, folder: Path, run: str | None) -> None:
        from mlflow import MlflowClient

        address = os.environ.get("MLFLOW_TRACKING_URI")
        if not address:
            address = (folder / "mlflow").absolute().as_uri()
            # recent versions refuse to write files otherwise, and databases need more packages
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self.client = MlflowClient(address)
        if run is not None:
            self.client.update_run(run, status="RUNNING")
        else:
            found = self.client.get_experiment_by_name(PROJECT)
            experiment = found.experiment_id if found else self.client.create_experiment(PROJECT)
            run = self.client.create_run(experiment, run_name=folder.name).info.run_id
        self.run = run

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return PROJECT

    @property
    def version(self) -> str:
        """Id of the run."""
        return self.run

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Log the metrics of one evaluation."""
        for name, value in metrics.items():
            self.client.log_metric(self.run, name, value, step=step)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Log settings by name."""
        for name, value in params.items():
            self.client.log_param(self.run, name, str(value)[:LONGEST])

    def finalize(self, status: str) -> None:
        """End the run."""
        ends = {"success": "FINISHED", "interrupted": "KILLED"}
        self.client.set_terminated(self.run, ends.get(status, "FAILED"))


class WandbLogger(Logger):
    """Log to Weights & Biases, in the mode of WANDB_MODE, with its files in the run folder.

    Args:
        folder: run folder.
        run: id of the run to continue; None for a new one.
    """

    def __init__(self, folder: Path, run: str | None) -> None:
        import wandb

        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name,
            dir=folder,
            id=run,
            resume="allow" if run else None,
        )

    @property
    def name(self) -> str:
        """Name of the project."""
        return str(self.run.project)

    @property
    def version(self) -> str:
        """Id of the run."""
        return str(self.run.id)

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Log the metrics of one evaluation."""
        self.run.log(metrics, step=step)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Log settings by name."""
        self.run.config.update(params)

    def finalize(self, status: str) -> None:
        """End the run."""
        self.run.finish(exit_code=int(status != "success"))


TRACKERS: dict[str, type[MLflowLogger] | type[WandbLogger]] = {
    "mlflow": MLflowLogger,
    "wandb": WandbLogger,
}
IDS = "loggers.json"
"""File in the run folder with the ids of the runs in experiment trackers, to continue them."""


class RunLoggers(contextlib.AbstractContextManager["RunLoggers"]):
    """All loggers of a run. Those created by name end with the run; the caller ends the others.

    Args:
        loggers: names or Fabric loggers, as checked by `check_loggers`.
        folder: run folder.
        logged: last step that was logged before the run was interrupted. A resumed run repeats the
            steps after its checkpoint with the same results, and does not log them twice.
    """

    def __init__(self, loggers: Sequence[Logger | str], folder: RunFolder, logged: int) -> None:
        self.logged = logged
        ids = folder.read(IDS) if folder.has(IDS) else {}
        self.own: list[Logger] = []
        self.given = [logger for logger in loggers if isinstance(logger, Logger)]
        # TensorBoard is written in any case if it is installed
        for name in dict.fromkeys(x for x in loggers if isinstance(x, str) and x in TRACKERS):
            tracker = TRACKERS[name](folder.path, ids.get(name))
            self.own.append(tracker)
            if name not in ids:
                folder.write(IDS, ids := {**ids, name: tracker.version})
                tracker.log_hyperparams(folder.flat_settings())
        if not logged:
            for logger in self.given:
                logger.log_hyperparams(folder.flat_settings())

    def add(self, record: dict[str, Any]) -> None:
        """Log one line of metrics.jsonl."""
        step = record["step"]
        if step <= self.logged:
            return
        values = {
            name: float(value)
            for name, value in record.items()
            if name != "step" and value is not None and math.isfinite(value)
        }
        for logger in (*self.own, *self.given):
            logger.log_metrics(values, step=step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        status = "success" if kind is None else "failed"
        if kind is not None and issubclass(kind, InterruptedRunError | KeyboardInterrupt):
            status = "interrupted"
        for logger in self.own:
            logger.finalize(status)
        for logger in self.given:
            logger.save()
