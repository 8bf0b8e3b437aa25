"""Training over several processes, started as users start them."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import pytest

from gumbeltree import load
from gumbeltree.cli.train import chosen_recipe
from gumbeltree.data.compile import prepare
from gumbeltree.data.split import shuffled
from gumbeltree.evaluate import evaluate
from gumbeltree.training import loop
from gumbeltree.training.loop import train
from tests.runs import SMALL, metrics

# the noise belongs to the example; dropout and batch normalisation belong to the process
SAME = (*SMALL, "embedding.dropout=0", "head.dropout=0", "learning_rate=0.01", "test_fraction=0.1")
TABLE = ("--text", "a", "--label", "class")


class Ended(NamedTuple):
    code: int
    out: str
    err: str


def command(*arguments, settings=(), processes=2):
    several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return [
        sys.executable,
        *several,
        *("-m", "gumbeltree", "train", *map(str, arguments), "--device", "cpu"),
        *(x for setting in (*SAME, *settings) for x in ("--set", setting)),
    ]


def environment(folder):
    # the loop-back interface is the only one that is always there
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GUMBELTREE_HOME": str(folder),
        "GLOO_SOCKET_IFNAME": "lo",
    }


def start(*arguments, folder, **options):
    return subprocess.Popen(
        command(*arguments, **options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(folder),
    )


def run(*arguments, folder, **options):
    running = start(*arguments, folder=folder, **options)
    try:
        out, err = running.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        # torchrun ends its processes, which are in sessions of their own
        running.terminate()
        out, err = running.communicate(timeout=60)
        pytest.fail(f"no end: {out} {err}")
    return Ended(running.returncode, out, err)


def table(path, rows=41):
    """Write pairs of which many have single words on both sides, so that batches of them occur."""
    generator = random.Random(3)
    lines = ["a\tb\tclass"]
    for _ in range(rows):
        length = generator.choice([1, 1, 1, 1, 5])
        first, second = (
            " ".join(f"w{generator.randrange(5)}" for _ in range(length)) for _ in range(2)
        )
        lines.append(f"{first}\t{second}\t{'yes' if 'w1' in first + second else 'no'}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def assert_same(folder, other, steps):
    """Assert that two runs took the same way, up to the order of sums."""
    one, two = metrics(folder), metrics(other)
    assert [line["step"] for line in one] == [line["step"] for line in two]
    assert one[-1]["step"] == steps
    for a, b in zip(one, two, strict=True):
        for name in ("train_loss", "dev_loss"):
            assert a[name] == pytest.approx(b[name], abs=1e-5), (a, b)
        assert a["dev_accuracy"] == b["dev_accuracy"]
        assert a["learning_rate"] == b["learning_rate"]
    results = [json.loads((x / "result.json").read_text(encoding="utf-8")) for x in (folder, other)]
    for name in ("dev_accuracy", "test_accuracy", "steps", "best_epoch"):
        assert results[0][name] == results[1][name]
    assert results[0]["test_loss"] == pytest.approx(results[1]["test_loss"], abs=1e-5)


def single(folder, arguments, settings, resume=False):
    """Train in this process, through the command's own parts."""
    name, *options = arguments
    given = dict(zip(options[::2], options[1::2], strict=True))
    recipe = chosen_recipe(
        name,
        [*SAME, *settings],
        *(given.get(key) for key in ("--text", "--text2", "--label")),
        False,
    )
    prepared = prepare(recipe, given.get("--data"))
    train(recipe, prepared, folder, recipe_name=name, resume=resume)
    return prepared


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Pairs by two processes and by one: an odd number of examples, one in the last batch.

    In a batch of single words the reference merge gives the cell no gradient, the exact one zeros.
    """
    base = tmp_path_factory.mktemp("processes")
    arguments = ("text-pair", "--data", table(base / "pairs.tsv"), *TABLE, "--text2", "b")
    # 25 examples to train on, in batches of 4 and one of 1
    settings = ("batch_size=4", "learning_rate=0.05", "epochs=2", "impl=reference")
    ended = run(*arguments, "--out", base / "two", folder=base, settings=settings)
    assert ended.code == 0, ended
    prepared = single(base / "one", arguments, settings)
    return base, arguments, settings, ended, prepared


def test_two_processes_do_what_one_does(pairs):
    base, _, _, ended, prepared = pairs
    lengths = prepared.splits["train"].lengths.max(axis=1)
    assert len(lengths) == 25
    batches = shuffled(prepared.splits["train"], 4, seed=0, epoch=0)
    assert any(len(rows) == 4 and lengths[rows].max() == 1 for rows in batches)
    assert min(map(len, batches)) == 1
    assert_same(base / "two", base / "one", 14)
    # the model is whole, and that of the result
    result = json.loads((base / "two" / "result.json").read_text(encoding="utf-8"))
    found = evaluate(load(base / "two"), prepared.splits["dev"])
    assert found.accuracy == result["dev_accuracy"]
    assert found.loss == pytest.approx(result["dev_loss"])
    # one of them speaks
    assert ended.out.count("The model is in") == 1
    assert ended.err.count("building the vocabulary") == 1
    assert ended.err.count("dev loss") == len(metrics(base / "two"))


def test_two_processes_go_on_with_what_one_began(pairs, tmp_path, monkeypatch):
    base, arguments, settings, _, _ = pairs
    # between two evaluations, so that the loss so far has to be shared out
    monkeypatch.setattr(loop._Run, "_asked_to_stop", lambda run, _: run.progress.step == 4)
    with pytest.raises(loop.InterruptedRunError):
        single(tmp_path / "run", arguments, settings)
    more = (*arguments, "--out", tmp_path / "run", "--resume", "--json")
    ended = run(*more, folder=base, settings=settings)
    assert ended.code == 0, ended
    assert json.loads(ended.out)["steps"] == 14
    assert_same(tmp_path / "run", base / "one", 14)


@pytest.mark.slow
def test_two_processes_do_what_one_does_by_the_exact_merge(pairs, tmp_path):
    base, arguments, settings, _, _ = pairs
    settings = (*settings, "impl=exact")
    ended = run(*arguments, "--out", tmp_path / "two", folder=base, settings=settings)
    assert ended.code == 0, ended
    single(tmp_path / "one", arguments, settings)
    assert_same(tmp_path / "two", tmp_path / "one", 14)


@pytest.mark.slow
def test_two_processes_refuse_as_one_does(pairs):
    base, arguments, settings, _, _ = pairs
    ended = run(*arguments, "--out", base / "two", folder=base, settings=settings)
    assert ended.code == 1
    assert "two holds a training run; pass --resume to go on with it" in ended.err


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)],
    ids=["int", "term"],
)
def test_two_processes_stop_when_asked(tmp_path, number):
    settings = ("epochs=40", "batch_size=10", "evaluations=1", "checkpoint_seconds=1000")
    folder = tmp_path / "run"
    running = start("demo", "--out", folder, folder=tmp_path, settings=settings)
    end = time.monotonic() + 60
    while not (folder / "metrics.jsonl").exists():
        assert time.monotonic() < end, running.poll()
        time.sleep(0.01)
    # torchrun passes it on to its processes, as SIGTERM
    running.send_signal(number)
    _, err = running.communicate(timeout=60)
    assert running.returncode not in (0, None)
    assert "the state is saved in" in err
    assert (folder / "last.checkpoint").exists()
    done = len(metrics(folder))
    assert done < 40
    # one process goes on
    settings += (f"epochs={done + 2}",)
    single(tmp_path / "straight", ("demo",), settings)
    single(folder, ("demo",), settings, resume=True)
    assert_same(folder, tmp_path / "straight", 17 * (done + 2))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "settings", "steps"),
    [
        (("demo",), ("batch_size=20", "epochs=3"), 27),
        (("demo",), ("batch_size=33", "optimizer=adadelta", "learning_rate=1.0"), 12),
        (("demo",), ("batch_size=1", "generate=60", "anneal_rate=0.01"), 72),
        (("demo",), ("batch_size=7", "clip=0.05", "patience=0"), 48),
    ],
)
@pytest.mark.parametrize("processes", [2, 3])
def test_several_processes_do_what_one_does(tmp_path, arguments, settings, steps, processes):
    ended = run(
        *arguments,
        "--out",
        tmp_path / "several",
        folder=tmp_path,
        settings=settings,
        processes=processes,
    )
    assert ended.code == 0, ended
    single(tmp_path / "one", arguments, settings)
    assert_same(tmp_path / "several", tmp_path / "one", steps)


def test_two_processes_evaluate_with_the_statistics_that_are_saved(tmp_path):
    # shares of the development split are measured by both processes
    settings = ("batch_norm=true", "batch_size=14", "epochs=1", "evaluations=2")
    ended = run("demo", "--out", tmp_path / "run", folder=tmp_path, settings=settings)
    assert ended.code == 0, ended
    best = max(metrics(tmp_path / "run"), key=lambda line: line["dev_accuracy"])
    result = json.loads((tmp_path / "run" / "result.json").read_text(encoding="utf-8"))
    assert best["dev_accuracy"] == result["dev_accuracy"]
    assert best["dev_loss"] == pytest.approx(result["dev_loss"], rel=1e-9)


@pytest.mark.slow
def test_several_seeds_and_batch_normalisation(tmp_path):
    settings = ("batch_norm=true", "head.dropout=0.2", "batch_size=11", "epochs=1")
    ended = run(
        "demo",
        "--seeds",
        2,
        "--json",
        "--out",
        tmp_path / "run",
        folder=tmp_path,
        settings=settings,
    )
    assert ended.code == 0, ended
    summary = json.loads(ended.out)
    assert len(summary["dev_accuracy"]["each"]) == 2
    again = shutil.copytree(tmp_path / "run", tmp_path / "again")
    repeated = run(
        *("demo", "--seeds", 2, "--json", "--out", again, "--resume"),
        folder=tmp_path,
        settings=settings,
    )
    assert json.loads(repeated.out) == summary
