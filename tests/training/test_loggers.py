"""Test loggers of training runs: any Fabric logger, MLflow, Weights & Biases."""

import json
import math

import pytest
from lightning_fabric.loggers.logger import Logger

from gumbeltree.training import loggers as module
from gumbeltree.training.loop import train
from tests.commands import run
from tests.runs import metrics, small


class ListLogger(Logger):
    """Keeps what it gets."""

    def __init__(self):
        self.metrics, self.settings, self.saved, self.ended = [], [], 0, []

    name = version = "list"

    def log_metrics(self, metrics, step=None):
        self.metrics.append((step, metrics))

    def log_hyperparams(self, params, *args, **kwargs):
        self.settings.append(params)

    def save(self):
        self.saved += 1

    def finalize(self, status):
        self.ended.append(status)


class Tracker(ListLogger):
    """A logger created by name; one object per run and call."""

    made = []  # noqa: RUF012

    def __init__(self, folder, run):
        super().__init__()
        self.folder, self.run = folder, run
        self.made.append(self)

    version = "an id"


def interrupted(recipe, data, folder, at, **options):
    """Train, and stop with an error after some steps."""

    def stop(step):
        if step == at:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        train(recipe, data, folder, on_step=stop, **options)


def test_any_fabric_logger_gets_the_metrics(demo, tmp_path):
    logger = ListLogger()
    train(small(), demo, tmp_path / "run", loggers=[logger])
    lines = metrics(tmp_path / "run")
    assert [step for step, _ in logger.metrics] == [line["step"] for line in lines]
    for (_, values), line in zip(logger.metrics, lines, strict=True):
        assert values["train_loss"] == line["train_loss"]
        assert "step" not in values
    assert logger.settings[0]["training.batch_size"] == 20
    # the caller ends it
    assert (logger.saved, logger.ended) == (1, [])


# the run saves no checkpoint but the first one, so a resumed run repeats evaluations
@pytest.mark.parametrize("seconds", [0, 1000])
def test_resumed_runs_log_every_step_once(demo, tmp_path, monkeypatch, seconds):
    recipe, logger = small(f"checkpoint_seconds={seconds}"), ListLogger()
    monkeypatch.setattr(Tracker, "made", [])
    monkeypatch.setitem(module.TRACKERS, "wandb", Tracker)
    monkeypatch.setattr(module.util, "find_spec", lambda name: name)
    both = {"loggers": [logger, "wandb"]}
    interrupted(recipe, demo, tmp_path / "run", 6, **both)
    count = len(logger.metrics)
    assert count > 1
    train(recipe, demo, tmp_path / "run", resume=True, **both)
    steps = [line["step"] for line in metrics(tmp_path / "run")]
    assert [step for step, _ in logger.metrics] == steps
    assert len(logger.settings) == 1
    first, second = Tracker.made
    assert [step for step, _ in first.metrics + second.metrics] == steps
    # the second call continues the run of the first
    assert (first.run, second.run) == (None, "an id")
    assert (first.ended, second.ended) == (["failed"], ["success"])
    assert (len(first.settings), len(second.settings)) == (1, 0)
    assert json.loads((tmp_path / "run" / "loggers.json").read_text()) == {"wandb": "an id"}


def test_unknown_loggers_are_refused_before_anything_is_written(demo, tmp_path):
    for wrong, message in (
        (["mlfow"], "unknown logger 'mlfow'.*Did you mean 'mlflow'"),
        ([print], "names or instances of lightning_fabric.loggers.Logger, got builtin"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            train(small(), demo, tmp_path / "run", loggers=wrong)
    assert not (tmp_path / "run").exists()


def test_missing_package_is_named_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setattr(module.util, "find_spec", lambda name: None)
    result = run("train", "demo", "--out", tmp_path / "run", "--logger", "wandb")
    message = result.refused()
    assert "the logger 'wandb' needs wandb, which is not installed; run: " in message
    assert message.count("\n") == 1
    assert not (tmp_path / "run").exists()


# the real packages write warnings of their own
@pytest.mark.filterwarnings("ignore")
def test_mlflow(demo, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="needs gumbeltree[mlflow]")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    # restored at the end, whatever the logger sets
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    recipe, folder = small("checkpoint_seconds=1000"), tmp_path / "run"
    interrupted(recipe, demo, folder, 6, loggers=["mlflow"])
    train(recipe, demo, folder, resume=True, loggers=["mlflow"])
    client = mlflow.MlflowClient((folder / "mlflow").as_uri())
    experiment = client.get_experiment_by_name("gumbeltree")
    (logged,) = client.search_runs([experiment.experiment_id])
    assert logged.info.status == "FINISHED"
    assert logged.data.params["training.batch_size"] == "20"
    history = client.get_metric_history(logged.info.run_id, "train_loss")
    expected = [(line["step"], line["train_loss"]) for line in metrics(folder)]
    assert [(x.step, x.value) for x in history] == expected


@pytest.mark.filterwarnings("ignore")
def test_wandb(demo, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs gumbeltree[wandb]")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    recipe, folder = small("checkpoint_seconds=1000"), tmp_path / "run"
    interrupted(recipe, demo, folder, 6, loggers=["wandb"])
    train(recipe, demo, folder, resume=True, loggers=["wandb"])
    name = json.loads((folder / "loggers.json").read_text())["wandb"]
    written = [x.name for x in (folder / "wandb").iterdir() if x.name.startswith("offline-run")]
    assert len(written) == 2
    assert all(x.endswith(name) for x in written)


def test_values_that_trackers_reject_are_left_out():
    logs = object.__new__(module.RunLoggers)
    logger = ListLogger()
    logs.logged, logs.own, logs.given = 0, [], [logger]
    logs.add({"step": 3, "train_loss": math.nan, "dev_accuracy": 0.5, "seconds": None})
    assert logger.metrics == [(3, {"dev_accuracy": 0.5})]
