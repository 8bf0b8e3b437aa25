"""Load-test `gumbeltree serve` with many clients: throughput, latency, errors, memory, CPU time.

    python benchmarks/load.py --json benchmarks/results/load.json

The server runs in its own process and the clients in this one; they share the machine's cores, so
a dedicated server is faster. Each client keeps one connection open and sends its next request once
the last is answered. Kinds of requests alternate. The sentences come from the demo's grammar, and
every answer is compared with the model's answer in Python.

The part `efficiency` compares sentences per CPU-second: single-sentence `predict` requests to the
server against `model.predict` in this process, with batches as large as the server's. The direct
rate is measured before and after, so that other load on the machine affects both alike.
"""

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from gumbeltree.bench.report import environment
from gumbeltree.runtimes import load_for_use
from gumbeltree.tasks.demo import generate
from gumbeltree.threads import limited
from gumbeltree.web.limits import ServerSettings

KINDS = ("predict", "encode", "parse")
PARTS = ("single", "many", "efficiency")
EARLY = 10_000
"""Requests between two readings of the server's memory."""


class Known:
    """Sentences and the expected answers."""

    def __init__(self, name: str, count: int, runtime: str) -> None:
        model = load_for_use(name, "cpu", runtime)
        self.name, self.model = name, model
        self.texts = list(dict.fromkeys(e.texts[0] for e in generate(2 * count, 1)))[:count]
        self.predictions = model.predict(self.texts)
        self.vectors = model.encode(self.texts)
        self.brackets = [str(tree) for tree in model.parse_many(self.texts)]

    def request(self, kind: str, rows: list[int]) -> bytes:
        body = json.dumps({"model": self.name, "texts": [self.texts[row] for row in rows]}).encode()
        head = (
            f"POST /api/{kind} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def is_correct(self, kind: str, rows: list[int], answer: dict[str, Any]) -> bool:
        if kind == "encode":
            found = np.array(answer["vectors"])
            return found.shape == (len(rows), self.vectors.shape[1]) and bool(
                np.abs(found - self.vectors[rows]).max() < 1e-4
            )
        pairs = list(zip(rows, answer["results"], strict=True))
        if kind == "parse":
            return all(
                (found["text"], found["brackets"]) == (self.texts[row], self.brackets[row])
                for row, found in pairs
            )
        return all(
            abs(found["probabilities"][label] - p) < 1e-4
            for row, found in pairs
            for label, p in self.predictions[row].probabilities.items()
        )


class Tally:
    """Outcome of the requests so far."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.statuses: dict[int, int] = {}
        self.wrong = 0
        self.done = 0
        self.resident: dict[int, int] = {}


async def client(
    port: int, known: Known, requests: list[tuple[str, list[int]]], tally: Tally, process: int
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for kind, rows in requests:
        began = time.perf_counter()
        writer.write(known.request(kind, rows))
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status = int(head.split(" ", 2)[1])
        length = int(re.search(r"(?i)content-length: (\d+)", head)[1])
        body = await reader.readexactly(length)
        tally.seconds.setdefault(kind, []).append(time.perf_counter() - began)
        tally.statuses[status] = tally.statuses.get(status, 0) + 1
        tally.wrong += status != 200 or not known.is_correct(kind, rows, json.loads(body))
        tally.done += 1
        if tally.done % EARLY == 0:
            tally.resident[tally.done] = resident(process)
    writer.close()


def serving(supervisor: int) -> int:
    """Return the id of the process that serves; its parent only supervises it."""
    children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text(encoding="ascii")
    for child in children.split():
        if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8"):
            return int(child)
    raise RuntimeError("the server has no process that serves")


def resident(process: int) -> int:
    text = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return int(re.search(r"VmRSS:\s+(\d+) kB", text)[1]) * 1024


def cpu_seconds(process: int) -> float:
    """Return the CPU time of all threads of a process, in user and kernel mode."""
    text = Path(f"/proc/{process}/stat").read_text(encoding="ascii")
    user, system = text.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def direct_rate(known: Known, seconds: float = 2.0) -> float:
    """Return the sentences per CPU-second of `model.predict` on one thread."""
    batch, done, began = ServerSettings().batch, 0, time.process_time()
    with limited(1):
        while time.process_time() - began < seconds:
            start = done % len(known.texts)
            done += len(known.model.predict(known.texts[start : start + batch]))
    return done / (time.process_time() - began)


def efficiency(
    port: int, known: Known, args: argparse.Namespace, process: int, requests: int
) -> dict[str, Any]:
    """Compare the server's sentences per CPU-second with the direct rate."""
    before = direct_rate(known)
    cpu = cpu_seconds(process)
    figures = run(port, known, args, process, requests, 1, ("predict",))
    cpu = cpu_seconds(process) - cpu
    direct = {"before": before, "after": direct_rate(known)}
    mean = sum(direct.values()) / 2
    return {
        **figures,
        "server_cpu_seconds": cpu,
        "sentences_per_cpu_second": requests / cpu,
        "direct_sentences_per_cpu_second": direct,
        "ratio": requests / cpu / mean,
    }


def percentiles(seconds: list[float]) -> dict[str, float]:
    p50, p99 = np.percentile(seconds, [50, 99])
    return {"p50": float(p50), "p99": float(p99), "longest": max(seconds)}


def run(
    port: int,
    known: Known,
    args: argparse.Namespace,
    process: int,
    requests: int,
    size: int,
    kinds: tuple[str, ...],
) -> dict[str, Any]:
    """Send `requests` requests of `size` sentences each and return the figures."""
    rng = np.random.default_rng(0)
    shares: list[list[tuple[str, list[int]]]] = [[] for _ in range(args.clients)]
    for number in range(requests):
        rows = rng.choice(len(known.texts), size, replace=False).tolist()
        shares[number % args.clients].append((kinds[number // args.clients % len(kinds)], rows))
    tally = Tally()

    async def all_clients() -> None:
        await asyncio.gather(*(client(port, known, own, tally, process) for own in shares))

    began = time.perf_counter()
    asyncio.run(all_clients())
    seconds = time.perf_counter() - began
    tally.resident[tally.done] = resident(process)
    every = [x for seconds in tally.seconds.values() for x in seconds]
    return {
        "clients": args.clients,
        "requests": requests,
        "sentences_per_request": size,
        "kinds": list(kinds),
        "seconds": seconds,
        "requests_per_second": requests / seconds,
        "sentences_per_second": requests * size / seconds,
        "latency_seconds": {
            "all": percentiles(every),
            **{kind: percentiles(own) for kind, own in sorted(tally.seconds.items())},
        },
        "answered": tally.done,
        "statuses": {str(status): count for status, count in sorted(tally.statuses.items())},
        "wrong": tally.wrong,
        "resident_bytes": {str(done): size for done, size in sorted(tally.resident.items())},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="sst2-100d")
    parser.add_argument("--runtime", default="numpy", choices=["numpy", "torch"])
    parser.add_argument("--part", choices=PARTS, action="append", help="only these parts")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--sentences", type=int, default=2000, help="number of distinct sentences")
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args()
    # stop the server as well
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    known = Known(args.model, args.sentences, args.runtime)
    load_before = os.getloadavg()[0]
    command = [sys.executable, "-m", "gumbeltree", "serve", args.model, "--port", "0"]
    command += ["--no-access-log", "--runtime", args.runtime, "--device", "cpu", "--threads", "1"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    parts: dict[str, Any] = {}
    try:
        assert server.stdout is not None
        port = int(re.search(r":(\d+)/", server.stdout.readline())[1])
        process = serving(server.pid)
        run(port, known, args, process, 300, 1, KINDS)
        many = max(args.requests // 50, args.clients)
        for part in args.part or PARTS:
            if part == "single":
                parts[part] = run(port, known, args, process, args.requests, 1, KINDS)
            elif part == "many":
                parts[part] = run(port, known, args, process, many, 32, ("predict",))
            else:
                parts[part] = efficiency(port, known, args, process, args.requests // 5)
    finally:
        server.terminate()
        status = server.wait(120)
    report = {
        **environment(),
        "model": args.model,
        "runtime": args.runtime,
        "cores": os.cpu_count(),
        "server": {"processes": 1, "threads": 1},
        "other_load": {
            "before": load_before,
            "what": "load average in the minute before the start",
        },
        "words_per_sentence": float(np.mean([len(text.split()) for text in known.texts])),
        **parts,
        "exit_status": status,
    }
    print(json.dumps(report, indent=1))
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for part in parts.values():
        if part["wrong"] or part["answered"] != part["requests"]:
            sys.exit(f"{part['wrong']} wrong, {part['answered']} of {part['requests']} answered")


if __name__ == "__main__":
    main()
