"""Runs that are killed, stopped, or short of room: nothing is lost, and the end is the same."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors import SafetensorError

import gumbeltree.atomic
import gumbeltree.store
from gumbeltree import load
from gumbeltree.training import loop
from gumbeltree.training import step as steps
from gumbeltree.training.folder import RunFolder
from gumbeltree.training.loop import NotFiniteError, train
from tests.runs import SMALL, contents, metrics, small

SETTINGS = (*SMALL, "batch_size=10", "evaluations=14", "epochs=3", "patience=3")
COMMAND = ("train", "demo", "--device", "cpu", *(x for s in SETTINGS for x in ("--set", s)))
EVALUATIONS = 42

SERVER = """
import json, os, resource, signal, sys, traceback

import torch
import torch.utils.tensorboard
import gumbeltree.data.compile, gumbeltree.training.loop, gumbeltree.training.seeds
from gumbeltree.cli import main
from gumbeltree.training.folder import RunFolder

torch.set_num_threads(1)


def count_down(kill_at, counted):
    # every place where a kill could leave something behind: around each write, and at each step
    places = 0

    def place():
        nonlocal places
        places += 1
        if places == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if counted:
            with open(counted, "w") as file:
                file.write(str(places))

    def around(owner, name, before):
        real = getattr(owner, name)

        def called(*given, **options):
            if before:
                place()
            result = real(*given, **options)
            place()
            return result

        setattr(owner, name, called)

    def half_a_line(folder, line):
        real = folder.path / "metrics.jsonl"
        with open(real, "ab") as file:
            file.write(b'{"step": 1')
        place()
        os.truncate(real, real.stat().st_size - 10)
        return add(folder, line)

    add, RunFolder.add_metrics = RunFolder.add_metrics, half_a_line
    around(os, "replace", True)
    around(os, "fsync", False)
    around(RunFolder, "add_metrics", False)
    around(gumbeltree.training.loop._Run, "_step", False)
    around(gumbeltree.training.loop._Run, "finish", False)


def child(job):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, path in ((1, job["out"]), (2, job["err"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    if job.get("limit"):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["limit"], job["limit"]))
    if job.get("kill_at") is not None:
        count_down(job["kill_at"], job.get("counted"))
    sys.argv = ["gumbeltree", *job["arguments"]]
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


for line in sys.stdin:
    job = json.loads(line)
    if "wait" in job:
        answer = os.waitstatus_to_exitcode(os.waitpid(job["wait"], 0)[1])
    else:
        answer = os.fork()
        if answer == 0:
            child(job)
    print(answer, flush=True)
"""


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    def refused(self):
        """Assert one message on stderr and status 1; return the message."""
        assert self.code == 1, self
        assert "Traceback" not in self.err
        line = self.err.strip().splitlines()[-1]
        assert line.startswith("gumbeltree: error: "), self
        return line


class Server:
    """Starts processes that have imported everything already, so that many can be killed."""

    def __init__(self, folder):
        self.folder = folder
        self.number = 0
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GUMBELTREE_HOME": str(folder)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, **job):
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def start(self, *arguments, **options):
        self.number += 1
        files = {name: str(self.folder / f"{self.number}.{name}") for name in ("out", "err")}
        return self.ask(arguments=[str(x) for x in arguments], **files, **options), files

    def wait(self, started):
        pid, files = started
        code = self.ask(wait=pid)
        return Ended(code, *(Path(files[name]).read_text() for name in ("out", "err")))

    def run(self, *arguments, **options):
        return self.wait(self.start(*arguments, **options))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.process.stdin.close()
    assert server.process.wait(30) == 0
    server.process.stdout.close()


@pytest.fixture(scope="module")
def straight(server):
    """What a run that nothing happened to leaves behind, and how long it took."""
    folder = server.folder / "straight"
    ended = server.run(*COMMAND, "--out", folder)
    assert ended.code == 0, ended
    assert len(metrics(folder)) == EVALUATIONS
    assert len({line["dev_accuracy"] for line in metrics(folder)}) > 3
    assert len({line["learning_rate"] for line in metrics(folder)}) > 3
    return contents(folder)


def lines_of(folder):
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.002)


def interrupted(server, folder, lines=5):
    """Start a run and kill it after a few evaluations."""
    started = server.start(*COMMAND, "--out", folder)
    until(lambda: lines_of(folder) >= lines)
    os.kill(started[0], signal.SIGKILL)
    assert server.wait(started).code == -signal.SIGKILL
    assert lines_of(folder) < EVALUATIONS
    return folder


def goes_on(server, folder, straight):
    """Assert that a run ends as if nothing had happened."""
    ended = server.run(*COMMAND, "--out", folder, "--resume")
    assert ended.code == 0, ended
    assert contents(folder) == straight
    assert not list(folder.rglob("*.part"))


# killed


def process(folder, *more):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GUMBELTREE_HOME": str(folder / "home")}
    return subprocess.Popen(
        [sys.executable, "-m", "gumbeltree", *COMMAND, "--out", str(folder / "run"), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def test_a_run_killed_and_stopped_and_killed_ends_the_same(tmp_path, straight):
    generator = random.Random(1)
    folder = tmp_path / "run"
    for number, code, message in (
        (signal.SIGKILL, -9, ""),
        (signal.SIGINT, 130, f"gumbeltree: stopped; the state is saved in {folder}: go on with"),
        (signal.SIGTERM, 143, f"gumbeltree: stopped; the state is saved in {folder}: go on with"),
    ):
        before = lines_of(folder)
        running = process(tmp_path, "--resume")
        until(lambda before=before: lines_of(folder) > before + 3)
        time.sleep(generator.random() * 0.1)
        running.send_signal(number)
        _, err = running.communicate()
        assert running.returncode == code, err
        assert message in err
        assert "Traceback" not in err
        assert lines_of(folder) < EVALUATIONS
    running = process(tmp_path, "--resume")
    _, err = running.communicate()
    assert running.returncode == 0, err
    assert "going on after step" in err
    assert contents(folder) == straight


def test_kills_at_random_moments(server, straight, tmp_path):
    generator = random.Random(2)
    folder = tmp_path / "run"
    kills = 0
    for _ in range(3):
        before = lines_of(folder)
        started = server.start(*COMMAND, "--out", folder, "--resume")
        until(lambda before=before: lines_of(folder) > before + 2)
        time.sleep(generator.random() * 0.2)
        os.kill(started[0], signal.SIGKILL)
        kills += server.wait(started).code == -signal.SIGKILL
    assert kills == 3
    goes_on(server, folder, straight)


def kill_places(server, folder):
    """Return how many places there are to be killed at, in a short run of three evaluations."""
    command = (*COMMAND, "--set", "epochs=1", "--set", "evaluations=3")
    ended = server.run(
        *command, "--out", folder / "whole", kill_at=0, counted=str(folder / "counted")
    )
    assert ended.code == 0, ended
    return command, int((folder / "counted").read_text()), contents(folder / "whole")


def kill_at(server, command, place, folder, whole):
    started = server.run(*command, "--out", folder, kill_at=place)
    assert started.code == -signal.SIGKILL, (place, started)
    ended = server.run(*command, "--out", folder, "--resume")
    assert ended.code == 0, (place, ended)
    assert contents(folder) == whole, place
    assert not list(folder.rglob("*.part")), place


def test_kills_at_some_writes(server, tmp_path):
    command, places, whole = kill_places(server, tmp_path)
    assert places > 40
    # the first model, file by file, is where there is least to go on from
    for place in (1, 9, 12, 13, 16, 18, 21, 30, places - 7, places):
        kill_at(server, command, place, tmp_path / str(place), whole)


@pytest.mark.slow
def test_kills_at_every_write(server, tmp_path):
    command, places, whole = kill_places(server, tmp_path)
    for place in range(1, places + 1):
        kill_at(server, command, place, tmp_path / str(place), whole)
    print(f"killed at {places} places, all ended the same")


@pytest.mark.slow
def test_many_kills_at_random_moments(straight, tmp_path):
    generator = random.Random(4)
    began = time.monotonic()
    running = process(tmp_path / "measure")
    running.communicate()
    length = time.monotonic() - began
    hits = {"before the first checkpoint": 0, "during training": 0, "at the end": 0}
    runs = 0
    while sum(hits.values()) < 28 or min(hits.values()) < 3:
        runs += 1
        assert runs < 20, hits
        base = tmp_path / str(runs)
        for aim in ("start", "training", "training", "training", "end"):
            before = lines_of(base / "run")
            wanted = {"start": 0, "training": before + generator.randint(1, 9), "end": EVALUATIONS}
            running = process(base, "--resume")
            until(
                lambda running=running, base=base, wanted=wanted[aim]: (
                    lines_of(base / "run") >= wanted or running.poll() is not None
                )
            )
            time.sleep(generator.random() * (length / 2 if aim == "start" else 0.15))
            running.kill()
            running.communicate()
            if running.returncode == 0:
                # it was faster
                continue
            assert running.returncode == -signal.SIGKILL
            if not (base / "run" / "last.checkpoint").exists():
                hits["before the first checkpoint"] += 1
            else:
                done = lines_of(base / "run") == EVALUATIONS
                hits["at the end" if done else "during training"] += 1
        running = process(base, "--resume")
        _, err = running.communicate()
        assert running.returncode == 0, err
        assert contents(base / "run") == straight
    print(f"kills: {hits}, {runs} runs, all ended the same")


# asked to stop


@pytest.mark.parametrize(
    ("signals", "code"),
    [
        ((signal.SIGINT,), 130),
        ((signal.SIGTERM,), 143),
        # as launchers do that pass Ctrl-C on to processes that have had it already
        ((signal.SIGINT, signal.SIGTERM), 130),
    ],
)
def test_signals_save_and_stop(server, straight, tmp_path, signals, code):
    folder = tmp_path / "run"
    # saved at the end only, unless asked to stop
    rare = (*COMMAND, "--set", "checkpoint_seconds=1000")
    started = server.start(*rare, "--out", folder)
    until(lambda: lines_of(folder) >= 5)
    assert not (folder / "last.checkpoint").exists()
    for number in signals:
        os.kill(started[0], number)
        time.sleep(0.001)
    ended = server.wait(started)
    assert ended.code == code
    assert ended.err.splitlines()[-1] == (
        f"gumbeltree: stopped; the state is saved in {folder}: go on with --resume"
    )
    done = lines_of(folder)
    assert 5 <= done < EVALUATIONS
    goes_on(server, folder, straight)
    assert (folder / "last.checkpoint").exists()


def test_a_second_signal_of_a_kind_has_its_usual_effect():
    # in the background of a shell it is ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    term = signal.getsignal(signal.SIGTERM)
    try:
        with loop.StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.number == signal.SIGINT
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGTERM) is term
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


# no room, no access


@pytest.mark.parametrize("short", [1, 20_000])
def test_a_full_disk_is_an_error_and_nothing_is_lost(server, straight, tmp_path, short):
    folder = interrupted(server, tmp_path / "run", lines=6)
    path = folder / "last.checkpoint"
    state = path.read_bytes()
    message = server.run(
        *COMMAND, "--quiet", "--out", folder, "--resume", limit=len(state) - short
    ).refused()
    assert f"{path} could not be written ([Errno 27] File too large)" in message
    assert "what was saved before is intact: make room, then go on with --resume" in message
    assert path.read_bytes() == state
    assert not list(folder.rglob("*.part"))
    assert load(folder).predict(["a dog"])
    goes_on(server, folder, straight)


def test_a_disk_full_from_the_start(server, straight, tmp_path):
    folder = tmp_path / "run"
    message = server.run(*COMMAND, "--out", folder, limit=5000).refused()
    assert f"{folder / 'model'} could not be written" in message
    assert not (folder / "last.checkpoint").exists()
    goes_on(server, folder, straight)
    folder = tmp_path / "other"
    message = server.run(*COMMAND, "--quiet", "--out", folder, limit=700).refused()
    assert f"{folder / 'settings.json'} could not be written" in message
    # no run has begun: no --resume is needed
    assert server.run(*COMMAND, "--set", "epochs=1", "--out", folder).code == 0


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("result.json", OSError(28, "No space left on device")),
        ("config.json", OSError(28, "No space left on device")),
        # as safetensors and tokenizers say it
        ("model.safetensors", SafetensorError("I/O error: No space left on device")),
        ("tokenizer.json", Exception("No space left on device (os error 28)")),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_a_disk_that_is_full_for_one_file(
    demo,
    finished,
    tmp_path,
    monkeypatch,
    name,
    error,
    last,
):
    folder = tmp_path / "run"
    real = gumbeltree.atomic.replace_file

    def full(path, write):
        # the last model is written again with its result
        if path.name == name and (not last or (folder / "last.checkpoint").exists()):
            raise error
        real(path, write)

    with monkeypatch.context() as patch:
        for module in (gumbeltree.store, gumbeltree.training.folder):
            patch.setattr(module, "replace_file", full)
        where = folder / name if name == "result.json" else folder / "model"
        with pytest.raises(OSError, match=f"{where} could not be written .*No space.* is intact"):
            train(small("epochs=1"), demo, folder)
    train(small("epochs=1"), demo, folder, resume=True)
    assert contents(folder) == contents(finished)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_metrics_on_a_full_disk(server, straight, tmp_path):
    folder = interrupted(server, tmp_path / "run")
    path = folder / "metrics.jsonl"
    kept = path.read_bytes()
    path.unlink()
    path.symlink_to("/dev/full")
    message = server.run(*COMMAND, "--out", folder, "--resume").refused()
    assert f"{path} could not be written ([Errno 28] No space left on device)" in message
    path.unlink()
    path.write_bytes(kept)
    goes_on(server, folder, straight)


def test_a_folder_that_cannot_be_made(server, tmp_path):
    (tmp_path / "file").write_text("years of work")
    message = server.run(*COMMAND, "--out", tmp_path / "file" / "run").refused()
    assert f"{tmp_path / 'file' / 'run'} cannot be written to" in message
    assert "name another folder with --out" in message
    message = server.run(*COMMAND, "--out", tmp_path / "file").refused()
    assert f"{tmp_path / 'file'} cannot be written to" in message
    assert (tmp_path / "file").read_text() == "years of work"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(server, tmp_path):
    (tmp_path / "run").mkdir(mode=0o500)
    message = server.run(*COMMAND, "--out", tmp_path / "run").refused()
    assert f"{tmp_path / 'run'} cannot be written to" in message


def test_one_process_at_a_time(server, straight, tmp_path):
    folder = tmp_path / "run"
    started = server.start(*COMMAND, "--out", folder)
    until(lambda: lines_of(folder) >= 3)
    message = server.run(*COMMAND, "--out", folder, "--resume").refused()
    assert f"{folder} is in use by another process" in message
    message = server.run(*COMMAND, "--out", folder).refused()
    assert f"{folder} holds a training run" in message
    assert server.wait(started).code == 0
    assert contents(folder) == straight


def test_the_lock_of_a_folder_ends_with_its_use(tmp_path):
    settings = {"recipe_name": "x"}
    with RunFolder(tmp_path / "run", settings, False):
        other = RunFolder(tmp_path / "run", settings, True)
        with pytest.raises(OSError, match="in use by another process; wait for it, or name"):
            other.__enter__()
    with RunFolder(tmp_path / "run", settings, True):
        pass
    with (
        pytest.raises(FileExistsError, match="holds a training run; pass --resume"),
        RunFolder(tmp_path / "run", settings, False),
    ):
        pass
    # refused, and free again
    with RunFolder(tmp_path / "run", settings, True):
        pass


# damaged, or of another run


@pytest.fixture(scope="module")
def finished(demo, tmp_path_factory):
    folder = tmp_path_factory.mktemp("survival") / "run"
    train(small("epochs=1"), demo, folder)
    return folder


def files(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        lambda x: b"",
        lambda x: x[:10],
        lambda x: x[:30],
        lambda x: x[:36],
        lambda x: x[: len(x) // 2],
        lambda x: x[:-1],
        lambda x: x + b"\0",
        lambda x: flipped(x, 0),
        lambda x: flipped(x, 26),
        lambda x: flipped(x, 33),
        lambda x: flipped(x, len(x) // 2),
        lambda x: flipped(x, len(x) - 1),
        lambda x: x[36:],
        lambda x: b"{}\n",
    ],
)
def test_a_damaged_checkpoint_is_refused(demo, finished, tmp_path, damage):
    folder = shutil.copytree(finished, tmp_path / "run")
    path = folder / "last.checkpoint"
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    before = files(folder)
    with pytest.raises(ValueError, match=r"last\.checkpoint is damaged or cut short.*best model"):
        train(small("epochs=2"), demo, folder, resume=True)
    assert files(folder).keys() == before.keys()
    assert all(files(folder)[p] == x for p, x in before.items() if p.name != "settings.json")
    path.write_bytes(whole)
    assert train(small("epochs=2"), demo, folder, resume=True)["steps"] == 14


@pytest.mark.parametrize("other", ["seed=1", "encoder.hidden_dim=9", "learning_rate=0.01"])
def test_the_checkpoint_of_another_run_is_refused(demo, finished, tmp_path, other):
    train(small("epochs=1", other), demo, tmp_path / "other")
    folder = shutil.copytree(finished, tmp_path / "run")
    shutil.copy(tmp_path / "other" / "last.checkpoint", folder)
    with pytest.raises(ValueError, match=r"last\.checkpoint belongs to another run than .*settin"):
        train(small("epochs=1"), demo, folder, resume=True)


@pytest.mark.parametrize("content", ["", "{", "[]", "\x00"])
def test_damaged_settings_are_refused(demo, finished, tmp_path, content):
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "settings.json").write_text(content)
    before = files(folder)
    with pytest.raises(ValueError, match=r"settings\.json is damaged"):
        train(small("epochs=1"), demo, folder, resume=True)
    assert files(folder) == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("seed=1", r"another kind: its `training.seed` is 0, now it is 1; give it what it was"),
        ("batch_size=21", r"its `training.batch_size` is 20, now it is 21"),
        ("encoder.hidden_dim=9", r"its `model.encoder.hidden_dim` is 8, now it is 9"),
        ("optimizer=adadelta", r"its `training.optimizer` is 'adam', now it is 'adadelta'"),
        ("evaluations=4", r"its `training.evaluations` is 3"),
    ],
)
def test_a_run_of_another_kind_is_refused(
    demo,
    finished,
    tmp_path,
    settings,
    message,
):
    folder = shutil.copytree(finished, tmp_path / "run")
    before = files(folder)
    with pytest.raises(ValueError, match=message):
        train(small("epochs=1", settings), demo, folder, resume=True)
    assert files(folder) == before


def test_other_data_is_refused(demo, finished):
    from gumbeltree.data.compile import prepare

    recipe = small("epochs=1", "data.generate=201")
    with pytest.raises(ValueError, match="its data is '"):
        train(small("epochs=1"), prepare(recipe), finished, resume=True)


def test_a_folder_with_other_things_is_left_alone(demo, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("years of work")
    for resume in (False, True):
        with pytest.raises(FileExistsError, match=r"holds thesis.txt and is no training run"):
            train(small("epochs=1"), demo, tmp_path / "run", resume=resume)
    assert sorted(x.name for x in (tmp_path / "run").iterdir()) == [".lock", "thesis.txt"]


def test_what_a_killed_process_left_is_cleaned(demo, finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    (folder / "last.checkpoint.123.part").write_bytes(b"half")
    (folder / "model" / "model.safetensors.123.part").write_bytes(b"half")
    train(small("epochs=1"), demo, folder, resume=True)
    assert not list(folder.rglob("*.part"))
    assert contents(folder) == contents(finished)


def test_a_first_model_half_written_is_no_hindrance(demo, finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "run")
    for name in ("model/config.json", "last.checkpoint", "result.json"):
        (folder / name).unlink()
    (folder / "model" / "model.safetensors").write_bytes(b"half")
    train(small("epochs=1"), demo, folder, resume=True)
    assert contents(folder) == contents(finished)


# not finite


def test_a_learning_rate_beyond_all_bounds(server, tmp_path):
    arguments = (*COMMAND, "--set", "learning_rate=1e30", "--out", tmp_path / "run")
    message = server.run(*arguments).refused()
    assert "NaN or infinite" in message
    assert "lower" in message
    assert "learning" in message


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("loss", float("nan")),
        ("gradient", float("inf")),
        ("weights", float("nan")),
        ("weights", float("-inf")),
    ],
)
def test_what_is_not_finite_is_never_saved(
    demo,
    finished,
    tmp_path,
    monkeypatch,
    place,
    value,
):
    recipe = small("epochs=1")
    with monkeypatch.context() as patch:
        step, clip = loop._Run._step, steps.clip

        def broken(run, rows):
            if run.progress.step == 3 and place == "gradient":
                patch.setattr(steps, "clip", lambda *given: clip(*given) * value)
            step(run, rows)
            if run.progress.step == 3:
                if place == "loss":
                    run.step.loss += value
                elif place == "weights":
                    with torch.no_grad():
                        run.model.head.output.bias[0] = value

        patch.setattr(loop._Run, "_step", broken)
        if place == "weights":
            # nothing has been computed with them yet
            patch.setattr(loop._Run, "_asked_to_stop", lambda run, _: run.progress.step == 4)
        with pytest.raises(NotFiniteError, match=r"NaN or infinite at step 4 .epoch 1.; the sta"):
            train(recipe, demo, tmp_path / "run")
    assert [line["step"] for line in metrics(tmp_path / "run")] == [2]
    train(recipe, demo, tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == contents(finished)
