"""Stand-ins for a row of benchmarks/step_times.py, in a module that processes import quickly."""

import os
import time


def at_once(pipe, run, *given) -> None:
    """Take half a second for any row but one."""
    pipe.send(None)
    pipe.recv()
    pipe.send({"seconds": 0.5} if run.row == "demo" else "an error")


def answer(pipe, run, log: str) -> None:
    """Behave as the name of the row says; note when its measurement begins and ends."""
    if run.row == "broken":
        os._exit(1)
    pipe.send("no data" if run.row == "refused" else None)
    if run.row == "refused":
        return
    if run.row == "leaves":
        os._exit(1)
    pipe.recv()
    if run.row == "dies":
        os._exit(1)
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"{run.row} begins\n")
    pipe.send({"seconds": 1})
    time.sleep(0.3)
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"{run.row} ends\n")
