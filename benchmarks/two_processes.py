"""Compare training in two processes with training in one: weights, a kill, and time per step.

    python benchmarks/two_processes.py two_processes.json [--device cpu]

A small model learns sentences of the generator of the recipe `demo`, without dropout: in one
process, in two that share the device and communicate with Gloo, and in two that are killed
(SIGKILL) and resumed. The report has the differences between the weights and evaluations of one
process and two, and whether the killed run ended with the same bits as the other one in two
processes. The script fails if the runs differ by more than rounding or if, on a CUDA device, their
steps were not captured. It then times steps on the same batches, captured and eager. Two processes
on one device take turns, so their times show the costs of the exchange, not a speed-up.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from gumbeltree.bench.report import environment
from gumbeltree.config import Recipe, load_recipe, with_settings
from gumbeltree.data.compile import prepare, with_labels
from gumbeltree.data.prepared import Prepared
from gumbeltree.data.split import shuffled
from gumbeltree.training import loop
from gumbeltree.training.optimizers import new_optimizer
from gumbeltree.training.start import leave_processes, new_model, start_fabric
from gumbeltree.training.step import CapturedStep, Step

SETTINGS = (
    *("data.generate=700", "max_words=20", "embedding.dropout=0", "head.dropout=0", "epochs=2"),
    *("evaluations=2", "evaluation_steps=1", "checkpoint_seconds=0", "batch_size=48"),
)
OPTIMIZERS = {
    "sgd": ("optimizer=sgd", "learning_rate=0.2"),
    "adam": ("optimizer=adam", "learning_rate=3e-3"),
}
KILLED_AT = 19
"""Two steps after the third of four evaluations, each of which writes a checkpoint."""
TOLERANCES = {"sgd": 1e-4, "adam": 1e-2}
"""Adam divides by the size of a gradient, so rounding can change a small one's update entirely."""
TIMED_BATCHES, PASSES = 6, 12


def recipe_of(optimizer: str) -> Recipe:
    return with_settings(load_recipe("demo"), [*SETTINGS, *OPTIMIZERS[optimizer]])


def run(
    recipe: Recipe, prepared: Prepared, folder: Path, device: str, kill_at: int = 0
) -> dict[str, Any]:
    """Train or resume a run; return its evaluations and how its steps ran, and write its weights.

    Args:
        recipe: settings.
        prepared: the data.
        folder: the run folder.
        device: cpu or cuda.
        kill_at: kill this process after this step, unless 0.
    """
    steps: list[Step] = []
    new_step = loop._Run._new_step

    def noted(run: loop._Run) -> Step:
        steps.append(new_step(run))
        return steps[-1]

    def on_step(step: int) -> None:
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    loop._Run._new_step = noted  # type: ignore[method-assign]
    try:
        result = loop.train(
            recipe, prepared, folder, device=device, resume=True, quiet=True, on_step=on_step
        )
    finally:
        loop._Run._new_step = new_step  # type: ignore[method-assign]
    (step,) = steps
    if step.fabric.is_global_zero:
        state = {name: x.cpu() for name, x in step.model.state_dict().items()}
        torch.save(state, folder / "weights.pt")
    graphs = step.graphs.captured if isinstance(step, CapturedStep) else {}
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return {
        "steps": result["steps"],
        "graphs": len(graphs),
        "exchanges": sorted({len(x.parts) // 2 for x in graphs.values()}),
        "train_loss": [json.loads(line)["train_loss"] for line in lines],
        "dev_loss": [json.loads(line)["dev_loss"] for line in lines],
        "dev_accuracy": result["dev_accuracy"],
    }


def seconds_per_step(recipe: Recipe, prepared: Prepared, device: str, captured: bool) -> float:
    """Return the median over several passes of the time of a step."""
    config, split = recipe.training, prepared.splits["train"]
    fabric = start_fabric(device, config.precision)
    model = new_model(with_labels(recipe, prepared).model, prepared, config.seed)
    optimizer = new_optimizer(config, model.to(fabric.device), fabric.device)
    step: Step
    if captured:
        step = CapturedStep(fabric, model, optimizer, split, config)
    else:
        module, wrapped = fabric.setup(model, optimizer)
        step = Step(fabric, module, model, wrapped, split, config)
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    batches = shuffled(split, config.batch_size, config.seed, 0)[:TIMED_BATCHES]
    seconds = []
    for number in range(PASSES + 2):
        wait()
        start = time.perf_counter()
        for rows in batches:
            step(rows, 0, number)
        wait()
        seconds.append((time.perf_counter() - start) / len(batches))
    # the first passes compile and capture
    return statistics.median(seconds[2:])


def work(part: str, folder: Path, device: str) -> None:
    """Do the part of one of the processes that the script starts."""
    prepared = prepare(recipe_of("sgd"))
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if part == "resume":
        report: dict[str, Any] = run(recipe_of("adam"), prepared, folder / "killed", device)
    else:
        runs = {
            name: run(recipe_of(name), prepared, folder / f"{name} {world}", device)
            for name in OPTIMIZERS
        }
        ways = ("captured", "eager") if device == "cuda" else ("eager",)
        seconds = {
            way: seconds_per_step(recipe_of("adam"), prepared, device, way == "captured")
            for way in ways
        }
        report = {"runs": runs, "seconds": seconds}
    if os.environ.get("RANK", "0") == "0":
        path = folder / f"{part} {world}.json"
        path.write_text(json.dumps(report), encoding="utf-8")
    if part == "measure" and world > 1:
        run(recipe_of("adam"), prepared, folder / "killed", device, KILLED_AT)
    leave_processes()


def start(part: str, processes: int, folder: Path, device: str) -> Any:
    """Run this script in several processes; return the report of the first."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [__file__, str(folder), "--part", part, "--device", device]
    ended = subprocess.run(
        [sys.executable, *(torchrun if processes > 1 else ()), *command],
        env={"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **os.environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    path = folder / f"{part} {processes}.json"
    killed = part == "measure" and processes > 1
    if not path.exists() or (ended.returncode == 0) == killed:
        raise SystemExit(f"{part} in {processes} processes failed: {ended.stdout}{ended.stderr}")
    return json.loads(path.read_text(encoding="utf-8"))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(folder / "weights.pt")
    return found


def difference(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> float:
    """Return the largest difference of a weight, relative to the norm of its tensor."""
    return max(float((two[name] - x).norm() / x.norm()) for name, x in one.items())


def measure(device: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one, two = (start("measure", processes, folder, device) for processes in (1, 2))
        lines = (folder / "killed" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        resumed = start("resume", 2, folder, device)
        runs: dict[str, Any] = {}
        for name in OPTIMIZERS:
            alone, shared = (weights(folder / f"{name} {world}") for world in (1, 2))
            first, second = one["runs"][name], two["runs"][name]
            losses = [zip(first[x], second[x], strict=True) for x in ("train_loss", "dev_loss")]
            runs[name] = {
                "weights": difference(alone, shared),
                "losses": max(abs(a - b) for pairs in losses for a, b in pairs),
                "dev_accuracy": [first["dev_accuracy"], second["dev_accuracy"]],
                "one": first,
                "two": second,
            }
        straight, killed = weights(folder / "adam 2"), weights(folder / "killed")
    seconds = {f"one process, {way}": x for way, x in one["seconds"].items()}
    seconds |= {f"two processes, {way}": x for way, x in two["seconds"].items()}
    base = next(iter(seconds.values()))
    report = environment()
    if device == "cuda":
        report["machine"]["gpu"] = torch.cuda.get_device_name()
    return report | {
        "device": device,
        "settings": SETTINGS,
        "runs": runs,
        "killed": {
            "after": KILLED_AT,
            "evaluations": len(lines),
            "resumed": resumed,
            "same_bits": all(torch.equal(killed[name], x) for name, x in straight.items()),
        },
        "seconds": seconds,
        "ratios": {name: x / base for name, x in seconds.items()},
    }


def faults(report: dict[str, Any]) -> list[str]:
    """Return what is wrong."""
    found = []
    for name, row in report["runs"].items():
        if not row["weights"] <= TOLERANCES[name]:
            found.append(f"{name}: the weights differ by {row['weights']:.1e}")
        if report["device"] == "cuda" and not (row["one"]["graphs"] and row["two"]["graphs"]):
            found.append(f"{name}: the steps were not captured")
    if not report["killed"]["same_bits"]:
        found.append("the run that was killed and resumed ended with other weights")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--part", choices=("measure", "resume"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part is not None:
        work(options.part, options.out, options.device)
        return
    report = measure(options.device)
    options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for name, row in report["runs"].items():
        graphs = row["two"]["graphs"]
        print(f"{name}: weights {row['weights']:.1e}, losses {row['losses']:.1e}, {graphs} graphs")
    print(f"killed and resumed: same bits: {report['killed']['same_bits']}")
    for name, ratio in report["ratios"].items():
        print(f"{name}: {report['seconds'][name] * 1e3:.2f} ms, ratio {ratio:.2f}")
    if found := faults(report):
        raise SystemExit("; ".join(found))


if __name__ == "__main__":
    main()
