"""Overload `gumbeltree serve`, and let its processes fail under load.

    python benchmarks/overload.py --json benchmarks/results/overload.json

The part `heavy` lets 20 clients ask for 200 sampled trees of nine texts of maximum length, over and
over, as soon as `Retry-After` allows. It measures how long a one-sentence prediction takes in the
meantime, and how much the server achieves per CPU-second compared with one such request after the
other, so that other load on the machine affects both alike.

The part `failures` kills a process of a server with two processes, then stops another one (SIGSTOP)
and sends a text on which the model hangs, while clients compare all answers with the model's.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from load import Known, cpu_seconds, percentiles, serving

from gumbeltree.bench.report import environment
from gumbeltree.tasks.demo import generate

PARTS = ("heavy", "failures")
HANG = """
import time

from gumbeltree.web import service

encode = service.encode


def hang(served, texts):
    while "hang" in texts:
        time.sleep(0.05)
    return encode(served, texts)


service.encode = hang
"""


class Reply(NamedTuple):
    """A response; status 0 if the connection was lost."""

    status: int
    seconds: float
    retry_after: float
    content: bytes


async def post(port: int, request: bytes) -> Reply:
    """Send a request on a new connection."""
    began = time.perf_counter()
    content = b""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(120):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
            content = await reader.read()
            writer.close()
    head, _, body = content.partition(b"\r\n\r\n")
    retry = re.search(rb"(?i)\nretry-after: (\d+)", head)
    status = int(head.split(b" ")[1]) if head else 0
    return Reply(status, time.perf_counter() - began, float(retry[1]) if retry else 0.0, body)


def request(operation: str, body: dict[str, Any]) -> bytes:
    """Return a request in HTTP."""
    content = json.dumps(body).encode()
    return (
        f"POST /api/{operation} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    ).encode() + content


@contextlib.contextmanager
def server(args: argparse.Namespace, *options: str) -> Iterator[tuple[int, int]]:
    """Run a server; yield its process and its port."""
    command = [sys.executable, "-m", "gumbeltree", "serve", args.model, "--port", "0"]
    command += ["--no-access-log", "--runtime", args.runtime, "--device", "cpu", "--threads", "1"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.pid, int(re.search(r":(\d+)/", process.stdout.readline())[1])
    finally:
        process.terminate()
        process.wait(120)


async def heavy(args: argparse.Namespace, port: int, process: int) -> dict[str, Any]:
    """Return the figures of light and heavy requests at the same time."""
    words = " ".join(example.texts[0] for example in generate(400, 1)).split()
    texts = [" ".join(words[start : start + 127]) for start in range(0, 9 * 120, 120)]
    large = request("parse", {"model": args.model, "texts": texts, "samples": 200})
    small = request("predict", {"model": args.model, "texts": ["i love this very much ."]})
    alone: list[float] = []
    for _ in range(3):
        cpu = cpu_seconds(process)
        expected = await post(port, large)
        alone.append(cpu_seconds(process) - cpu)
    light: list[Reply] = []
    replies: list[Reply] = []
    end = time.perf_counter() + args.seconds

    async def send_small() -> None:
        while time.perf_counter() < end:
            light.append(await post(port, small))
            await asyncio.sleep(0.05)

    async def send_large() -> None:
        while time.perf_counter() < end:
            replies.append(await post(port, large))
            await asyncio.sleep(replies[-1].retry_after)

    quiet = [(await post(port, small)).seconds for _ in range(50)]
    began, cpu = time.perf_counter(), cpu_seconds(process)
    await asyncio.gather(send_small(), *(send_large() for _ in range(args.clients)))
    cpu = cpu_seconds(process) - cpu
    finished = [reply for reply in replies if reply.status == 200]
    return {
        "clients": args.clients,
        "words": [len(text.split()) for text in texts],
        "samples": 200,
        "seconds": time.perf_counter() - began,
        "heavy_statuses": Counter(str(reply.status) for reply in replies),
        "heavy_wrong": sum(reply.content != expected.content for reply in finished),
        "heavy_seconds": percentiles([reply.seconds for reply in finished]),
        "refused_seconds": percentiles([r.seconds for r in replies if r.status == 503] or [0.0]),
        "light_statuses": Counter(str(reply.status) for reply in light),
        "light_seconds_before": percentiles(quiet),
        "light_seconds": percentiles([reply.seconds for reply in light]),
        "cpu_seconds_per_heavy_alone": min(alone[1:]),
        "output_per_cpu_second": len(finished) * min(alone[1:]) / cpu,
    }


async def failures(args: argparse.Namespace, port: int, supervisor: int) -> dict[str, Any]:
    """Return what clients see when processes die, stop and hang."""
    known = Known(args.model, 200, args.runtime)
    statuses: dict[str, Counter[str]] = {}
    wrong, event, over = 0, "none", False
    longest: dict[str, float] = {}

    async def client(number: int) -> None:
        nonlocal wrong
        row = number
        while not over:
            row = (row + 7) % len(known.texts)
            kind = ("predict", "parse")[row % 2]
            reply = await post(port, known.request(kind, [row]))
            statuses.setdefault(event, Counter())[str(reply.status)] += 1
            longest[event] = max(longest.get(event, 0.0), reply.seconds)
            if reply.status == 200:
                wrong += not known.is_correct(kind, [row], json.loads(reply.content))
            await asyncio.sleep(0.01)

    async def replaced(process: int) -> float:
        began = time.perf_counter()
        while process in (own := serving_all(supervisor)) or len(own) < 2:
            await asyncio.sleep(0.05)
        return time.perf_counter() - began

    def serving_all(process: int) -> list[int]:
        children = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii")
        found = []
        for child in map(int, children.split()):
            with contextlib.suppress(OSError):
                if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8"):
                    found.append(child)
        return found

    tasks = [asyncio.create_task(client(number)) for number in range(args.clients)]
    seconds: dict[str, float] = {}
    await asyncio.sleep(5)
    for event, number in (("killed", signal.SIGKILL), ("stopped", signal.SIGSTOP)):
        victim = serving(supervisor)
        os.kill(victim, number)
        seconds[event] = await replaced(victim)
        await asyncio.sleep(5)
    event, before = "hanging", set(serving_all(supervisor))
    began = time.perf_counter()
    hung = asyncio.create_task(
        post(port, request("encode", {"model": args.model, "texts": ["hang"]}))
    )
    while set(serving_all(supervisor)) == before:
        await asyncio.sleep(0.05)
    seconds[event] = time.perf_counter() - began
    await asyncio.sleep(5)
    over = True
    await asyncio.gather(*tasks)
    return {
        "clients": args.clients,
        "timeout": 5.0,
        "statuses": statuses,
        "longest_seconds": longest,
        "replaced_after_seconds": seconds,
        "status_of_the_request_that_hangs": (await hung).status,
        "wrong": wrong,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="sst2-100d")
    parser.add_argument("--runtime", default="numpy", choices=["numpy", "torch"])
    parser.add_argument("--part", choices=PARTS, action="append", help="only these parts")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args()
    report = {**environment(), "model": args.model, "runtime": args.runtime}
    report |= {"cores": os.cpu_count(), "load_before": os.getloadavg()[0]}
    for part in args.part or PARTS:
        if part == "heavy":
            with server(args) as (process, port):
                report[part] = asyncio.run(heavy(args, port, serving(process)))
            continue
        with tempfile.TemporaryDirectory() as folder:
            plugin = Path(folder) / "hang.py"
            plugin.write_text(HANG, encoding="utf-8")
            options = ("--workers", "2", "--timeout", "5", "--plugin", str(plugin))
            with server(args, *options) as (process, port):
                report[part] = asyncio.run(failures(args, port, process))
    print(json.dumps(report, indent=1))
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
