"""Capture functions as CUDA graphs, which avoids the overhead of Python and kernel launches."""

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gumbeltree.device.triton_support import float32_products

MAX_GRAPHS = 128
"""Default number of graphs kept; the least recently used is dropped first."""

MODE = "relaxed"
"""Capture mode; stricter modes can forbid loading a kernel during capture."""

Function = Callable[[Tensor], Any]

_STREAM_LOCK = threading.RLock()
"""Held while a function runs or is captured on the shared stream of `capture_stream`."""


class _Captured(NamedTuple):
    parts: list[Callable[[], object]]
    numbers: Tensor
    out: Any


class _Recording:
    """A function under capture; `parts` replay its graphs and do the work between them."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.graph: torch.cuda.CUDAGraph
        self.parts: list[Callable[[], object]] = []

    def begin(self) -> None:
        self.graph = torch.cuda.CUDAGraph()
        self.parts.append(self.graph.replay)
        self.graph.capture_begin(self.pool, capture_error_mode=MODE)

    def end(self) -> None:
        self.graph.capture_end()


class Graphs:
    """CUDA graphs of a function, one per key.

    The first call with a key runs the function eagerly, the second captures it, and later calls
    replay the graph with new input numbers. All other memory that the function reads must stay
    at the same address. Graphs share a memory pool, so each call overwrites the previous output;
    use or copy it before the next call.

    If there is not enough memory for a graph, the function keeps running eagerly.

    Args:
        device: Where the function runs; nothing is captured unless it is a CUDA device.
        max_graphs: Number of graphs kept.
        at_once: Run only the very first call eagerly, and capture other keys on their first call.
            This saves the memory of eager calls, as much as all graphs together share, and pays off
            if most keys recur.
    """

    def __init__(
        self, device: torch.device, max_graphs: int = MAX_GRAPHS, at_once: bool = False
    ) -> None:
        self.device, self.max_graphs, self.at_once = device, max_graphs, at_once
        self.seen: set[Hashable] = set()
        self.refused: set[Hashable] = set()
        self.captured: OrderedDict[Hashable, _Captured] = OrderedDict()
        self.pool: Any = None
        self.recording: _Recording | None = None

    def __call__(self, key: Hashable, function: Function, numbers: NDArray[np.int64]) -> Any:
        """Return ``function(numbers)`` with the numbers on the device.

        Args:
            key: Calls with the same key run the same operations on the same shapes.
            function: Takes the numbers as a tensor and returns None, a tensor, or a tuple or
                dataclass of tensors. It must not synchronize with the device.
            numbers: The input, int64, of the same size in every call with this key.
        """
        values = torch.from_numpy(numbers)
        if self.device.type != "cuda":
            self.seen.add(key)
            return function(values.to(self.device))
        with torch.cuda.device(self.device), no_autocast_cache():
            if key in self.captured:
                self.captured.move_to_end(key)
            elif self._may_capture(key):
                self._add(key, function, values)
            if key not in self.captured:
                out = self._run(function, values)
                # only after success: a capture needs compiled kernels and allocated workspaces
                self.seen.add(key)
                return out
            captured = self.captured[key]
            captured.numbers.copy_(values, non_blocking=True)
            for part in captured.parts:
                part()
            return captured.out

    def reserve(self, key: Hashable, function: Function, numbers: NDArray[np.int64]) -> None:
        """Capture a function without calling it, if that is possible now; see `__call__`."""
        if self.device.type != "cuda" or key in self.captured or not self._may_capture(key):
            return
        with torch.cuda.device(self.device), no_autocast_cache():
            self._add(key, function, torch.from_numpy(numbers))

    def outside(self, work: Callable[[], object]) -> None:
        """Do work that cannot be captured, at this point of the function that is running.

        A function under capture continues in another graph, and every replay does the work between
        the two.

        Args:
            work: Returns nothing to the function; changes memory that stays at the same address.
        """
        if self.recording is None:
            work()
            return
        self.recording.end()
        self.recording.parts.append(work)
        self.recording.begin()

    def _run(self, function: Function, values: Tensor) -> Any:
        """Run the function eagerly, on the stream where it will be captured."""
        stream, caller = capture_stream(self.device), torch.cuda.current_stream(self.device)
        with _STREAM_LOCK:
            stream.wait_stream(caller)
            try:
                with torch.cuda.stream(stream):
                    out = function(values.to(self.device))
            finally:
                caller.wait_stream(stream)
        record_use(caller, out)
        return out

    def _may_capture(self, key: Hashable) -> bool:
        ran = bool(self.seen) if self.at_once else key in self.seen
        return ran and key not in self.refused

    def _add(self, key: Hashable, function: Function, values: Tensor) -> None:
        """Capture the function if there is enough memory."""
        for attempt in range(2):
            try:
                self.captured[key] = self._capture(function, values)
                break
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            # outside the handler: the exception keeps the tensors of the function alive
            if attempt == 0:
                # a graph pool cannot use memory that the caching allocator holds
                torch.cuda.empty_cache()
        else:
            self.refused.add(key)
        if len(self.captured) > self.max_graphs:
            self.captured.popitem(last=False)

    def _capture(self, function: Function, values: Tensor) -> _Captured:
        numbers = values.to(self.device)
        stream = capture_stream(self.device)
        with _STREAM_LOCK:
            torch.cuda.synchronize(self.device)
            if self.pool is None or not self.captured:
                # a pool is freed with its last graph, even one whose capture failed
                self.pool = torch.cuda.graph_pool_handle()
                if self.at_once:
                    # release the memory of the single eager call
                    torch.cuda.empty_cache()
            recording = self.recording = _Recording(self.pool)
            # not torch.cuda.graph(), which collects garbage and empties the cache every time
            with torch.cuda.stream(stream):
                try:
                    recording.begin()
                    out = function(numbers)
                except BaseException:
                    try:
                        recording.end()
                    except RuntimeError:
                        # the capture is invalid, and its pool with it
                        self.pool = None
                    raise
                finally:
                    self.recording = None
                recording.end()
            torch.cuda.current_stream(self.device).wait_stream(stream)
        return _Captured(recording.parts, numbers, out)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether PyTorch, CUDA or cuBLAS ran out of memory."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    text = str(error)
    return "CUDA error: out of memory" in text or "ALLOC_FAILED" in text


def record_use(stream: torch.cuda.Stream, out: Any) -> None:
    """Record that a stream uses the tensors in `out`, so that their memory is not reused early."""
    if isinstance(out, Tensor):
        out.record_stream(stream)
    elif isinstance(out, tuple):
        for part in out:
            record_use(stream, part)
    elif dataclasses.is_dataclass(out):
        record_use(stream, tuple(getattr(out, field.name) for field in dataclasses.fields(out)))


@cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which all functions of a device run eagerly and are captured.

    They share one stream because libraries allocate a workspace per stream: cuBLAS needs 64 MiB on
    an H200.
    """
    return torch.cuda.Stream(device)


def torch_settings() -> tuple[Hashable, ...]:
    """Return the PyTorch settings that determine which kernels run; part of a graph's key."""
    autocast = torch.is_autocast_enabled("cuda")
    return autocast, torch.get_autocast_dtype("cuda") if autocast else None, float32_products()


@contextmanager
def no_autocast_cache() -> Iterator[None]:
    """Disable autocast's weight cache, since a graph must not read a cast made outside it."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
