"""Encode on a local Ray cluster of two workers: as the command line does, in its own processes."""

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import gumbeltree
from gumbeltree import ray_engine
from gumbeltree.sharded import Shard
from gumbeltree.text.files import BadLineError
from gumbeltree.text.ids import TextCounts
from tests.commands import run
from tests.models import TEXTS, tiny_model
from tests.ports import reserved_port

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")
# 7 shards of 4 texts, and one of a single text
INPUT = [f"{text} {TEXTS[row % 5]}" for row, text in enumerate(TEXTS * 5)][:29]
SHARD_TEXTS = [INPUT[start] for start in range(0, 29, 4)]

PLUGIN = """
import os, signal
from pathlib import Path
from gumbeltree.text_model import TextModel

folder, encode = Path(__file__).parent, TextModel.encode


def logged(self, texts, *args, **options):
    name = folder / f"stop-{texts[0]}"
    if (folder / f"die-{texts[0]}").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    if (folder / f"bad-{texts[0]}").exists():
        raise ValueError("text 2 has no words")
    if name.exists():
        # the first worker that gets this shard reports its process and waits for the end
        os.rename(name, folder / "taken")
        (folder / "pid.part").write_text(str(os.getpid()))
        os.rename(folder / "pid.part", folder / "pid")
        while True:
            signal.pause()
    vectors = encode(self, texts, *args, **options)
    with (folder / "log").open("a") as file:
        file.write(texts[0] + "\\n")
    return vectors


TextModel.encode = logged
"""


class Place:
    """A folder with a model, texts, and a plugin that logs the shards that workers encode."""

    def __init__(self, path: Path) -> None:
        self.path, self.out, self.texts = path, path / "out", path / "texts.txt"
        gumbeltree.save(tiny_model("single"), path / "model")
        (path / "spy.py").write_text(PLUGIN)
        self.write(INPUT)

    def write(self, texts: list[str]) -> None:
        self.texts.write_text("".join(f"{text}\n" for text in texts))

    def start(self, *options: object, **environment: str) -> subprocess.Popen[str]:
        arguments = ["encode", "model", "--input", "texts.txt", "--out", "out", "--engine", "ray"]
        arguments += ["--workers", "2", "--shard-rows", "4", "--plugin", "spy.py"]
        environment = {"PYTHONPATH": os.pathsep.join(sys.path), **environment}
        return subprocess.Popen(
            [sys.executable, "-m", "gumbeltree", *arguments, *map(str, options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.path,
            env={**os.environ, **environment},
        )

    def run(self, *options: object, **environment: str) -> tuple[int, str]:
        return self.end(self.start(*options, **environment))

    def end(self, running: subprocess.Popen[str]) -> tuple[int, str]:
        """Return status and standard error; nothing goes to standard output."""
        with running:
            try:
                out, err = running.communicate(timeout=240)
            finally:
                running.kill()
        assert out == ""
        assert "Traceback" not in err
        return running.returncode, err

    def wait_for(self, path: Path, running: subprocess.Popen[str]) -> None:
        late = time.monotonic() + 180
        while not path.exists():
            assert running.poll() is None, running.communicate()
            assert time.monotonic() < late, f"no {path}"
            time.sleep(0.02)

    def encoded(self) -> list[str]:
        """Return the first texts of the shards that were encoded since the last call."""
        log = self.path / "log"
        found = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return sorted(found)

    def check(self, texts: list[str]) -> None:
        model = gumbeltree.load(self.path / "model", runtime="numpy")
        found = gumbeltree.open_vectors(self.out)[:]
        np.testing.assert_allclose(found, model.encode(texts), rtol=0, atol=1e-6)


class FakeRay:
    """Stands in for the module `ray`; of the tasks in flight, the last one is finished first."""

    exceptions = SimpleNamespace(RayTaskError=KeyError, RayError=KeyError)

    def remote(self, **options):
        def actor(kind, *arguments):
            worker = kind(*arguments)
            encode = SimpleNamespace(remote=lambda *given: partial(worker.encode, *given))
            worker.model = tiny_model("single")
            return SimpleNamespace(encode=encode)

        return lambda kind: SimpleNamespace(remote=partial(actor, kind))

    def put(self, value):
        return value

    def wait(self, tasks, timeout):
        return tasks[-1:], tasks[:-1]

    def get(self, task):
        return task()


@pytest.mark.parametrize("fails", [False, True])
def test_few_shards_are_in_flight(monkeypatch, fails):
    read = []

    def shards():
        for number in range(20):
            read.append(number)
            yield Shard(number, [TEXTS[number % 6]], 1, 1)
        if fails:
            raise BadLineError("line 21")

    @contextlib.contextmanager
    def cluster(*_):
        yield FakeRay(), 3

    monkeypatch.setattr(ray_engine, "_cluster", cluster)
    results = ray_engine.encode_shards(shards(), tiny_model("single"), "texts.txt")
    finished = []
    with pytest.raises(BadLineError) if fails else contextlib.nullcontext():
        for number, vectors, counts in results:
            finished.append(number)
            assert len(read) - len(finished) < 3 * ray_engine.IN_FLIGHT
            np.testing.assert_allclose(
                vectors, tiny_model("single").encode([TEXTS[number % 6]]), rtol=0, atol=1e-6
            )
            assert counts.texts == 1
    # all shards that were read are finished, also before an error
    assert sorted(finished) == list(range(20))
    assert finished != sorted(finished)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


@needs_ray
def test_a_killed_worker_is_replaced(place):
    (place.path / f"stop-{SHARD_TEXTS[2]}").touch()
    running = place.start()
    place.wait_for(place.path / "pid", running)
    # by then, the worker has delivered what it encoded before
    for number in range(2):
        place.wait_for(place.out / f"part-0000{number}.npy", running)
    os.kill(int((place.path / "pid").read_text()), signal.SIGKILL)
    code, err = place.end(running)
    assert code == 0, err
    counts = TextCounts()
    tiny_model("single").encode(INPUT, counts=counts)
    *progress, said, counted = err.splitlines()
    assert (said, counted) == ("out: 29 x 6, float32, in 8 shards", str(counts))
    # a busy machine takes long enough for these lines
    assert all(re.match(r"\d shards?, \d+ texts, ", line) for line in progress)
    place.check(INPUT)
    # nothing is lost, and nothing is encoded twice
    assert place.encoded() == sorted(SHARD_TEXTS)


@needs_ray
@pytest.mark.slow
def test_a_second_run_completes_shards_on_a_running_cluster(place):
    # the cluster and the commands agree on a token
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
    program = (
        "import ray, sys\n"
        "options = dict(num_cpus=2, object_store_memory=100 * 2**20, include_dashboard=False)\n"
        "options['_node_ip_address'] = '127.0.0.1'\n"
        "print(ray.init('local', **options).address_info['address'], flush=True)\n"
        "sys.stdin.read()\n"
    )
    cluster = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={
            **os.environ,
            **token,
            "RAY_USAGE_STATS_ENABLED": "0",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
    )
    with cluster:
        address = next(line for line in cluster.stdout if ":" in line).strip()
        code, err = place.run("--ray-address", address, **token)
        assert code == 0, err
        place.check(INPUT)
        assert place.encoded() == sorted(SHARD_TEXTS)
        (place.out / "part-00003.npy").unlink()
        (place.out / "part-00007.npy").write_bytes(b"damaged")
        code, err = place.run(RAY_ADDRESS=address, **token)
        assert (code, err.splitlines()[0]) == (0, "6 shards already complete")
        assert place.encoded() == sorted([SHARD_TEXTS[3], SHARD_TEXTS[7]])
        place.check(INPUT)
        # a complete folder needs no cluster
        cluster.stdin.close()
        cluster.wait(60)
        code, err = place.run("--ray-address", address)
        assert (code, err) == (0, "out: 29 x 6, float32, in 8 shards; nothing to do\n")


@needs_ray
@pytest.mark.slow
def test_bad_lines(place):
    # lines are read in chunks of 1,024
    texts = TEXTS * 200
    place.write([*texts[:1030], "", *texts[1030:]])
    code, err = place.run("--shard-rows", 300)
    assert code == 1
    assert "texts.txt, line 1031: expected at least one word" in err
    # shards in flight are finished
    assert "out: 3 complete shards kept; repeat the command" in err
    code, err = place.run("--shard-rows", 300, "--skip-bad")
    assert code == 1
    assert "--skip-bad was False, now True" in err
    place.out = place.path / "other"
    code, err = place.run("--shard-rows", 300, "--skip-bad", "--out", "other")
    assert code == 0, err
    assert "1 bad line skipped" in err
    place.check(texts)


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_continues(place, number):
    (place.path / f"stop-{SHARD_TEXTS[2]}").touch()
    running = place.start()
    place.wait_for(place.path / "pid", running)
    place.wait_for(place.out / "part-00000.npy", running)
    start = time.monotonic()
    running.send_signal(number)
    code, err = place.end(running)
    assert code == 128 + number, err
    assert time.monotonic() - start < 20
    assert "kept; repeat the command to encode the others" in err
    with contextlib.suppress(ProcessLookupError):
        os.kill(int((place.path / "pid").read_text()), 0)
        pytest.fail("the worker still runs")
    listed = json.loads((place.out / "index.json").read_text())["shards"]
    assert listed.keys() == {path.name for path in place.out.glob("*.npy")}
    done = place.encoded()
    assert place.run("--quiet") == (0, "")
    assert set(done + place.encoded()) == set(SHARD_TEXTS)
    place.check(INPUT)


@needs_ray
@pytest.mark.slow
def test_texts_that_kill_every_worker_end_the_run(place):
    (place.path / f"die-{SHARD_TEXTS[5]}").touch()
    code, err = place.run()
    assert code == 1
    assert "texts.txt, lines 21 to 24: 4 workers died" in err


@needs_ray
@pytest.mark.slow
def test_tables_and_errors_of_the_model(place):
    (place.path / "t.csv").write_text(
        "a,b\n" + "".join(f'{i},"{x}"\n' for i, x in enumerate(INPUT))
    )
    assert place.run("--input", "t.csv", "--text", "b")[0] == 0
    place.check(INPUT)
    (place.path / f"bad-{SHARD_TEXTS[1]}").touch()
    code, err = place.run("--out", "other")
    assert code == 1
    assert "texts.txt, lines 5 to 8: text 2 has no words" in err


def test_wrong_use_is_refused(place, monkeypatch):
    start = ["encode", place.path / "model", "--out", place.out]
    ray = [*start, "--engine", "ray", "--input", place.texts]
    for arguments, message in (
        ([*start, "now", "--engine", "ray"], "pass it with --input"),
        ([*start, "--engine", "ray"], "pass it with --input"),
        ([*ray, "--device", "cuda"], "omit --device"),
        ([*ray, "--threads", "2"], "--workers"),
        ([*ray, "--out", place.path / "x.npy"], "folder of .npy files"),
        ([*ray, "--input", place.path / "no.txt"], "no.txt does not exist"),
        ([*start, "--workers", "2", "--input", place.texts], "require --engine ray"),
    ):
        assert message in run(*arguments).refused()
    if importlib.util.find_spec("ray"):
        with reserved_port() as port:
            message = run(*ray, "--ray-address", f"127.0.0.1:{port}").err
        assert f"no Ray cluster answers at 127.0.0.1:{port}" in message
        shutil.rmtree(place.out)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else find(name)
    )
    message = run(*ray).refused()
    assert "--engine ray needs Ray, which is not installed; run: " in message
    assert "[ray]" in message
    assert not place.out.exists()
