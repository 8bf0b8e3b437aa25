"""Test how many threads compute, and that settings of torch and NumPy are left alone."""

import os
import sys
import threading

import numpy as np
import pytest
import torch

import gumbeltree
from gumbeltree import threads
from gumbeltree.cli.app import app
from gumbeltree.evaluation import evaluate, merge_orders, split_of
from gumbeltree.tasks.task import Example
from gumbeltree.text_model import TextModel
from gumbeltree.threads import for_step, get_threads, in_threads, limited, set_threads, share
from gumbeltree.training.loop import train
from gumbeltree.training.optimizers import Adadelta
from tests.models import TEXTS, tiny_model
from tests.runs import small

COMPUTING = {
    *("train", "predict", "encode", "parse", "draw", "evaluate", "trees", "index", "neighbours"),
    *("serve", "explore", "bench", "demo"),
}


@pytest.fixture(autouse=True)
def _three_torch_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    set_threads(None)
    torch.set_num_threads(before)


def watch(model):
    """Return a set of the thread and its number of torch threads in each call of the encoder."""
    seen = set()

    def hook(*_):
        seen.add((threading.get_ident(), torch.get_num_threads()))

    model.encoder.register_forward_pre_hook(hook)
    return seen


def both_at_once(function):
    """Return the function, waiting until two threads are inside."""
    barrier = threading.Barrier(2, timeout=30)

    def waiting(*arguments):
        barrier.wait()
        return function(*arguments)

    return waiting


# the number of threads


def test_default_is_the_number_of_torch():
    assert get_threads() == 3
    set_threads(5)
    assert get_threads() == 5
    assert torch.get_num_threads() == 3
    set_threads(None)
    assert get_threads() == 3


def test_default_without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setenv("OMP_NUM_THREADS", "7,2")
    assert get_threads() == 7
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert 1 <= get_threads() <= os.cpu_count()


@pytest.mark.parametrize("count", [0, -1, 1.5, "two"])
def test_invalid_numbers_are_refused(count):
    with pytest.raises(ValueError, match=f"positive integer or None, got {count!r}"):
        set_threads(count)


def test_limit_is_restored():
    with limited(2):
        assert torch.get_num_threads() == 2
        with limited(1):
            assert torch.get_num_threads() == 1
            assert get_threads() == 3
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 3
    with pytest.raises(KeyError), limited(1):
        raise KeyError
    assert torch.get_num_threads() == 3


def test_limit_covers_numpy():
    blas = threads._libraries().get("openblas")
    if blas is None:
        pytest.skip("this NumPy does not use OpenBLAS")
    before = blas.get()
    blas.set(2)
    try:
        with limited(1):
            assert blas.get() == 1
        assert blas.get() == 2
    finally:
        blas.set(before)


def test_overlapping_limits_of_python_threads_are_restored():
    inside, leave, seen = threading.Event(), threading.Event(), []

    def other():
        # torch reports the limit of the main thread to this new one
        with limited(1):
            inside.set()
            leave.wait(30)
        seen.append(torch.get_num_threads())

    thread = threading.Thread(target=other)
    with limited(1):
        thread.start()
        assert inside.wait(30)
    assert torch.get_num_threads() == 3
    leave.set()
    thread.join()
    assert seen == [3]
    assert torch.get_num_threads() == 3
    assert get_threads() == 3


def test_overlapping_limits_hold_for_numpy_until_the_last_one_ends():
    blas = threads._libraries().get("openblas")
    if blas is None:
        pytest.skip("this NumPy does not come with OpenBLAS")
    before = blas.get()
    blas.set(2)
    inside, leave, seen = threading.Event(), threading.Event(), []

    def other():
        with limited(1):
            inside.set()
            leave.wait(30)
            seen.append(blas.get())

    thread = threading.Thread(target=other)
    with limited(1):
        thread.start()
        assert inside.wait(30)
    leave.set()
    thread.join()
    assert seen == [1]
    assert blas.get() == 2
    blas.set(before)


# several batches at once


def test_threads_share_items_in_order():
    assert in_threads(both_at_once(str), [3, 1, 2, 4]) == ["3", "1", "2", "4"]
    set_threads(1)
    own = threading.get_ident()
    assert in_threads(lambda _: threading.get_ident(), range(3)) == [own] * 3


def test_errors_in_threads_are_raised():
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda x: 1 / x, [1, 0, 2])


def test_batches_are_split_only_if_large():
    assert share(10, 256) == 64
    assert share(256, 256) == 86
    assert share(10_000, 256) == 256
    assert share(10_000, 16) == 16


def test_models_encode_batches_at_once(monkeypatch):
    model = tiny_model("single")
    texts = TEXTS * 3
    set_threads(1)
    vectors, trees, answers = model.encode(texts), model.parse_many(texts), model.predict(texts)
    set_threads(2)
    seen = watch(model)
    monkeypatch.setattr(type(model), "encode_batch", both_at_once(type(model).encode_batch))
    # 18 sentences make two batches
    np.testing.assert_allclose(model.encode(texts, 9), vectors, rtol=1e-5, atol=1e-6)
    assert model.parse_many(texts, 9) == trees
    found = [answer.label for answer in model.predict(texts, batch_size=9)]
    assert found == [answer.label for answer in answers]
    assert {count for _, count in seen} == {1}
    assert threading.get_ident() not in {thread for thread, _ in seen}
    assert torch.get_num_threads() == 3


def test_autocast_applies_to_every_batch():
    model = tiny_model("single")
    set_threads(2)
    seen = watch(model)
    with torch.autocast("cpu", torch.bfloat16):
        model.encode(TEXTS * 3, 9)
        evaluate(model, TEXTS, ["bad"] * 6, words=8)
    assert seen == {(threading.get_ident(), 1)}


def test_evaluation_is_the_same_with_threads():
    model = tiny_model("single")
    split = split_of(model, [Example((text,), "bad", ()) for text in TEXTS])
    outcomes = []
    for count in (1, 3):
        set_threads(count)
        seen = watch(model)
        found = evaluate(model, split, words=8)
        outcomes.append((found.loss, found.value, merge_orders(model, split, 8)["order"].tolist()))
        assert {limit for _, limit in seen} == {1}
    assert outcomes[0] == outcomes[1]


# training


def test_small_steps_use_one_thread(monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert for_step(32, 100) == 1
    assert for_step(256, 300) == 3
    set_threads(2)
    assert for_step(256, 300) == 2
    # threads that spin while they wait would block each other beside other programs
    monkeypatch.delenv("OMP_WAIT_POLICY")
    assert for_step(256, 300) == 1


@pytest.mark.parametrize("large", [False, True])
def test_training_sets_the_threads_of_each_step(large, demo, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setattr(threads, "LARGE_STEP", 0 if large else 1e12)
    seen = set()

    def step(optimizer, *_, **__):
        seen.add(torch.get_num_threads())

    monkeypatch.setattr(torch.optim.Adam, "step", step)
    monkeypatch.setattr(Adadelta, "step", step)
    result = train(small(), demo, tmp_path / "run", device="cpu")
    assert seen == {3 if large else 1}
    assert result["machine"] == "CPU, 3 threads"
    assert torch.get_num_threads() == 3


# the command line


def test_every_computing_command_has_the_option():
    names = {
        command.name or command.callback.__name__
        for command in app.registered_commands
        if "threads" in command.callback.__annotations__
    }
    assert names == COMPUTING


def test_option_applies_to_one_command(cli, tmp_path, monkeypatch):
    gumbeltree.save(tiny_model("single"), tmp_path / "model")
    seen, encode = [], TextModel._encode

    def recorded(self, *arguments, **options):
        seen.append(get_threads())
        return encode(self, *arguments, **options)

    monkeypatch.setattr(TextModel, "_encode", recorded)
    assert cli("predict", tmp_path / "model", "the dog", "--threads", "5").code == 0
    assert cli("predict", tmp_path / "model", "the dog").code == 0
    assert seen == [5, 3]
    assert cli("predict", tmp_path / "model", "the dog", "--threads", "0").code == 2


def test_environment_of_the_command_line(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "4")
    threads.prepare_environment()
    # too late for torch, which is already imported
    assert "OMP_WAIT_POLICY" not in os.environ
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.delitem(sys.modules, "numpy")
    threads.prepare_environment()
    assert os.environ["OMP_WAIT_POLICY"] == "passive"
    assert int(os.environ["GOMP_SPINCOUNT"]) > 0
    assert os.environ["OPENBLAS_NUM_THREADS"] == "4"
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    threads.prepare_environment()
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
