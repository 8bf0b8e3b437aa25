"""Runs that are killed, stopped or out of disk space resume to the same result."""

import contextlib
import dataclasses
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

import gumbeltree.atomic
import gumbeltree.store
from gumbeltree import load
from gumbeltree.data.compile import prepare
from gumbeltree.migrate import FORMAT_VERSION
from gumbeltree.nn.heads.classes import SingleHead
from gumbeltree.training import folder as folder_module
from gumbeltree.training import loop
from gumbeltree.training import step as steps
from gumbeltree.training.folder import RunFolder
from gumbeltree.training.loop import NotFiniteError, train
from gumbeltree.training.stopping import InterruptedRunError
from tests.runs import SMALL, contents, metrics, small

SETTINGS = ("batch_size=10", "evaluations=14", "patience=1")
OPTIONS = [x for setting in (*SMALL, *SETTINGS) for x in ("--set", setting)]
EVALUATIONS = 28


class Killed(BaseException):
    """Ends a run in this process, as SIGKILL ends one in another."""


def kill_at(step):
    def on_step(done):
        if done == step:
            raise Killed

    return on_step


@pytest.fixture(scope="module")
def finished(demo, tmp_path_factory):
    """The folder of a short run; not to be changed."""
    folder = tmp_path_factory.mktemp("survival") / "run"
    train(small("epochs=1"), demo, folder)
    return folder


def interrupted(demo, folder, step=4):
    """Begin the run of `finished`, and kill it."""
    with pytest.raises(Killed):
        train(small("epochs=1"), demo, folder, on_step=kill_at(step))
    return folder


def resumes(demo, folder, finished):
    """Assert that a run ends as if nothing had happened."""
    train(small("epochs=1"), demo, folder, resume=True)
    assert contents(folder) == contents(finished)
    assert not list(folder.rglob("*.part"))


# killed at any write


def at_each_write(monkeypatch, act):
    """Call `act` before and after each file is put in place, and when its content is on disk."""

    def around(name, before):
        real = getattr(os, name)

        def called(*arguments):
            if before:
                act()
            real(*arguments)
            act()

        monkeypatch.setattr(os, name, called)

    around("replace", True)
    around("fsync", False)


@pytest.fixture(scope="module")
def places(demo, tmp_path_factory):
    """How many writes there are to kill the run at."""
    count = []
    with pytest.MonkeyPatch.context() as patch:
        at_each_write(patch, lambda: count.append(1))
        train(small("epochs=1"), demo, tmp_path_factory.mktemp("places") / "run")
    return len(count)


# 0 to 2 write the settings, 6 to 14 the first model, 15 to 17 the first checkpoint
@pytest.mark.parametrize("place", [0, 2, 7, 10, 13, 15, 17, -4, -1])
def test_resumes_after_a_kill_at_a_write(demo, finished, places, tmp_path, monkeypatch, place):
    countdown = iter(range(place % places, -1, -1))

    def act():
        if next(countdown) == 0:
            raise Killed

    with monkeypatch.context() as patch:
        at_each_write(patch, act)
        with pytest.raises(Killed):
            train(small("epochs=1"), demo, tmp_path / "run")
    resumes(demo, tmp_path / "run", finished)


def test_resumes_after_a_kill_in_the_middle_of_a_metrics_line(demo, finished, tmp_path):
    folder = interrupted(demo, tmp_path / "run")
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 1')
    resumes(demo, folder, finished)


def kill_everywhere(base):
    """Kill processes at each write and after each step; for a process without threads."""
    torch.set_num_threads(1)
    recipe = small("epochs=1")
    data = prepare(recipe)
    train(recipe, data, base / "whole")

    def child(folder, place, resume):
        """Train in a process of its own; return its exit status."""
        pid = os.fork()
        if pid:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        countdown = iter(range(place, -sys.maxsize, -1))

        def act(*_):
            if next(countdown) == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        at_each_write(pytest.MonkeyPatch(), act)
        train(recipe, data, folder, resume=resume, on_step=act)
        os._exit(0)

    place = 0
    while child(base / str(place), place, False) == -signal.SIGKILL:
        assert child(base / str(place), -1, True) == 0, place
        assert contents(base / str(place)) == contents(base / "whole"), place
        assert not list((base / str(place)).rglob("*.part")), place
        place += 1
    assert place > 30


@pytest.mark.slow
def test_resumes_after_sigkill_at_every_write(tmp_path):
    call = "from tests.training.test_survival import *; kill_everywhere(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", call, tmp_path], check=True)


# processes that are really killed


def process(folder, *options):
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "gumbeltree",
            "train",
            "demo",
            *OPTIONS,
            "--out",
            str(folder),
            "--resume",
            *map(str, options),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GUMBELTREE_HOME": str(folder.parent)},
    )


def lines_of(folder):
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_lines(folder, count, running):
    end = time.monotonic() + 180
    while lines_of(folder) < count and running.poll() is None:
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.002)


def straight(demo, folder):
    """Return what `process` leaves behind if nothing happens to it."""
    train(small(*SETTINGS), demo, folder, recipe_name="demo")
    assert len(metrics(folder)) == EVALUATIONS
    return contents(folder)


WAIT = """
import signal

from gumbeltree.training.folder import RunFolder

add_metrics = RunFolder.add_metrics


def add_and_wait(folder, record):
    size = add_metrics(folder, record)
    while record["step"] == 4:
        signal.pause()
    return size


RunFolder.add_metrics = add_and_wait
"""


def test_a_killed_process_resumes(demo, tmp_path):
    folder = tmp_path / "run"
    # otherwise, it could end before it is killed
    (tmp_path / "wait.py").write_text(WAIT, encoding="utf-8")
    running = process(folder, "--plugin", tmp_path / "wait.py")
    wait_for_lines(folder, 4, running)
    running.kill()
    _, err = running.communicate()
    assert running.returncode == -signal.SIGKILL, err
    assert lines_of(folder) < EVALUATIONS
    train(small(*SETTINGS), demo, folder, recipe_name="demo", resume=True)
    assert contents(folder) == straight(demo, tmp_path / "straight")


@pytest.mark.slow
def test_processes_resume_after_many_kills_and_stops(demo, tmp_path):
    generator = random.Random(4)
    expected = straight(demo, tmp_path / "straight")
    for attempt in range(4):
        folder = tmp_path / str(attempt)
        for number, code in (
            (signal.SIGKILL, -9),
            (signal.SIGINT, 130),
            (signal.SIGTERM, 143),
            (signal.SIGKILL, -9),
        ):
            running = process(folder)
            wait_for_lines(folder, lines_of(folder) + generator.randint(0, 6), running)
            time.sleep(generator.random() * 0.15)
            running.send_signal(number)
            _, err = running.communicate()
            # before training begins, signals have their usual effect
            assert running.returncode in (code, -number, 0), err
            assert "Traceback" not in err or number == signal.SIGINT
        running = process(folder)
        _, err = running.communicate()
        assert running.returncode == 0, err
        assert contents(folder) == expected


# asked to stop


RARELY_SAVED = ("evaluations=1", "checkpoint_seconds=1000", "patience=0", "batch_size=33")


@pytest.fixture(scope="module")
def rarely_saved(demo, tmp_path_factory):
    folder = tmp_path_factory.mktemp("survival") / "rarely"
    train(small(*RARELY_SAVED), demo, folder)
    return contents(folder)


@pytest.mark.parametrize(
    ("step", "signals", "status"),
    [
        (1, [signal.SIGINT], 130),
        (5, [signal.SIGTERM], 143),
        # launchers pass Ctrl-C on to processes that have already received it
        (8, [signal.SIGINT, signal.SIGTERM], 130),
    ],
)
def test_signals_save_and_stop(demo, rarely_saved, tmp_path, step, signals, status):
    recipe = small(*RARELY_SAVED)

    def on_step(done):
        if done == step:
            for number in signals:
                signal.raise_signal(number)

    with pytest.raises(InterruptedRunError, match="--resume") as caught:
        train(recipe, demo, tmp_path / "run", on_step=on_step)
    assert caught.value.status == status
    done = []
    train(recipe, demo, tmp_path / "run", resume=True, on_step=done.append)
    # no step is repeated, and the loss of the earlier ones counts
    assert done == list(range(step + 1, 11))
    assert contents(tmp_path / "run") == rarely_saved


def test_a_second_signal_has_its_usual_effect():
    # a shell ignores it in background jobs
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    term = signal.getsignal(signal.SIGTERM)
    try:
        with loop.StopRequest() as stop:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            assert stop.number == signal.SIGINT
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGTERM) is term
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


# full disks, missing permissions


@contextlib.contextmanager
def file_size_limit(size):
    """Let writes beyond `size` bytes fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_last_checkpoint_intact(demo, finished, tmp_path):
    folder = interrupted(demo, tmp_path / "run")
    path = folder / "last.checkpoint"
    before = path.read_bytes()
    with (
        file_size_limit(len(before) - 1),
        pytest.raises(OSError, match=rf"{path} \(.*too large.*intact.*--resume"),
    ):
        train(small("epochs=1"), demo, folder, resume=True)
    assert path.read_bytes() == before
    assert not list(folder.rglob("*.part"))
    assert load(folder).predict(["a dog"])
    resumes(demo, folder, finished)


@pytest.mark.parametrize(("size", "name"), [(5000, "model"), (700, "settings.json")])
def test_a_disk_full_from_the_start(demo, finished, tmp_path, size, name):
    with file_size_limit(size), pytest.raises(OSError, match=f"cannot write {tmp_path / name}"):
        train(small("epochs=1"), demo, tmp_path)
    assert not (tmp_path / "last.checkpoint").exists()
    resumes(demo, tmp_path, finished)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("result.json", OSError(28, "No space left on device")),
        ("config.json", OSError(28, "No space left on device")),
        # the errors of safetensors and tokenizers
        ("model.safetensors", SafetensorError("I/O error: No space left on device")),
        ("tokenizer.json", Exception("No space left on device (os error 28)")),
    ],
)
def test_a_disk_full_for_one_file_of_the_result(demo, finished, tmp_path, monkeypatch, name, error):
    folder = tmp_path / "run"
    real = gumbeltree.atomic.replace_file

    def full(path, write):
        # the model is written again at the end
        if path.name == name and (folder / "last.checkpoint").exists():
            raise error
        real(path, write)

    with monkeypatch.context() as patch:
        for module in (gumbeltree.store, folder_module):
            patch.setattr(module, "replace_file", full)
        where = folder / name if name == "result.json" else folder / "model"
        with pytest.raises(OSError, match=f"cannot write {where} .*No space"):
            train(small("epochs=1"), demo, folder)
    resumes(demo, folder, finished)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_metrics_on_a_full_disk(demo, finished, tmp_path):
    folder = interrupted(demo, tmp_path / "run")
    path = folder / "metrics.jsonl"
    kept = path.read_bytes()
    path.unlink()
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match=rf"cannot write {path} .*No space"):
        train(small("epochs=1"), demo, folder, resume=True)
    path.unlink()
    path.write_bytes(kept)
    resumes(demo, folder, finished)


def test_rejects_a_folder_that_cannot_be_created(demo, tmp_path):
    path = tmp_path / "file"
    path.write_text("years of work")
    for folder in (path, path / "run"):
        with pytest.raises(OSError, match=f"cannot write to {folder} .*--out"):
            train(small(), demo, folder)
    assert path.read_text() == "years of work"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_rejects_a_folder_without_permission(demo, tmp_path):
    (tmp_path / "run").mkdir(mode=0o500)
    with pytest.raises(OSError, match=f"cannot write to {tmp_path / 'run'}"):
        train(small(), demo, tmp_path / "run")


# one process at a time


def test_rejects_a_second_process(demo, finished, tmp_path):
    folder = tmp_path / "run"

    def on_step(done):
        for resume, message in ((True, "in use by another process"), (False, "in use|holds a")):
            with pytest.raises(OSError, match=message):
                train(small("epochs=1"), demo, folder, resume=resume)

    train(small("epochs=1"), demo, folder, on_step=on_step)
    assert contents(folder) == contents(finished)


def test_the_lock_is_released_after_use(tmp_path):
    recipe = json.loads(json.dumps(dataclasses.asdict(small())))
    settings = {"format_version": FORMAT_VERSION, "recipe_name": "x", "recipe": recipe}
    with RunFolder(tmp_path / "run", settings, False):
        pass
    with pytest.raises(FileExistsError, match="--resume"):
        RunFolder(tmp_path / "run", settings, False).__enter__()
    with RunFolder(tmp_path / "run", settings, True):
        pass


# damaged files, and files of another run


def files(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda x: b"",
        lambda x: x[:30],
        lambda x: x[:-1],
        lambda x: x + b"\0",
        lambda x: flipped(x, 0),
        lambda x: flipped(x, 26),
        lambda x: flipped(x, len(x) // 2),
    ],
)
def test_rejects_a_damaged_checkpoint(demo, finished, tmp_path, damage):
    folder = shutil.copytree(finished, tmp_path / "run")
    path = folder / "last.checkpoint"
    path.write_bytes(damage(path.read_bytes()))
    before = files(folder)
    with pytest.raises(ValueError, match=r"last\.checkpoint is damaged"):
        train(small("epochs=2"), demo, folder, resume=True)
    assert files(folder) == before


def test_rejects_the_checkpoint_of_another_run(demo, finished, tmp_path):
    train(small("epochs=1", "seed=1"), demo, tmp_path / "other")
    folder = shutil.copytree(finished, tmp_path / "run")
    shutil.copy(tmp_path / "other" / "last.checkpoint", folder)
    with pytest.raises(ValueError, match=r"last\.checkpoint belongs to another run"):
        train(small("epochs=1"), demo, folder, resume=True)


@pytest.mark.parametrize("content", ["", "{", "[]", "\x00"])
def test_rejects_damaged_settings(demo, finished, tmp_path, content):
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "settings.json").write_text(content)
    before = files(folder)
    with pytest.raises(ValueError, match=r"settings\.json is damaged"):
        train(small("epochs=1"), demo, folder, resume=True)
    assert files(folder) == before


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("seed=1", r"`training.seed` is 0, not 1"),
        ("encoder.hidden_dim=9", r"`model.encoder.hidden_dim` is 8, not 9"),
        ("optimizer=adadelta", r"`training.optimizer` is 'adam', not 'adadelta'"),
    ],
)
def test_rejects_a_run_with_other_settings(demo, finished, tmp_path, setting, message):
    folder = shutil.copytree(finished, tmp_path / "run")
    before = files(folder)
    with pytest.raises(ValueError, match=message):
        train(small("epochs=1", setting), demo, folder, resume=True)
    assert files(folder) == before


def test_rejects_a_run_with_other_data(demo, finished):
    other = prepare(small("epochs=1", "data.generate=281"))
    with pytest.raises(ValueError, match=r"`data.generate` is \d+, not 281"):
        train(small("epochs=1"), other, finished, resume=True)
    # the same settings, as if the file had changed
    other = dataclasses.replace(other, data=demo.data)
    with pytest.raises(ValueError, match="its data are different"):
        train(small("epochs=1"), other, finished, resume=True)


def test_rejects_a_folder_with_other_files(demo, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("years of work")
    for resume in (False, True):
        with pytest.raises(FileExistsError, match=r"not a training run .*thesis.txt"):
            train(small("epochs=1"), demo, tmp_path / "run", resume=resume)
    assert sorted(x.name for x in (tmp_path / "run").iterdir()) == [".lock", "thesis.txt"]


def test_removes_what_a_killed_process_left(demo, finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "last.checkpoint.123.part").write_bytes(b"half")
    (folder / "model" / "model.safetensors.123.part").write_bytes(b"half")
    resumes(demo, folder, finished)


# values that are not finite


def test_rejects_a_learning_rate_that_diverges(demo, tmp_path):
    with pytest.raises(NotFiniteError, match=r"NaN or infinite.*learning_rate") as error:
        train(small("learning_rate=1e30"), demo, tmp_path / "run")
    # nothing was saved yet
    assert "checkpoint" not in str(error.value)


@pytest.mark.parametrize("place", ["loss", "gradient", "weights"])
def test_never_saves_values_that_are_not_finite(demo, finished, tmp_path, monkeypatch, place):
    models = []
    with monkeypatch.context() as patch:
        new_model, loss, clip = loop.new_model, SingleHead.loss, steps.clip

        def kept(*arguments):
            models.append(new_model(*arguments))
            return models[-1]

        def on_step(done):
            if done == 3 and place == "loss":
                patch.setattr(SingleHead, "loss", lambda *args: loss(*args) * torch.nan)
            elif done == 3 and place == "gradient":
                patch.setattr(steps, "clip", lambda *args: clip(*args) * torch.inf)
            elif done == 4:
                # nothing has been computed with them when the run stops
                with torch.no_grad():
                    models[0].head.output.bias[0] = torch.nan
                signal.raise_signal(signal.SIGTERM)

        patch.setattr(loop, "new_model", kept)
        with pytest.raises(NotFiniteError, match=r"at step 4 \(epoch 1\); the last checkpoint"):
            train(small("epochs=1"), demo, tmp_path / "run", on_step=on_step)
    assert [line["step"] for line in metrics(tmp_path / "run")] == [2]
    resumes(demo, tmp_path / "run", finished)


def test_a_run_that_cannot_start_leaves_its_folder_to_another(demo, tmp_path):
    with pytest.raises(ValueError, match="entropy"):
        train(small("entropy=0.1"), demo, tmp_path / "run")
    train(small(), demo, tmp_path / "run")
    # a run that has started keeps its settings
    with pytest.raises(FileExistsError, match="already holds a training run"):
        train(small(), demo, tmp_path / "run")
