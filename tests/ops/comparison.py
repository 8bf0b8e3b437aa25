"""Run an encoder with several implementations and precisions on the same input."""

import dataclasses
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from gumbeltree import EncoderConfig, GumbelTreeEncoder
from gumbeltree.noise import gumbel_noise
from gumbeltree.ops.merge.exact import backward as exact_backward

TEMPERATURES = [0.05, 0.1, 0.3, 0.5, 1.0, 3.0, 20.0]
LENGTHS = [1, 2, 3, 4, 5, 6, 8, 9, 11, 14, 23]


@dataclass(frozen=True)
class Case:
    """A test case with inputs drawn from `seed`."""

    lengths: tuple[int, ...]
    hidden_dim: int = 5
    leaf: str = "affine"
    sample: bool = True
    forced: bool = False
    attention: bool = False
    details: bool = False
    temperature: float = 1.0
    score: str = "dot"
    ledger: bool = True
    extra_width: int = 0
    seed: int = 0

    @property
    def config(self) -> EncoderConfig:
        return EncoderConfig(
            embedding_dim=3,
            hidden_dim=self.hidden_dim,
            leaf=self.leaf,
            score=self.score,
            temperature=self.temperature,
            attention=self.attention,
        )


@st.composite
def cases(draw: st.DrawFn, temperatures: list[float] = TEMPERATURES) -> Case:
    leaf = draw(st.sampled_from(["affine", "lstm", "bilstm"]))
    widths = [2, 6, 10] if leaf == "bilstm" else [1, 3, 5, 7, 10]
    return Case(
        lengths=tuple(draw(st.lists(st.sampled_from(LENGTHS), min_size=1, max_size=5))),
        hidden_dim=draw(st.sampled_from(widths)),
        leaf=leaf,
        sample=draw(st.sampled_from([True, True, True, False])),
        forced=draw(st.booleans()),
        attention=draw(st.booleans()),
        details=draw(st.booleans()),
        temperature=draw(st.sampled_from(temperatures)),
        score=draw(st.sampled_from(["dot", "scaled_dot"])),
        ledger=draw(st.booleans()),
        extra_width=draw(st.integers(0, 2)),
        seed=draw(st.integers(0, 10**6)),
    )


@dataclass
class Result:
    order: Tensor
    values: dict[str, Tensor]
    """Outputs, and gradients of the words and of every parameter."""


@dataclass
class Inputs:
    state: dict[str, Tensor]
    words: Tensor
    lengths: Tensor
    noise: Tensor
    order: Tensor | None


def make_inputs(case: Case) -> Inputs:
    """Draw weights, words, noise and, if forced, merges; large weights make every gate matter."""
    generator = torch.Generator().manual_seed(case.seed)
    encoder = GumbelTreeEncoder(case.config)
    state = {
        name: torch.randn(x.shape, generator=generator, dtype=torch.float64) * 0.7
        for name, x in encoder.state_dict().items()
    }
    lengths = torch.tensor(case.lengths)
    B, T = len(case.lengths), max(case.lengths) + case.extra_width
    words = torch.randn(B, T, 3, generator=generator, dtype=torch.float64)
    noise = gumbel_noise((B, T - 1, T - 1), generator=generator)
    return Inputs(
        state, words, lengths, noise, random_order(lengths, T, generator) if case.forced else None
    )


def random_order(lengths: Tensor, T: int, generator: torch.Generator) -> Tensor:
    order = torch.full((len(lengths), T - 1), -1)
    for b, length in enumerate(lengths.tolist()):
        for t in range(length - 1):
            order[b, t] = torch.randint(length - 1 - t, (1,), generator=generator)
    return order


def run(
    case: Case,
    inputs: Inputs,
    impl: str,
    dtype: torch.dtype = torch.float64,
    order: Tensor | None = None,
    autocast: bool = False,
) -> Result:
    """Encode; return the outputs and the gradients for random cotangents of all outputs."""
    encoder = GumbelTreeEncoder(dataclasses.replace(case.config, impl=impl))
    encoder.load_state_dict(inputs.state)
    encoder.to(dtype)
    words = inputs.words.to(dtype).requires_grad_()
    with pytest.MonkeyPatch.context() as patch, torch.autocast("cpu", enabled=autocast):
        patch.setattr(exact_backward, "use_ledger", lambda problem: case.ledger)
        encoding = encoder(
            words,
            inputs.lengths,
            noise=inputs.noise,
            sample=case.sample,
            order=inputs.order if order is None else order,
            details=case.details,
        )
        outputs = {"vector": encoding.vector}
        if case.details:
            outputs["h"], outputs["c"] = encoding.nodes
            outputs["scores"] = torch.where(encoding.scores > -torch.inf, encoding.scores, 0.0)
            outputs["probabilities"] = encoding.probabilities
            # the gradient of logsumexp is NaN where a layer has no candidate
            total = encoding.scores.logsumexp(-1)
            outputs["logsumexp"] = torch.where(total > -torch.inf, total, 0.0)
        cotangent = torch.Generator().manual_seed(case.seed + 1)
        loss = sum(
            (x.double() * torch.randn(x.shape, generator=cotangent, dtype=torch.float64)).sum()
            for x in outputs.values()
        )
        named = {"words": words, **dict(encoder.named_parameters())}
        gradients = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
    values = {name: x.detach().double() for name, x in outputs.items()}
    for name, gradient in zip(named, gradients, strict=True):
        values[f"d {name}"] = gradient.double()
    return Result(encoding.order, values)


def errors(truth: Result, other: Result) -> dict[str, float]:
    """Return the largest error of each value relative to the largest entry of the truth."""
    relative = {
        name: float((x - other.values[name]).abs().max() / x.abs().max().clamp(min=1e-30))
        for name, x in truth.values.items()
        if x.numel()
    }
    # NaN would go unnoticed in max() and most comparisons
    return {name: math.inf if math.isnan(e) else e for name, e in relative.items()}
