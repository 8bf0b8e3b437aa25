"""Test that recorded results are reproduced."""

import json

import pytest
import torch

from tests.golden.make import FILE, compute
from tests.models import IMPLS

GOLDEN = json.loads(FILE.read_text(encoding="utf-8"))["values"]


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("leaf", GOLDEN)
def test_golden_values(leaf: str, impl: str) -> None:
    result = compute(leaf, impl)
    assert result["order"] == GOLDEN[leaf]["order"]
    for name, expected in GOLDEN[leaf].items():
        torch.testing.assert_close(
            torch.tensor(result[name], dtype=torch.float64),
            torch.tensor(expected, dtype=torch.float64),
            rtol=0,
            atol=1e-12,
        )
