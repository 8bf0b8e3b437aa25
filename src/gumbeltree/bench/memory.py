"""Peak memory of one step, in a process of its own: `python -m gumbeltree.bench.memory ...`."""

import json
import subprocess
import sys
from pathlib import Path

from gumbeltree.bench.cases import growth_step, snli_step


def resident(field: str) -> int:
    """Return VmRSS (now) or VmHWM (the highest so far) of this process, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def measure(case: str, impl: str, mode: str, *sizes: str) -> int:
    """Return the peak of one step less the level before it, in bytes, from a fresh process."""
    if sys.platform != "linux":
        raise NotImplementedError(f"memory is measured on Linux only, this is {sys.platform}")
    command = [sys.executable, "-m", "gumbeltree.bench.memory", case, impl, mode, *sizes]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return int(json.loads(output)["bytes"])


def main() -> None:
    """Run one step of the case named by the arguments and print its memory."""
    case, impl, mode, *sizes = sys.argv[1:]
    # a tiny step first, so that lazily loaded libraries and threads are not counted
    growth_step(impl, mode, 3, 2)()
    if case == "snli":
        step = snli_step(impl, mode, sizes[0], int(sizes[1]), seeds=1)
    else:
        step = growth_step(impl, mode, int(sizes[0]), int(sizes[1]))
    before = resident("VmRSS")
    # forget the highest level so far: importing reaches higher than a small step
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    step()
    print(json.dumps({"bytes": max(resident("VmHWM") - before, 1)}))


if __name__ == "__main__":
    main()
