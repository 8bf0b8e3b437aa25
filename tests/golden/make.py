"""Encode three sentences with a tiny model; `python -m tests.golden.make` records the results.

Weights follow a formula instead of a random generator, so the results depend on the equations of
the model only. List changes of the file under "Numerics" in the changelog.
"""

import json
import math
import platform
from pathlib import Path

import torch
from torch import Tensor

from gumbeltree import EncoderConfig, GumbelTreeEncoder

FILE = Path(__file__).with_name("encoder.json")
LENGTHS = [6, 4, 1]


def waves(shape: tuple[int, ...], phase: float, size: float) -> Tensor:
    """Return size * sin(i^2 / 7 + phase) for i = 0, 1, ... in `shape`."""
    count = math.prod(shape)
    values = [size * math.sin(i * i / 7 + phase) for i in range(count)]
    return torch.tensor(values, dtype=torch.float64).view(shape)


def compute(leaf: str, impl: str) -> dict[str, object]:
    """Return order, vector and the gradients of words and query when sampling."""
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4, leaf=leaf, impl=impl)).double()
    with torch.no_grad():
        for phase, parameter in enumerate(encoder.parameters()):
            parameter.copy_(waves(tuple(parameter.shape), phase, 0.8))
    words = waves((3, 6, 3), 0.5, 1.0).requires_grad_()
    noise = waves((3, 5, 5), 1.5, 2.0)
    vector, order = encoder(words, torch.tensor(LENGTHS), noise=noise, sample=True)
    (vector * waves((3, 4), 2.5, 1.0)).sum().backward()
    assert words.grad is not None
    assert encoder.query.grad is not None
    return {
        "order": order.tolist(),
        "vector": vector.tolist(),
        "d words": words.grad.tolist(),
        "d query": encoder.query.grad.tolist(),
    }


def main() -> None:
    content = {
        "command": "python -m tests.golden.make",
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "values": {leaf: compute(leaf, "reference") for leaf in ("affine", "lstm", "bilstm")},
    }
    FILE.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
