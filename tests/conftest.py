"""Shared set-up: seeds, determinism with NaN in uninitialised memory, hypothesis profiles."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

# Triton decides when it is first imported whether its kernels are interpreted, and torch imports it
# when the determinism setting below is made
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# for the processes that tests start
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("ci", derandomize=True, deadline=None, max_examples=50)
settings.register_profile("long", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# torch.empty then returns NaN, so that reads of uninitialised memory show up in results
torch.use_deterministic_algorithms(True)
# the tensors are tiny: more threads would only add overhead
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _start() -> None:
    torch.manual_seed(0)
    # training with tf32 sets it for the whole process
    torch.set_float32_matmul_precision("highest")


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep downloads out of the user's cache, and output independent of the terminal."""
    monkeypatch.setenv("GUMBELTREE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "dumb")


# gumbeltree is imported in the fixtures, after the environment variables above are set


@pytest.fixture
def cli() -> Callable[..., Any]:
    """The command line, called in this process."""
    from tests.commands import run

    return run


@pytest.fixture(scope="module")
def demo() -> Any:
    """The prepared data of a small run."""
    from gumbeltree.data.compile import prepare
    from tests.runs import small

    return prepare(small())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.markexpr:
        return
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="minutes long: run with -m slow"))
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
