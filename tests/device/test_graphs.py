"""Test captured functions: with a simulated CUDA device, and on a real one."""

import contextlib
import dataclasses
import gc
import itertools
import os
import threading
import weakref
from functools import partial

import numpy as np
import pytest
import torch

from gumbeltree.device import graphs as graphs_module
from gumbeltree.device import overlap as overlap_module
from gumbeltree.device.graphs import Graphs, torch_settings
from gumbeltree.device.overlap import Overlap

CUDA = torch.device("cuda")


def test_nothing_is_captured_on_a_cpu():
    graphs = Graphs(torch.device("cpu"))
    calls = []

    def function(numbers):
        calls.append(numbers.tolist())
        return numbers * 2

    for n in range(3):
        assert graphs("key", function, np.array([n, 7])).tolist() == [2 * n, 14]
    assert calls == [[0, 7], [1, 7], [2, 7]]
    assert graphs("key", lambda numbers: None, np.array([1])) is None
    assert not graphs.captured


# A simulated device


class Here(torch.Tensor):
    """A tensor that stays on its device."""

    def to(self, *_, **__):
        return self.clone()

    def record_stream(self, stream):
        stream.readers.append(self)


class FakeGraph:
    """Records its use; a replay doubles the numbers."""

    log: list
    pools: dict
    recording = None

    def capture_begin(self, pool, capture_error_mode):
        # as in PyTorch, a pool ends with its last graph
        assert not (pool in FakeGraph.pools and not FakeGraph.pools[pool]), "the pool has ended"
        FakeGraph.pools.setdefault(pool, weakref.WeakSet()).add(self)
        assert capture_error_mode == "relaxed"
        FakeGraph.recording = self

    def capture_end(self):
        assert FakeGraph.recording is self
        FakeGraph.recording = None

    def replay(self):
        assert FakeGraph.recording is None
        self.log.append(("replay", self.key, self.numbers.tolist()))
        self.out.copy_(self.numbers * 2)


class FakeStream:
    """Records what it waits for."""

    def __init__(self, name="stream", events=None):
        self.name, self.events, self.readers = name, events, []

    def wait_stream(self, other):
        if self.events is not None:
            self.events.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def log(monkeypatch):
    """Simulate a CUDA device; return the log of runs, captures and replays with key and numbers."""
    from_numpy, handles = torch.from_numpy, itertools.count()
    monkeypatch.setattr(torch, "from_numpy", lambda x: from_numpy(x).as_subclass(Here))
    for name, value in {
        "CUDAGraph": FakeGraph,
        "Stream": FakeStream,
        "current_stream": FakeStream,
        "graph_pool_handle": lambda: f"pool {next(handles)}",
        "synchronize": lambda device: None,
        "empty_cache": lambda: FakeGraph.log.append("emptied"),
        "stream": lambda stream: contextlib.nullcontext(),
        "device": lambda device: contextlib.nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr("gumbeltree.device.graphs.capture_stream", FakeStream)
    monkeypatch.setattr(FakeGraph, "pools", {}, raising=False)
    monkeypatch.setattr(FakeGraph, "log", [], raising=False)
    return FakeGraph.log


def doubled(x, key):
    """Double the numbers, or have the graph under capture do so."""
    graph = FakeGraph.recording
    FakeGraph.log.append(("run" if graph is None else "capture", key, x.tolist()))
    if graph is None:
        return x * 2
    # the output of a captured function exists only after a replay
    graph.key, graph.numbers, graph.out = key, x, torch.full_like(x, -1)
    return graph.out


def call(graphs, key, *numbers):
    return graphs(key, lambda x: doubled(x, key), np.array(numbers)).tolist()


def failing(error):
    def fail(_):
        raise error

    return fail


def test_runs_then_captures_then_replays(log):
    graphs = Graphs(CUDA)
    assert call(graphs, "a", 1, 2) == [2, 4]
    assert log == [("run", "a", [1, 2])]
    assert call(graphs, "a", 3, 4) == [6, 8]
    assert log[1:] == [("capture", "a", [3, 4]), ("replay", "a", [3, 4])]
    assert call(graphs, "a", 5, 6) == [10, 12]
    assert log[3:] == [("replay", "a", [5, 6])]
    assert call(graphs, "b", 7) == [14]
    assert log[4:] == [("run", "b", [7])]


def test_at_once_runs_only_the_first_call_eagerly(log):
    graphs = Graphs(CUDA, at_once=True)
    assert call(graphs, "a", 1) == [2]
    assert log == [("run", "a", [1])]
    assert call(graphs, "b", 2, 3) == [4, 6]
    # the memory of the eager call is released first
    assert log[1:] == ["emptied", ("capture", "b", [2, 3]), ("replay", "b", [2, 3])]
    assert call(graphs, "a", 4) == [8]
    assert call(graphs, "b", 6, 7) == [12, 14]
    assert [x[:2] for x in log[4:]] == [("capture", "a"), ("replay", "a"), ("replay", "b")]


def test_drops_the_least_recently_used_graph(log):
    graphs = Graphs(CUDA, max_graphs=2)
    for key in "aabbacc":
        call(graphs, key, 1)
    assert list(graphs.captured) == ["a", "c"]
    log.clear()
    # its first call has been, so it is captured again at once
    assert call(graphs, "b", 4) == [8]
    assert [x[:2] for x in log] == [("capture", "b"), ("replay", "b")]
    assert list(graphs.captured) == ["c", "b"]


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_failed_capture_leaves_nothing_behind(log, error):
    graphs = Graphs(CUDA)
    call(graphs, "a", 1)
    call(graphs, "b", 1)
    with pytest.raises(error):
        graphs("a", failing(error), np.array([1]))
    assert FakeGraph.recording is None
    assert not graphs.captured
    gc.collect()
    # a new pool, since that of the failed graph has ended; both graphs share it
    assert call(graphs, "a", 2) == [4]
    assert call(graphs, "b", 3) == [6]
    assert len({pool for pool, users in FakeGraph.pools.items() if users}) == 1


def test_pool_of_an_invalid_capture_is_abandoned(log, monkeypatch):
    graphs = Graphs(CUDA)
    for key in "aab":
        call(graphs, key, 1)
    before = graphs.pool

    def fails(_):
        FakeGraph.recording.capture_end()
        raise ValueError("no")

    def broken_end(self):
        if FakeGraph.recording is None:
            raise RuntimeError("the capture is invalid")
        FakeGraph.recording = None

    monkeypatch.setattr(FakeGraph, "capture_end", broken_end)
    with pytest.raises(ValueError, match="no"):
        graphs("b", fails, np.array([1]))
    assert call(graphs, "b", 2) == [4]
    assert graphs.pool != before


def test_work_outside_runs_between_two_graphs(log):
    graphs = Graphs(CUDA)

    def function(x):
        doubled(x, "first")
        graphs.outside(lambda: log.append("outside"))
        return doubled(x, "second")

    for n in range(3):
        assert graphs("a", function, np.array([n])).tolist() == [2 * n]

    def passes(kind, n):
        return [(kind, "first", [n]), (kind, "second", [n])]

    def done(kind, n):
        first, second = passes(kind, n)
        return [first, "outside", second]

    # once per call: not during the capture
    assert log == done("run", 0) + passes("capture", 1) + done("replay", 1) + done("replay", 2)


def test_a_failure_after_work_outside_leaves_nothing_behind(log):
    graphs = Graphs(CUDA)
    call(graphs, "a", 1)

    def function(_):
        graphs.outside(lambda: log.append("outside"))
        raise KeyError

    with pytest.raises(KeyError):
        graphs("a", function, np.array([1]))
    assert FakeGraph.recording is None
    assert not graphs.captured
    gc.collect()
    assert call(graphs, "a", 2) == [4]
    graphs.outside(lambda: log.append("now"))
    assert log[1:] == [("capture", "a", [2]), ("replay", "a", [2]), "now"]


def test_failed_first_call_does_not_count(log):
    graphs = Graphs(CUDA)
    with pytest.raises(ValueError, match="no"):
        graphs("a", failing(ValueError("no")), np.array([1]))
    assert not graphs.seen


@pytest.mark.parametrize("failures", [1, 2])
def test_runs_eagerly_without_memory_for_a_graph(log, failures):
    graphs = Graphs(CUDA)
    remaining, alive = failures, []

    def function(x):
        nonlocal remaining
        local = torch.zeros(3)
        if FakeGraph.recording is not None and remaining:
            remaining -= 1
            alive.append(weakref.ref(local))
            raise torch.cuda.OutOfMemoryError
        return doubled(x, "a")

    for n in range(4):
        assert graphs("a", function, np.array([n])).tolist() == [2 * n]
    # the cache is emptied once for a second attempt, which has the memory of the first
    assert log.count("emptied") == 1
    assert not any(reference() is not None for reference in alive)
    assert list(graphs.captured) == (["a"] if failures == 1 else [])
    assert graphs.refused == (set() if failures == 1 else {"a"})


@pytest.mark.parametrize(
    ("message", "refused"),
    [
        ("CUDA error: out of memory", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate", True),
        ("CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_recognizes_out_of_memory_errors(log, message, refused):
    graphs = Graphs(CUDA)

    def function(x):
        if FakeGraph.recording is not None:
            raise RuntimeError(message)
        return x

    graphs("a", function, np.array([1]))
    expected = contextlib.nullcontext() if refused else pytest.raises(RuntimeError, match="illegal")
    with expected:
        assert graphs("a", function, np.array([2])).tolist() == [2]
    assert graphs.refused == ({"a"} if refused else set())


def test_streams_wait_for_each_other(log, monkeypatch):
    events = []
    own, caller = FakeStream("own", events), FakeStream("caller", events)
    current = [caller]

    @contextlib.contextmanager
    def enter(stream):
        current.append(stream)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "stream", enter)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[-1])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: events.append("all wait"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: events.append("emptied"))
    monkeypatch.setattr("gumbeltree.device.graphs.capture_stream", lambda device: own)

    @dataclasses.dataclass
    class Result:
        one: torch.Tensor
        two: tuple[torch.Tensor, None]

    tensors = []

    def function(x):
        events.append(f"on {current[-1].name}")
        tensors.extend([doubled(x, "a"), x * 3])
        return Result(tensors[-2], (tensors[-1], None))

    graphs = Graphs(CUDA, at_once=True)
    graphs("a", function, np.array([1]))
    assert events == ["own waits for caller", "on own", "caller waits for own"]
    # their memory is not reused before the caller has read it
    assert [id(x) for x in caller.readers] == [id(x) for x in tensors]
    events.clear()
    graphs("a", function, np.array([1]))
    assert events == ["all wait", "emptied", "on own", "caller waits for own"]
    events.clear()
    with pytest.raises(ValueError, match="no"):
        Graphs(CUDA)("a", failing(ValueError("no")), np.array([1]))
    assert events == ["own waits for caller", "caller waits for own"]


def test_one_thread_at_a_time_uses_the_capture_stream(log):
    inside, most = [], []

    def function(x):
        inside.append(threading.get_ident())
        most.append(len(set(inside)))
        threading.Event().wait(0.02)
        inside.remove(threading.get_ident())
        return x

    def work():
        for n in range(3):
            Graphs(CUDA)("a", function, np.array([n]))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 9


def test_each_device_has_one_stream_of_a_kind(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    for make in (graphs_module.capture_stream, overlap_module.side_stream):
        one, other = torch.device("cuda:5"), torch.device("cuda:6")
        try:
            assert make(one) is make(torch.device("cuda:5"))
            assert make(one) is not make(other)
        finally:
            make.cache_clear()


def test_overlap_waits_for_work_that_fails(monkeypatch):
    events = []
    main, side = FakeStream("main", events), FakeStream("side", events)
    monkeypatch.setattr("gumbeltree.device.overlap.side_stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    with pytest.raises(ValueError, match="no"), Overlap(CUDA) as overlap:
        overlap.start(lambda: failing(ValueError("no"))(None))
    assert events == ["side waits for main", "main waits for side"]
    assert overlap.kept == []


def test_overlap_leaves_nothing_to_wait_for(monkeypatch):
    events = []
    main, side = FakeStream("main", events), FakeStream("side", events)
    monkeypatch.setattr("gumbeltree.device.overlap.side_stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    with Overlap(CUDA) as overlap:
        overlap.start(lambda: None)
        overlap.finish()
        # in the next graph, which the second stream is not part of
        overlap.wait()
    assert events == ["side waits for main", "main waits for side"]


@pytest.mark.parametrize("fails", [None, 0, 1])
def test_two_works_run_on_two_streams_that_join_again(fails, monkeypatch):
    events = []
    main, side = FakeStream("main", events), FakeStream("side", events)
    monkeypatch.setattr("gumbeltree.device.overlap.side_stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr("gumbeltree.device.overlap.capture_stream", lambda device: main)

    @contextlib.contextmanager
    def on(stream):
        events.append(f"on {stream.name}")
        yield
        events.append(f"off {stream.name}")

    monkeypatch.setattr(torch.cuda, "stream", on)

    def work(i):
        events.append(i)
        if i == fails:
            raise ValueError("no")
        return i

    with contextlib.nullcontext() if fails is None else pytest.raises(ValueError, match="no"):
        assert overlap_module.at_once(CUDA, [partial(work, i) for i in (0, 1)]) == [0, 1]
    assert events[:3] == ["side waits for main", "on side", 1]
    assert events[-1] == "main waits for side"
    if fails is None:
        assert events[3:-1] == ["off side", 0]


def test_works_run_in_turn_outside_functions_of_graphs(monkeypatch):
    events = []
    streams = [FakeStream(name, events) for name in ("main", "side", "capture")]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: streams[0])
    monkeypatch.setattr("gumbeltree.device.overlap.side_stream", lambda device: streams[1])
    monkeypatch.setattr("gumbeltree.device.overlap.capture_stream", lambda device: streams[2])
    assert overlap_module.at_once(CUDA, [partial(int, i) for i in (0, 1)]) == [0, 1]
    assert events == []


def test_works_run_in_turn_on_a_cpu_or_alone():
    def works(count):
        return [partial(int, i) for i in range(count)]

    assert overlap_module.at_once(torch.device("cpu"), works(2)) == [0, 1]
    assert overlap_module.at_once(CUDA, works(1)) == [0]


def test_autocast_cache_is_disabled(log):
    seen = []
    assert torch.is_autocast_cache_enabled()
    Graphs(CUDA)("a", lambda x: seen.append(torch.is_autocast_cache_enabled()), np.array([1]))
    assert seen == [False]
    assert torch.is_autocast_cache_enabled()


def test_settings_distinguish_precisions():
    settings = {torch_settings()}
    with pytest.MonkeyPatch.context() as patch:
        # autocast is not available without the device
        patch.setattr(torch, "is_autocast_enabled", lambda device: True)
        for dtype in (torch.bfloat16, torch.float16):
            patch.setattr(torch, "get_autocast_dtype", lambda device, dtype=dtype: dtype)
            settings.add(torch_settings())
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        settings.add(torch_settings())
    finally:
        torch.set_float32_matmul_precision(before)
    assert len(settings) == 4


# A real device


@pytest.mark.gpu
def test_gpu_replays_equal_eager_calls():
    device = torch.device("cuda")
    graphs = Graphs(device)
    table = torch.randn(100, 64, device=device)
    runs = []

    def function(numbers):
        runs.append(len(numbers))
        return (table[numbers] @ table.t()).relu().sum(1)

    generator = np.random.default_rng(0)
    for number in range(12):
        count = 8 + 8 * (number % 3)
        numbers = generator.integers(0, 100, count)
        result = graphs(count, function, numbers).clone()
        expected = (table[torch.from_numpy(numbers).to(device)] @ table.t()).relu().sum(1)
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    # per size, one eager run and one capture
    assert sorted(runs) == [8, 8, 16, 16, 24, 24]
    # inputs can change in place
    table.mul_(2)
    numbers = np.arange(8)
    expected = (table[:8] @ table.t()).relu().sum(1)
    torch.testing.assert_close(graphs(8, function, numbers), expected, rtol=1e-4, atol=1e-3)
    assert len(runs) == 6


@pytest.mark.gpu
def test_gpu_memory_is_bounded():
    device = torch.device("cuda")
    graphs = Graphs(device, max_graphs=4)
    big = torch.zeros((), device=device)

    def function(numbers):
        # a temporary of 32 MiB
        return (big + numbers.float()).repeat(1 << 20, 1).square().sum(0)

    def use(keys):
        for key in keys:
            for n in range(3):
                numbers = np.full(8, n + 1)
                result = graphs(key, function, numbers)
                assert float(result[0]) == pytest.approx((n + 1) ** 2 * 2**20, rel=1e-3)
        torch.cuda.synchronize()
        return torch.cuda.memory_reserved()

    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    few = use(range(4)) - before
    many = use(range(4, 60)) - before
    assert list(graphs.captured) == [56, 57, 58, 59]
    assert many <= few + (64 << 20)


@pytest.mark.gpu
@pytest.mark.skipif(
    "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
    reason="expandable segments are shared in any order of capture",
)
@pytest.mark.parametrize("reserved", [False, True])
def test_gpu_graphs_share_the_memory_of_the_largest(reserved):
    device = torch.device("cuda")
    graphs = Graphs(device, at_once=True)
    sizes = range(32, 256, 16)

    def function(numbers, size):
        # temporaries of this many MiB
        x = numbers.float()[0].expand(size << 18).clone()
        return (x + 1).square().sum()

    def call(size):
        graphs(size, lambda numbers: function(numbers, size), np.full(2, 3))

    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    call(1)
    if reserved:
        graphs.reserve(max(sizes), lambda numbers: function(numbers, max(sizes)), np.full(2, 3))
        assert list(graphs.captured) == [max(sizes)]
    for size in sizes:
        call(size)
    torch.cuda.synchronize()
    used = torch.cuda.memory_reserved() - before
    # three temporaries of the largest graph
    assert (used < 4 * max(sizes) << 20) == reserved


@pytest.mark.gpu
def test_gpu_captures_gradients_and_updates():
    device = torch.device("cuda")

    def trained(captured):
        torch.manual_seed(0)
        weight = torch.randn(3, 4, device=device, requires_grad=True)
        graphs = Graphs(device)

        def function(numbers):
            loss = (weight * numbers[:, None]).square().sum() / 100
            (gradient,) = torch.autograd.grad(loss, weight)
            with torch.no_grad():
                weight.sub_(gradient, alpha=0.1)
            return loss.detach()

        losses = []
        for n in range(6):
            numbers = np.array([n, 3, 9 - n])
            if captured:
                losses.append(float(graphs("key", function, numbers)))
            else:
                losses.append(float(function(torch.from_numpy(numbers).to(device))))
        return losses, weight.detach()

    (losses, weight), (others, same) = trained(False), trained(True)
    assert others == pytest.approx(losses, rel=1e-5)
    torch.testing.assert_close(same, weight)


@pytest.mark.gpu
def test_gpu_gradients_and_random_numbers_continue_after_work_outside():
    device = torch.device("cuda")

    def trained(captured):
        torch.manual_seed(0)
        weight = torch.randn(3, 40, device=device, requires_grad=True)
        bucket = torch.zeros(3, 40, device=device)
        graphs = Graphs(device, at_once=True)
        calls = []

        def work():
            calls.append(float(bucket.sum()))
            bucket.mul_(2)

        def function(numbers):
            dropped = torch.nn.functional.dropout(weight * numbers[:, None], 0.5)
            bucket.copy_(dropped.detach())
            graphs.outside(work)
            loss = (torch.nn.functional.dropout(dropped, 0.5) * bucket).sum() / 100
            (gradient,) = torch.autograd.grad(loss, weight)
            with torch.no_grad():
                weight.sub_(gradient, alpha=0.1)
            return loss.detach()

        losses = []
        for n in range(6):
            numbers = np.array([n, 3, 9 - n])
            torch.manual_seed(n)
            if captured:
                losses.append(float(graphs("key", function, numbers)))
            else:
                losses.append(float(function(torch.from_numpy(numbers).to(device))))
        assert len(graphs.captured) == captured
        return losses, calls, weight.detach()

    (losses, sums, weight), (others, same_sums, same) = trained(False), trained(True)
    assert others == pytest.approx(losses, rel=1e-5)
    assert same_sums == pytest.approx(sums, rel=1e-5)
    torch.testing.assert_close(same, weight)
