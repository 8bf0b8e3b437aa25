"""Functions on a CUDA device captured as graphs, so that Python costs nothing a call."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MOST = 128
"""Graphs that are kept, the least recently used go first."""

Function = Callable[[Tensor], Any]


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

    Args:
        device: where the function runs; on others than CUDA devices nothing is captured.
        most: graphs kept.
    """

    def __init__(self, device: torch.device, most: int = MOST) -> None:
        self.device, self.most = device, most
        self.seen: set[Hashable] = set()
        self.captured: OrderedDict[Hashable, _Captured] = OrderedDict()
        self.pool: Any = None
        self.stream: torch.cuda.Stream | None = None

    def __call__(self, key: Hashable, function: Function, numbers: NDArray[np.int64]) -> Any:
        """Return ``function(numbers)`` with the numbers on the device.

        Args:
            key: calls with one key run the same operations on the same shapes.
            function: takes the numbers as a tensor; reads nothing back from the device.
            numbers: what differs from call to call, of one size for each key.
        """
        values = torch.from_numpy(numbers)
        if self.device.type != "cuda" or (key not in self.captured and key not in self.seen):
            self.seen.add(key)
            return function(values.to(self.device))
        if key in self.captured:
            self.captured.move_to_end(key)
        else:
            self.captured[key] = self._capture(function, values)
            if len(self.captured) > self.most:
                self.captured.popitem(last=False)
        captured = self.captured[key]
        captured.numbers.copy_(values, non_blocking=True)
        captured.graph.replay()
        return captured.out

    def _capture(self, function: Function, values: Tensor) -> _Captured:
        numbers = values.to(self.device)
        graph = torch.cuda.CUDAGraph()
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
            self.stream = torch.cuda.Stream(self.device)
        assert self.stream is not None
        torch.cuda.synchronize(self.device)
        # torch.cuda.graph() would first collect garbage and empty the cache each time
        with torch.cuda.stream(self.stream):
            graph.capture_begin(self.pool, capture_error_mode="thread_local")
            try:
                out = function(numbers)
            finally:
                graph.capture_end()
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        return _Captured(graph, numbers, out)
