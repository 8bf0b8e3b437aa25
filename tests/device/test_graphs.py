"""Captured functions: what runs when, what is kept, and on a CUDA device for real."""

import contextlib
import dataclasses
import gc
import itertools
import threading
import weakref

import numpy as np
import pytest
import torch

from gumbeltree.device import graphs as graphs_module
from gumbeltree.device import overlap as overlap_module
from gumbeltree.device.graphs import Graphs, torch_settings
from gumbeltree.device.overlap import Overlap


def test_on_a_cpu_a_function_runs_each_time():
    graphs = Graphs(torch.device("cpu"))
    calls = []

    def function(numbers):
        calls.append(numbers.tolist())
        return numbers * 2

    for n in range(3):
        found = graphs("key", function, np.array([n, 7]))
        assert found.tolist() == [2 * n, 14]
        assert found.dtype == torch.int64
    assert calls == [[0, 7], [1, 7], [2, 7]]
    assert graphs("key", lambda numbers: None, np.array([1])) is None
    assert not graphs.captured


# with a device that is made up


class Here(torch.Tensor):
    """Numbers that stay where they are."""

    def to(self, *_, **__):
        return self.clone()

    def record_stream(self, stream):
        stream.readers.append(self)


class FakeGraph:
    """Notes what is done with it, and runs its function again on replay."""

    log: list
    pools: dict
    recording = None

    def capture_begin(self, pool, capture_error_mode):
        # as torch has it: a pool ends with the last of its graphs
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
    def __init__(self, *_):
        self.readers = []

    def wait_stream(self, _):
        pass


@pytest.fixture
def log(monkeypatch):
    """What happens on the device that is made up: how, which key, which numbers."""
    real = torch.from_numpy
    monkeypatch.setattr(torch, "from_numpy", lambda x: real(x).as_subclass(Here))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(
        torch.cuda, "is_current_stream_capturing", lambda: FakeGraph.recording is not None
    )
    handles = itertools.count()
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: f"pool {next(handles)}")
    monkeypatch.setattr(FakeGraph, "pools", {}, raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr("gumbeltree.device.graphs.capture_stream", FakeStream)
    monkeypatch.setattr(FakeGraph, "log", [], raising=False)
    return FakeGraph.log


def call(graphs, key, *numbers):
    def function(x):
        graph = FakeGraph.recording
        if graph is None:
            FakeGraph.log.append(("run", key, x.tolist()))
            return x * 2
        FakeGraph.log.append(("capture", key, x.tolist()))
        # a captured function is not run: what it returns is there after a replay only
        graph.key, graph.numbers, graph.out = key, x, torch.full_like(x, -1)
        return graph.out

    return graphs(key, function, np.array(numbers)).tolist()


def test_first_runs_second_captures_third_replays(log):
    graphs = Graphs(torch.device("cuda"))
    assert call(graphs, "a", 1, 2) == [2, 4]
    assert log == [("run", "a", [1, 2])]
    assert call(graphs, "a", 3, 4) == [6, 8]
    assert log[1:] == [("capture", "a", [3, 4]), ("replay", "a", [3, 4])]
    assert call(graphs, "a", 5, 6) == [10, 12]
    assert call(graphs, "a", 5, 6) == [10, 12]
    assert log[3:] == [("replay", "a", [5, 6])] * 2
    # another key begins anew
    assert call(graphs, "b", 7) == [14]
    assert log[5:] == [("run", "b", [7])]


def test_at_once_only_the_very_first_call_runs(log, monkeypatch):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: log.append("emptied"))
    graphs = Graphs(torch.device("cuda"), at_once=True)
    assert call(graphs, "a", 1) == [2]
    assert log == [("run", "a", [1])]
    assert call(graphs, "b", 2, 3) == [4, 6]
    # the memory of the first call is not kept beside that of the graphs
    assert log[1:] == ["emptied", ("capture", "b", [2, 3]), ("replay", "b", [2, 3])]
    assert call(graphs, "a", 4) == [8]
    assert call(graphs, "c", 5) == [10]
    assert call(graphs, "b", 6, 7) == [12, 14]
    assert [x[:2] for x in log[4:]] == [
        ("capture", "a"), ("replay", "a"), ("capture", "c"), ("replay", "c"), ("replay", "b"),
    ]  # fmt: skip


def test_a_pool_that_ended_with_a_failed_capture_is_not_used_again(log):
    graphs = Graphs(torch.device("cuda"))
    call(graphs, "a", 1)
    call(graphs, "b", 1)
    fail = True

    def function(x):
        if fail and FakeGraph.recording is not None:
            raise KeyboardInterrupt
        return x

    with pytest.raises(KeyboardInterrupt):
        graphs("a", function, np.array([1]))
    assert FakeGraph.recording is None
    gc.collect()
    assert call(graphs, "a", 2) == [4]
    # one that goes on is shared
    assert call(graphs, "b", 3) == [6]
    assert len({pool for pool, users in FakeGraph.pools.items() if users}) == 1


def test_a_pool_whose_capture_could_not_be_ended_is_left(log, monkeypatch):
    graphs = Graphs(torch.device("cuda"))
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


class Named(FakeStream):
    """A stream that notes what is done with it."""

    events: list

    def __init__(self, name):
        super().__init__()
        self.name = name

    def wait_stream(self, other):
        self.events.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def streams(log, monkeypatch):
    """What happens on two streams, that of the caller and that of captures."""
    events = []
    monkeypatch.setattr(Named, "events", events, raising=False)
    own, caller = Named("own"), Named("caller")
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
    return events, current


def test_streams_wait_for_each_other(streams):
    events, current = streams
    graphs = Graphs(torch.device("cuda"), at_once=True)

    @dataclasses.dataclass
    class Result:
        one: torch.Tensor
        two: tuple[torch.Tensor, None]

    made = []

    def function(x):
        events.append(f"on {current[-1].name}")
        made.append(x * 2)
        if FakeGraph.recording is not None:
            graph = FakeGraph.recording
            graph.key, graph.numbers, graph.out = "a", x, torch.full_like(x, -1)
        made.append(x * 3)
        return Result(made[-2], (made[-1], None))

    graphs("a", function, np.array([1]))
    assert events == ["own waits for caller", "on own", "caller waits for own"]
    # its memory is not given away before the caller has read it
    assert [id(x) for x in current[0].readers] == [id(x) for x in made]
    events.clear()
    graphs("a", function, np.array([1]))
    assert events == ["all wait", "emptied", "on own", "caller waits for own"]
    events.clear()

    def fails(x):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Graphs(torch.device("cuda"))("a", fails, np.array([1]))
    assert events == ["own waits for caller", "caller waits for own"]


def test_one_thread_at_a_time_is_on_the_stream_of_captures(log):
    inside, most = [], []

    def function(x):
        inside.append(threading.get_ident())
        most.append(len(set(inside)))
        threading.Event().wait(0.02)
        inside.remove(threading.get_ident())
        return x

    def work():
        for n in range(3):
            Graphs(torch.device("cuda"))("a", function, np.array([n]))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 9


def test_streams_are_one_for_each_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    for make in (graphs_module.capture_stream, overlap_module.side_stream):
        one, other = torch.device("cuda:5"), torch.device("cuda:6")
        try:
            assert make(one) is make(torch.device("cuda:5"))
            assert make(one) is not make(other)
        finally:
            make.cache_clear()


def test_a_second_attempt_has_the_memory_of_the_first(log, monkeypatch):
    made = []
    alive = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: alive.append(made[0]() is not None))
    graphs = Graphs(torch.device("cuda"))

    def function(x):
        local = torch.zeros(3)
        made.append(weakref.ref(local))
        if FakeGraph.recording is not None:
            raise torch.cuda.OutOfMemoryError
        return x

    graphs("a", function, np.array([1]))
    made.clear()
    graphs("a", function, np.array([1]))
    assert alive == [False]
    assert graphs.refused == {"a"}


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
    ],
)
def test_memory_may_end_outside_of_torch(log, monkeypatch, error, refused):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    graphs = Graphs(torch.device("cuda"))

    def function(x):
        if FakeGraph.recording is not None:
            raise error
        return x

    graphs("a", function, np.array([1]))
    if refused:
        assert graphs("a", function, np.array([2])).tolist() == [2]
    else:
        with pytest.raises(RuntimeError, match="illegal memory"):
            graphs("a", function, np.array([2]))
    assert graphs.refused == ({"a"} if refused else set())


def test_a_first_call_that_fails_does_not_count(log):
    graphs = Graphs(torch.device("cuda"))

    def fails(x):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        graphs("a", fails, np.array([1]))
    assert not graphs.seen


def test_work_beside_that_fails_is_waited_for(monkeypatch):
    log = []

    class Stream:
        def __init__(self, name="side"):
            self.name = name

        def wait_stream(self, other):
            log.append(f"{self.name} waits for {other.name}")

    main = Stream("main")
    monkeypatch.setattr("gumbeltree.device.overlap.side_stream", lambda device: Stream())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())

    def fails():
        raise torch.cuda.OutOfMemoryError

    with pytest.raises(torch.cuda.OutOfMemoryError), Overlap(torch.device("cuda")) as overlap:
        overlap.start(fails)
    assert log == ["side waits for main", "main waits for side"]
    assert overlap.kept == []


def test_without_room_for_a_graph_a_function_runs_as_it_is(log, monkeypatch):
    emptied = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    graphs = Graphs(torch.device("cuda"))
    failures = 2

    def function(x):
        nonlocal failures
        if FakeGraph.recording is None:
            return x * 2
        if failures:
            failures -= 1
            raise torch.cuda.OutOfMemoryError
        graph = FakeGraph.recording
        graph.key, graph.numbers, graph.out = "a", x, torch.full_like(x, -1)
        return graph.out

    # twice without success: then never again for this key
    for n in range(4):
        assert graphs("a", function, np.array([n])).tolist() == [2 * n]
    assert (emptied, graphs.captured) == ([True], {})
    # once without success, then with it
    failures = 1
    for n in range(3):
        assert graphs("b", function, np.array([n])).tolist() == [2 * n]
    assert list(graphs.captured) == ["b"]


def test_autocast_keeps_no_casts_for_graphs(log):
    seen = []
    assert torch.is_autocast_cache_enabled()
    graphs = Graphs(torch.device("cuda"))
    graphs("a", lambda x: seen.append(torch.is_autocast_cache_enabled()), np.array([1]))
    assert seen == [False]
    assert torch.is_autocast_cache_enabled()


def test_settings_that_decide_which_kernels_run():
    found = {torch_settings()}
    with pytest.MonkeyPatch.context() as patch:
        # there is no autocast for a device that is not there
        patch.setattr(torch, "is_autocast_enabled", lambda device: True)
        for dtype in (torch.bfloat16, torch.float16):
            patch.setattr(torch, "get_autocast_dtype", lambda device, dtype=dtype: dtype)
            found.add(torch_settings())
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        found.add(torch_settings())
    finally:
        torch.set_float32_matmul_precision(before)
    assert len(found) == 4


def test_the_least_recently_used_go_first(log):
    graphs = Graphs(torch.device("cuda"), max_graphs=2)
    for key in "aabbacc":
        call(graphs, key, 1)
    # a was used after b
    assert list(graphs.captured) == ["a", "c"]
    log.clear()
    call(graphs, "a", 2)
    call(graphs, "c", 3)
    assert [what for what, *_ in log] == ["replay", "replay"]
    # one that went is captured at once: its first call has been
    assert call(graphs, "b", 4) == [8]
    assert [x[:2] for x in log[2:]] == [("capture", "b"), ("replay", "b")]
    assert list(graphs.captured) == ["c", "b"]
    assert len({id(x.graph) for x in graphs.captured.values()}) == 2


def test_a_function_that_fails_leaves_nothing_behind(log):
    graphs = Graphs(torch.device("cuda"))
    call(graphs, "a", 1)

    def broken(numbers):
        raise KeyError("oh")

    with pytest.raises(KeyError, match="oh"):
        graphs("a", broken, np.array([1]))
    assert FakeGraph.recording is None
    assert not graphs.captured
    assert call(graphs, "a", 2) == [4]
    assert call(graphs, "a", 3) == [6]


# for real


@pytest.mark.gpu
def test_gpu_results_are_those_of_the_function():
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
        found = graphs(count, function, numbers).clone()
        expected = (table[torch.from_numpy(numbers).to(device)] @ table.t()).relu().sum(1)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    # each size: as it is, then captured; never again
    assert sorted(runs) == [8, 8, 16, 16, 24, 24]
    # what the function reads may change where it is
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
        # 32 MiB on the way to a small result
        return (big + numbers.float()).repeat(1 << 20, 1).square().sum(0)

    def use(keys):
        for key in keys:
            for n in range(3):
                numbers = np.full(8, n + 1)
                found = graphs(key, function, numbers)
                assert float(found[0]) == pytest.approx((n + 1) ** 2 * 2**20, rel=1e-3)
        torch.cuda.synchronize()
        return torch.cuda.memory_reserved()

    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    few = use(range(4)) - before
    many = use(range(4, 60)) - before
    assert list(graphs.captured) == [56, 57, 58, 59]
    assert many <= few + (64 << 20)


@pytest.mark.gpu
def test_gpu_gradients_and_updates_are_captured():
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
