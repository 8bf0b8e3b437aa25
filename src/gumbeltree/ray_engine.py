"""Encode shards on a Ray cluster.

Each worker is an actor that holds the model. The driver reads the texts, keeps a few shards per
worker in flight and yields the vectors of each shard as soon as they are finished. Ray restarts
workers that die and repeats their shards.

Ray Data is not used, because it bounds what is in flight by bytes rather than by shards, reads in
a process of its own, from which errors and counts would have to be passed on, and drops shards in
flight when a line is bad.
"""

import contextlib
import io
import logging
import os
import signal
import socket
import threading
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gumbeltree.extras import is_missing
from gumbeltree.plugins import load_plugin
from gumbeltree.sharded import Shard
from gumbeltree.signals import StopRequest
from gumbeltree.text.ids import TextCounts
from gumbeltree.text_model import TextModel
from gumbeltree.threads import get_threads

IN_FLIGHT = 2
"""Shards per worker in flight: one being encoded, and one waiting, so that no worker is idle."""
RETRIES = 3
"""How often a shard whose worker died is repeated."""
WAIT_SECONDS = 0.5
"""Maximum time until a signal is noticed."""
LEAST_STORE = 128 * 2**20
"""Size of the object store of a local cluster beside weights and shards, in bytes."""


class ShardWorker:
    """An actor that encodes shards.

    Args:
        plugins: see `load_plugin`.
    """

    def __init__(self, plugins: Sequence[str]) -> None:
        for plugin in plugins:
            load_plugin(plugin)
        self.model: TextModel | None = None

    def encode(
        self, model: list[Any], texts: list[str], batch_size: int, pretokenized: bool
    ) -> tuple[NDArray[np.float32], TextCounts]:
        """Return the vectors of texts, `[len(texts), D]`, and the counts of their words.

        Args:
            model: a reference to the model; in a list, because Ray would replace a bare reference
                with a new copy of the model for every shard.
            texts: sentences.
            batch_size: see `TextModel.encode`.
            pretokenized: see `TextModel.encode`.
        """
        if self.model is None:
            import ray

            self.model = ray.get(model[0])
        counts = TextCounts()
        vectors = self.model.encode(texts, batch_size, pretokenized=pretokenized, counts=counts)
        return vectors, counts


def check_installed() -> None:
    """Raise an error with the install command unless Ray is installed."""
    from importlib.util import find_spec

    if find_spec("ray") is None:
        raise ImportError(is_missing("--engine ray", "Ray", "ray"))


def encode_shards(
    shards: Iterator[Shard],
    model: TextModel,
    source: str,
    *,
    address: str | None = None,
    workers: int | None = None,
    plugins: Sequence[str] = (),
    batch_size: int = 256,
    pretokenized: bool = False,
    store: int = 0,
) -> Generator[tuple[int, NDArray[np.float32], TextCounts], None, None]:
    """Yield the number, the vectors and the counts of each shard, in the order they are finished.

    If reading the shards raises an error, those in flight are finished first.

    Args:
        shards: the texts; at most `IN_FLIGHT` shards per worker are held in memory.
        model: model of any runtime, which is sent to the workers.
        source: file of the texts, for error messages.
        address: a running cluster; by default that of RAY_ADDRESS, or else a new local one.
        workers: number of workers; by default one per CPU of the cluster.
        plugins: modules that the workers import.
        batch_size: see `TextModel.encode`.
        pretokenized: see `TextModel.encode`.
        store: estimated size of all shards in flight of one worker, in bytes.
    """
    weights = sum(weight.nbytes for _, _, weight in model.weight_bytes())
    # an exception that a signal raises inside Ray would turn into another one
    with _cluster(address, workers, store, weights) as (ray, count), StopRequest() as stop:
        options = {"num_cpus": 1, "max_restarts": -1, "max_task_retries": RETRIES}
        actor = ray.remote(**options)(ShardWorker)
        pool = [actor.remote(list(plugins)) for _ in range(count)]
        reference = [ray.put(model)]
        running: dict[Any, tuple[Any, Shard]] = {}
        idle = pool * IN_FLIGHT
        failure: Exception | None = None
        while not stop.number:
            while idle and failure is None:
                try:
                    shard = next(shards)
                except StopIteration:
                    break
                except Exception as error:
                    failure = error
                    break
                worker = idle.pop(0)
                texts = shard.texts
                task = worker.encode.remote(reference, texts, batch_size, pretokenized)
                running[task] = worker, shard._replace(texts=[])
            if not running:
                break
            finished, _ = ray.wait(list(running), timeout=WAIT_SECONDS)
            for task in finished:
                worker, shard = running.pop(task)
                idle.append(worker)
                yield shard.number, *_result(ray, task, f"{source}, {_lines(shard)}")
        if stop.number == signal.SIGINT:
            raise KeyboardInterrupt
        if stop.number:
            raise SystemExit(128 + stop.number)
        if failure is not None:
            raise failure


def _lines(shard: Shard) -> str:
    return f"lines {shard.first_line} to {shard.last_line}"


def _result(ray: Any, task: Any, place: str) -> tuple[NDArray[np.float32], TextCounts]:
    """Return the vectors and counts of a shard; raise errors of the model as they were raised."""
    try:
        result: tuple[NDArray[np.float32], TextCounts] = ray.get(task)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, ValueError | TypeError | OSError | ImportError):
            raise type(error.cause)(f"{place}: {error.cause}") from None
        raise
    except ray.exceptions.RayError as error:
        raise OSError(
            f"{place}: {RETRIES + 1} workers died while they encoded these texts, or could not be "
            f"started; check the memory of the machines, or pass a smaller --shard-rows ({error})"
        ) from error
    return result


@contextlib.contextmanager
def _cluster(
    address: str | None, workers: int | None, store: int, weights: int
) -> Iterator[tuple[Any, int]]:
    """Connect to a cluster or start one; yield the module `ray` and the number of workers."""
    check_installed()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    address = address or os.environ.get("RAY_ADDRESS") or "local"
    _check_reachable(address)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        count = workers or get_threads()
        memory = LEAST_STORE + count * store + weights
        options |= {
            "num_cpus": count,
            "num_gpus": 0,
            "object_store_memory": memory,
            "include_dashboard": False,
        }
    before = signal.getsignal(signal.SIGTERM)
    # Ray prints messages about workers that die, which it replaces
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            ray.init(address, **options)
        except (OSError, RuntimeError, ValueError) as error:
            raise OSError(
                f"cannot use the Ray cluster {address}: {error}; check the address, the token if "
                "the cluster requires one, and that the versions of Ray and Python are the same"
            ) from error
        try:
            if threading.current_thread() is threading.main_thread():
                # Ray sets its own handler
                signal.signal(signal.SIGTERM, before)
            yield ray, workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        finally:
            ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise unless something listens at HOST:PORT; Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or "/" in host:
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise OSError(
            f"no Ray cluster answers at {address}: {error}; check the address, or omit "
            "--ray-address and RAY_ADDRESS to start one on this machine"
        ) from error
