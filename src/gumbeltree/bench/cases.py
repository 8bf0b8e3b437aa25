"""Benchmark cases: the paper's SNLI model on real sentence lengths, and one long sentence."""

import dataclasses
import json
import random
from collections.abc import Callable
from importlib import resources
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gumbeltree.config import EncoderConfig, ModelConfig, load_recipe
from gumbeltree.nn.encoders.gumbel_tree import GumbelTreeEncoder
from gumbeltree.nn.heads.classes import PairHead
from gumbeltree.noise import gumbel_noise
from gumbeltree.threads import for_step, limited

Step = Callable[[], None]


def snli_lengths() -> list[list[int]]:
    """Return the numbers of premises and hypotheses of 0, 1, … words in SNLI's development set."""
    file = resources.files("gumbeltree") / "bench" / "snli_lengths.json"
    histogram = json.loads(file.read_text("utf-8"))
    return [histogram["premise"], histogram["hypothesis"]]


class PairBatch(NamedTuple):
    """Random word vectors; premises and hypotheses are each padded to their longest."""

    premise: Tensor
    premise_lengths: Tensor
    hypothesis: Tensor
    hypothesis_lengths: Tensor
    labels: Tensor


def snli_batch(pairs: int, width: int, seed: int) -> PairBatch:
    """Draw a random batch of `pairs` with SNLI's sentence lengths."""
    chooser, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    sides: list[Tensor] = []
    for counts in snli_lengths():
        lengths = torch.tensor(chooser.choices(range(len(counts)), counts, k=pairs))
        words = torch.randn(pairs, int(lengths.max()), width, generator=generator)
        sides += [words, lengths]
    return PairBatch._make([*sides, torch.randint(3, (pairs,), generator=generator)])


class PairModel(nn.Module):
    """Encoder and head of a pair model, without word vectors, which are not measured."""

    def __init__(self, config: ModelConfig, impl: str, **encoder: Any) -> None:
        super().__init__()
        self.encoder = GumbelTreeEncoder(dataclasses.replace(config.encoder, impl=impl, **encoder))
        self.head = PairHead(config.head, self.encoder.vector_dim)
        self.dropout = nn.Dropout(config.embedding.dropout)
        self.together = impl != "reference"

    def forward(self, batch: PairBatch) -> Tensor:
        """Return class scores; `reference` encodes the sides separately, like the authors' code."""
        first, second = self.dropout(batch.premise), self.dropout(batch.hypothesis)
        lengths = batch.premise_lengths, batch.hypothesis_lengths
        if not self.together:
            encodings = self.encoder(first, lengths[0]), self.encoder(second, lengths[1])
        else:
            width = max(first.shape[1], second.shape[1])
            both = torch.cat(
                [nn.functional.pad(x, (0, 0, 0, width - x.shape[1])) for x in (first, second)]
            )
            encodings = self.encoder(both, torch.cat(lengths)).chunk(2)
        scores: Tensor = self.head(*encodings)
        return scores


def snli_step(
    impl: str,
    mode: str,
    recipe: str,
    pairs: int,
    seeds: int,
    device: str = "cpu",
    **encoder: Any,
) -> Step:
    """Return a function that runs one inference or training step, cycling over `seeds` batches.

    `encoder` replaces settings of the encoder.
    """
    torch.manual_seed(0)
    config = load_recipe(recipe).model
    model = PairModel(config, impl, **encoder).to(device).train(mode == "training")
    drawn = [snli_batch(pairs, config.encoder.embedding_dim, seed) for seed in range(seeds)]
    batches = [PairBatch._make(x.to(device) for x in batch) for batch in drawn]
    optimizer = torch.optim.Adam(model.parameters())
    calls = 0

    @limited(for_step(2 * pairs, config.encoder.hidden_dim))
    def step() -> None:
        nonlocal calls
        batch = batches[calls % seeds]
        calls += 1
        if mode == "inference":
            with torch.inference_mode():
                model(batch)
            return
        loss = nn.functional.cross_entropy(model(batch), batch.labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()

    return step


def growth_step(impl: str, mode: str, words: int, width: int) -> Step:
    """Return a function that encodes one sentence, and in training also runs the backward pass."""
    torch.manual_seed(0)
    encoder = GumbelTreeEncoder(EncoderConfig(embedding_dim=width, hidden_dim=width, impl=impl))
    encoder.train(mode == "training")
    embedded, lengths = torch.randn(1, words, width), torch.tensor([words])

    @limited(for_step(1, width))
    def step() -> None:
        if mode == "inference":
            with torch.inference_mode():
                encoder(embedded, lengths)
            return
        encoder.zero_grad()
        encoder(embedded, lengths).vector.sum().backward()

    return step


def largest_error(**settings: Any) -> float:
    """Return the largest relative error of `exact` against `reference` in float64.

    Compares vectors and all gradients with SNLI lengths; different merge orders count as an
    infinite error. `settings` replaces some of the encoder.
    """
    torch.manual_seed(0)
    config = EncoderConfig(embedding_dim=20, hidden_dim=30, **settings)
    batch = snli_batch(16, 20, seed=7)
    T = batch.premise.shape[1]
    noise = gumbel_noise((16, T - 1, T - 1))
    cotangent = torch.randn(16, 30, dtype=torch.float64)
    state = GumbelTreeEncoder(config).state_dict()
    results = []
    for impl in ("reference", "exact"):
        encoder = GumbelTreeEncoder(dataclasses.replace(config, impl=impl))
        encoder.load_state_dict(state)
        encoder.double()
        words = batch.premise.double().requires_grad_()
        encoding = encoder(words, batch.premise_lengths, noise=noise, sample=True)
        inputs = [words, *encoder.parameters()]
        gradients = torch.autograd.grad(encoding.vector, inputs, cotangent)
        results.append((encoding.order, [encoding.vector.detach(), *gradients]))
    (order, expected), (other, actual) = results
    if not torch.equal(order, other):
        return float("inf")
    pairs = zip(expected, actual, strict=True)
    # torch's max propagates NaN, unlike Python's
    return float(torch.stack([(x - y).abs().max() / x.abs().max() for x, y in pairs]).max())
