"""Functions on a CUDA device captured as graphs, so that Python costs nothing a call."""

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

MOST = 128
"""Graphs that are kept, the least recently used go first."""

MODE = "relaxed"
"""Kernels may be loaded in the middle of a capture, which stricter modes may forbid."""

Function = Callable[[Tensor], Any]

_STREAM_LOCK = threading.RLock()
"""Held while something runs or is captured on a stream of `capture_stream`, which all share."""


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    numbers: Tensor
    out: Any


class Graphs:
    """CUDA graphs of a function, one for each shape.

    A call hands a function some numbers, int64. The first call with a key runs it as it is, the
    second captures it, later ones replay what was captured with the new numbers. Everything else
    that the function reads must stay where it is in memory. Graphs share their memory: what one
    returns is overwritten by the next call, so use it up or copy it before.

    Where there is no room for a graph, the function goes on running as it is.

    Args:
        device: where the function runs; on others than CUDA devices nothing is captured.
        most: graphs kept.
        at_once: run only the very first call as it is and capture other keys when they first come.
            Calls outside of graphs need as much memory as the graphs share: this saves it, for
            functions of which most keys come again.
    """

    def __init__(self, device: torch.device, most: int = MOST, at_once: bool = False) -> None:
        self.device, self.most, self.at_once = device, most, at_once
        self.seen: set[Hashable] = set()
        self.refused: set[Hashable] = set()
        self.captured: OrderedDict[Hashable, _Captured] = OrderedDict()
        self.pool: Any = None

    def __call__(self, key: Hashable, function: Function, numbers: NDArray[np.int64]) -> Any:
        """Return ``function(numbers)`` with the numbers on the device.

        Args:
            key: calls with one key run the same operations on the same shapes.
            function: takes the numbers as a tensor and returns None, a tensor, or a tuple or
                dataclass of them; reads nothing back from the device.
            numbers: what differs from call to call, of one size for each key.
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
                # a function that failed has not compiled and allocated what a capture needs
                self.seen.add(key)
                return out
            captured = self.captured[key]
            captured.numbers.copy_(values, non_blocking=True)
            captured.graph.replay()
            return captured.out

    def _run(self, function: Function, values: Tensor) -> Any:
        """Run the function as it is, where it will be captured."""
        stream, caller = capture_stream(self.device), torch.cuda.current_stream(self.device)
        with _STREAM_LOCK:
            stream.wait_stream(caller)
            try:
                with torch.cuda.stream(stream):
                    out = function(values.to(self.device))
            finally:
                caller.wait_stream(stream)
        used_on(caller, out)
        return out

    def _may_capture(self, key: Hashable) -> bool:
        ran = bool(self.seen) if self.at_once else key in self.seen
        return ran and key not in self.refused

    def _add(self, key: Hashable, function: Function, values: Tensor) -> None:
        """Capture the function, if there is room."""
        for attempt in range(2):
            try:
                self.captured[key] = self._capture(function, values)
                break
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            # only here: until its handler ends, an exception holds all that the function made
            if attempt == 0:
                # what was given back is not reused for graphs as long as torch keeps it
                torch.cuda.empty_cache()
        else:
            self.refused.add(key)
        if len(self.captured) > self.most:
            self.captured.popitem(last=False)

    def _capture(self, function: Function, values: Tensor) -> _Captured:
        numbers = values.to(self.device)
        graph = torch.cuda.CUDAGraph()
        stream = capture_stream(self.device)
        with _STREAM_LOCK:
            torch.cuda.synchronize(self.device)
            if self.pool is None or not self.captured:
                # a pool ends with its last graph, also if that is one whose capture failed
                self.pool = torch.cuda.graph_pool_handle()
                if self.at_once:
                    # what calls outside of graphs needed: there are no more of them
                    torch.cuda.empty_cache()
            # torch.cuda.graph() would first collect garbage and empty the cache each time
            with torch.cuda.stream(stream):
                try:
                    graph.capture_begin(self.pool, capture_error_mode=MODE)
                    out = function(numbers)
                except BaseException:
                    if not end_failed(graph):
                        self.pool = None
                    raise
                graph.capture_end()
            torch.cuda.current_stream(self.device).wait_stream(stream)
        return _Captured(graph, numbers, out)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether torch, CUDA itself or cuBLAS had no memory left."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    text = str(error)
    return "CUDA error: out of memory" in text or "ALLOC_FAILED" in text


def end_failed(graph: torch.cuda.CUDAGraph) -> bool:
    """End a capture in which something failed, and return whether its pool can be used further."""
    try:
        graph.capture_end()
    except RuntimeError:
        # that it failed is known
        return False
    return True


def used_on(stream: torch.cuda.Stream, out: Any) -> None:
    """Let the memory of tensors wait for a stream before it is given to others."""
    if isinstance(out, Tensor):
        out.record_stream(stream)
    elif isinstance(out, tuple):
        for part in out:
            used_on(stream, part)
    elif dataclasses.is_dataclass(out):
        used_on(stream, tuple(getattr(out, field.name) for field in dataclasses.fields(out)))


@cache
def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which all graphs of a device are captured, and run before that.

    Libraries keep workspaces for each stream, so there is one: cuBLAS takes 64 MiB on an H200.
    """
    return torch.cuda.Stream(device)


def torch_settings() -> tuple[Hashable, ...]:
    """Return the settings of torch that decide which kernels run, as part of a key."""
    autocast = torch.is_autocast_enabled("cuda")
    return autocast, torch.get_autocast_dtype("cuda") if autocast else None, float32_products()


@contextmanager
def no_autocast_cache() -> Iterator[None]:
    """Let autocast cast weights anew each time: a graph must not read an earlier cast."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
