"""Training in several processes, started by torchrun."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from gumbeltree import load
from gumbeltree.config import load_recipe, with_settings
from gumbeltree.data.compile import prepare
from gumbeltree.data.split import shuffled
from gumbeltree.evaluation import evaluate
from gumbeltree.training.loop import train
from gumbeltree.training.start import leave_processes, strategy
from gumbeltree.training.stopping import InterruptedRunError
from tests.commands import Result
from tests.runs import SMALL, metrics

# dropout and batch normalisation depend on the process, the noise of the merges does not
SAME = (*SMALL, "embedding.dropout=0", "head.dropout=0", "learning_rate=0.01", "test_fraction=0.1")


def start(*arguments, settings=(), processes=2, device="cpu"):
    """Start training in several processes."""
    options = ["--device", device, *(x for s in (*SAME, *settings) for x in ("--set", s))]
    return start_module("gumbeltree", "train", *arguments, *options, processes=processes)


def start_module(*command, processes=2):
    launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", processes)
    return subprocess.Popen(
        [sys.executable, *(str(x) for x in ("-m", *launcher, "-m", *command))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # the loop-back interface always exists
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )


def torchrun(*arguments, **options):
    return end_of(start(*arguments, **options))


def end_of(running):
    """Wait for the end of a process; return its exit code and output."""
    try:
        out, err = running.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        # torchrun stops its processes, which have sessions of their own
        running.terminate()
        out, err = running.communicate(timeout=60)
        pytest.fail(f"still running: {out} {err}")
    return Result(running.returncode, out, err)


def single(folder, name, settings, data=None, **options):
    """Train in this process; return the data."""
    recipe = with_settings(load_recipe(name), [*SAME, *settings])
    prepared = prepare(recipe, data)
    train(recipe, prepared, folder, recipe_name=name, **options)
    return prepared


def assert_same(folder, other, steps, tolerance=1e-5):
    """Assert that two runs agree up to the order of sums."""
    one, two = metrics(folder), metrics(other)
    assert one[-1]["step"] == steps
    for a, b in zip(one, two, strict=True):
        for name in ("train_loss", "dev_loss"):
            assert a[name] == pytest.approx(b[name], abs=tolerance), (a, b)
        for name in ("step", "dev_accuracy", "learning_rate"):
            assert a[name] == b[name]
    results = [json.loads((x / "result.json").read_text(encoding="utf-8")) for x in (folder, other)]
    for name in ("dev_accuracy", "test_accuracy", "steps", "best_epoch"):
        assert results[0][name] == results[1][name]
    assert results[0]["test_loss"] == pytest.approx(results[1]["test_loss"], abs=tolerance)


PAIRS = (
    *("data.text=a", "data.text2=b", "data.label=class", "batch_size=4", "learning_rate=0.05"),
    "impl=reference",
)
"""25 training examples make batches of 4 and one of 1. With `impl=reference` the cell has no
gradient in a batch of single words."""


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Pairs, many of single words, and the folder of a run on them in this process."""
    base = tmp_path_factory.mktemp("processes")
    generator = random.Random(3)
    lines = ["a\tb\tclass"]
    for _ in range(41):
        length = generator.choice([1, 1, 1, 1, 5])
        first, second = (
            " ".join(f"w{generator.randrange(5)}" for _ in range(length)) for _ in range(2)
        )
        lines.append(f"{first}\t{second}\t{'yes' if 'w1' in first + second else 'no'}")
    path = base / "pairs.tsv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    prepared = single(base / "one", "text-pair", PAIRS, path)
    lengths = prepared.splits["train"].lengths.max(axis=1)
    batches = shuffled(prepared.splits["train"], 4, seed=0, epoch=0)
    assert any(len(rows) == 4 and lengths[rows].max() == 1 for rows in batches)
    assert min(map(len, batches)) == 1
    return path, prepared, base / "one"


def test_two_processes_finish_what_one_began(pairs, tmp_path):
    path, prepared, one = pairs
    folder = tmp_path / "run"
    # between two evaluations, so that the loss so far has to be shared
    with pytest.raises(InterruptedRunError):
        single(
            *(folder, "text-pair", PAIRS, path),
            on_step=lambda step: step == 4 and signal.raise_signal(signal.SIGTERM),
        )
    ended = torchrun(
        *("text-pair", "--data", path, "--out", folder, "--resume", "--json"), settings=PAIRS
    )
    assert ended.code == 0, ended
    result = json.loads(ended.out)
    assert_same(folder, one, 14)
    found = evaluate(load(folder), prepared.splits["dev"])
    assert found.accuracy == result["dev_accuracy"]
    assert found.loss == pytest.approx(result["dev_loss"])
    # only one process prints
    assert ended.err.count("resuming after step 4") == 1
    assert ended.err.count("dev loss") == len(metrics(folder)) - 1


@pytest.mark.parametrize(
    ("devices", "processes", "used", "backend"),
    [(2, 2, [0, 1], None), (4, 2, [0, 1], None), (1, 2, [0, 0], "gloo"), (2, 3, [0, 1, 0], "gloo")],
)
def test_processes_share_devices_if_there_are_too_few(
    monkeypatch, caplog, devices, processes, used, backend
):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    with caplog.at_level("INFO"):
        found = strategy("cuda", processes)
    assert found.parallel_devices == [torch.device("cuda", index) for index in used]
    # None: that of the device, which is NCCL
    assert found.process_group_backend == backend
    assert ("share the CUDA devices" in caplog.text) == (backend == "gloo")
    assert strategy("cpu", processes).parallel_devices == [torch.device("cpu")] * processes


def threads_of_gloo():
    tasks = Path("/proc/self/task").iterdir()
    names = [(task / "comm").read_text(encoding="utf-8") for task in tasks]
    return sum("gloo" in name for name in names)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="lists the threads of Linux")
def test_no_thread_of_the_group_outlives_it(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    module = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    module.cycle = [module]
    assert threads_of_gloo() > 0
    del module
    leave_processes()
    assert not torch.distributed.is_initialized()
    assert threads_of_gloo() == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gumbel_tree", "parser_composer"])
def test_two_processes_share_the_baseline(pairs, tmp_path, kind):
    path, _, _ = pairs
    settings = (*PAIRS, f"encoder.kind={kind}", "estimator=ppo", "baseline=nvil", "updates=2")
    single(tmp_path / "one", "text-pair", settings, path)
    ended = torchrun("text-pair", "--data", path, "--out", tmp_path / "two", settings=settings)
    assert ended.code == 0, ended
    assert_same(tmp_path / "two", tmp_path / "one", 14)


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["reference", "exact"])
def test_two_processes_equal_one_on_pairs(pairs, tmp_path, impl):
    path, _, one = pairs
    settings = (*PAIRS, f"impl={impl}")
    ended = torchrun("text-pair", "--data", path, "--out", tmp_path / "two", settings=settings)
    assert ended.code == 0, ended
    assert ended.out.count("The model is in") == 1
    if impl != "reference":
        single(tmp_path / "one", "text-pair", settings, path)
        one = tmp_path / "one"
    assert_same(tmp_path / "two", one, 14)
    again = torchrun("text-pair", "--data", path, "--out", tmp_path / "two", settings=settings)
    assert again.code == 1
    assert "pass --resume" in again.err


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_two_processes_stop_when_asked(tmp_path, number):
    settings = ("epochs=40", "batch_size=10", "evaluations=1", "checkpoint_seconds=1000")
    folder = tmp_path / "run"
    running = start("demo", "--out", folder, settings=settings)
    end = time.monotonic() + 180
    while not (folder / "metrics.jsonl").exists():
        assert time.monotonic() < end, running.poll()
        time.sleep(0.01)
    # torchrun passes it on to its processes as SIGTERM
    running.send_signal(number)
    _, err = running.communicate(timeout=60)
    assert running.returncode not in (0, None)
    assert "checkpoint saved in" in err
    assert (folder / "last.checkpoint").exists()
    done = len(metrics(folder))
    assert done < 40
    settings += (f"epochs={done + 2}",)
    single(tmp_path / "straight", "demo", settings)
    single(folder, "demo", settings, resume=True)
    assert_same(folder, tmp_path / "straight", 17 * (done + 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        (("batch_size=20", "epochs=3"), 27),
        (("batch_size=33", "optimizer=adadelta", "learning_rate=1.0"), 12),
        (("batch_size=1", "generate=60", "anneal_rate=0.01"), 72),
        (("batch_size=7", "clip=0.05", "patience=0"), 48),
    ],
)
@pytest.mark.parametrize("processes", [2, 3])
def test_several_processes_equal_one(tmp_path, settings, steps, processes):
    ended = torchrun("demo", "--out", tmp_path / "several", settings=settings, processes=processes)
    assert ended.code == 0, ended
    single(tmp_path / "one", "demo", settings)
    assert_same(tmp_path / "several", tmp_path / "one", steps)


@pytest.mark.slow
def test_two_processes_evaluate_with_the_statistics_that_are_saved(tmp_path):
    # each process evaluates its share of the development split
    settings = ("batch_norm=true", "batch_size=14", "epochs=1", "evaluations=2")
    ended = torchrun("demo", "--out", tmp_path / "run", settings=settings)
    assert ended.code == 0, ended
    best = max(metrics(tmp_path / "run"), key=lambda line: line["dev_accuracy"])
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert best["dev_accuracy"] == result["dev_accuracy"]
    assert best["dev_loss"] == pytest.approx(result["dev_loss"], rel=1e-9)


@pytest.mark.slow
def test_several_seeds_in_two_processes(tmp_path):
    settings = ("batch_norm=true", "head.dropout=0.2", "batch_size=11", "epochs=1")
    arguments = ("demo", "--seeds", 2, "--json", "--out", tmp_path / "run")
    ended = torchrun(*arguments, settings=settings)
    assert ended.code == 0, ended
    summary = json.loads(ended.out)
    assert len(summary["dev_accuracy"]["each"]) == 2
    repeated = torchrun(*arguments, "--resume", settings=settings)
    assert json.loads(repeated.out) == summary
