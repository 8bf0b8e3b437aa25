"""Measure the peak memory of one step in a new process: `python -m gumbeltree.bench.memory ...`."""

import subprocess
import sys
from pathlib import Path

from gumbeltree.bench.cases import growth_step, snli_step


def resident(field: str) -> int:
    """Return VmRSS (current) or VmHWM (peak) of this process in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def measure(case: str, impl: str, mode: str, *sizes: object) -> int:
    """Return how many bytes of memory one step adds at its peak, in a new process."""
    if sys.platform != "linux":
        raise NotImplementedError(f"memory can be measured only on Linux, not on {sys.platform}")
    command = [sys.executable, "-m", "gumbeltree.bench.memory", case, impl, mode, *map(str, sizes)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Run one step of the case named by the arguments and print its memory."""
    case, impl, mode, *sizes = sys.argv[1:]
    # load libraries and start threads outside the measurement
    growth_step(impl, mode, 3, 2)()
    if case == "snli":
        step = snli_step(impl, mode, sizes[0], int(sizes[1]), seeds=1)
    else:
        step = growth_step(impl, mode, int(sizes[0]), int(sizes[1]))
    before = resident("VmRSS")
    # reset the peak, because imports use more memory than a small step
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    step()
    print(max(resident("VmHWM") - before, 1))


if __name__ == "__main__":
    main()
