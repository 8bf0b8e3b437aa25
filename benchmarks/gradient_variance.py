"""Measure bias and variance of the gradient of every estimator at the weights of one model.

    python benchmarks/gradient_variance.py OUT.json --model RUN --data data/listops/dev.tsv

For each row of benchmarks/plans/estimators.toml, the gradient of the mean loss of one fixed batch
is computed for many independent draws of the merges, in the same way as in training but without
dropout, clipping and entropy bonus. Two groups of parameters are reported: `score`, those of the
score alone, and `encoder`, all of the encoder. For each group:

- `norm`: norm of the mean gradient. The noise of the mean, `error`, is part of it.
- `deviation`: standard deviation of one draw, the root of the variance summed over all entries;
  `ratio` is the deviation divided by the norm, `error` the standard error of the mean, which is
  the deviation divided by the root of the number of draws.
- `distance`: distance of the mean from that of the reference, REINFORCE with the leave-one-out
  baseline and draws of its own, which is unbiased. Two unbiased means are at the distance `noise`
  in the root mean square. A bias is visible only where the distance exceeds the noise; `visible`
  says whether it is more than twice as large, and `bias` is the root of distance^2 - noise^2, 0
  if that is negative. A bias below the noise is neither shown nor excluded.
- `cosine`: cosine of the means of two estimators. Noise of the means brings it closer to 0.

`passes` is how often a training step encodes each sentence: RLOO with 4 samples needs 4, and a
greedy baseline or another update of PPO needs one more. The LSTM of NVIL is not counted.

Some rows differ from the reference for other reasons than bias. A forward temperature other than 1
samples other trees. Advantages divided by a running deviation, as always in NVIL, give a shorter
gradient: `scale` is the factor. PPO is measured at its first update, where it equals REINFORCE.
Running means and the LSTM of NVIL learn on other examples of the file first, `--warm-up` batches,
and then stay fixed.
"""

import argparse
import copy
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from estimator_rows import PLAN, Row, label, read_rows
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor

from gumbeltree.bench.report import environment
from gumbeltree.cli.scores import check_fit, recipe_of
from gumbeltree.config import ReinforceConfig, TrainingConfig
from gumbeltree.data.compile import make_task, read_file
from gumbeltree.data.split import Batch, Split
from gumbeltree.evaluation import split_of
from gumbeltree.model import ModelOutput, SentenceModel, load
from gumbeltree.noise import mixed_number
from gumbeltree.states import Draw
from gumbeltree.training.start import start_fabric
from gumbeltree.training.step import Step

REFERENCE = ReinforceConfig(baseline="rloo", samples=4)
VISIBLE = 2.0
"""Multiple of the noise that a distance must exceed. Twice the noise is exceeded by chance in 5 %
of all cases if the noise has a single direction, and less often if it has several."""
Say = Callable[[str], object]


class Setting(NamedTuple):
    """One estimator to measure."""

    name: str
    estimator: Any
    temperature: float = 1.0
    set: tuple[str, ...] = ()


class GradientStep(Step):
    """A training step that keeps the gradient of the encoder and changes no weight.

    Args:
        fabric: Fabric on the device of the model.
        model: a model in evaluation mode.
        split: the examples.
        seed: seed of the draws.

    Attributes:
        gradient: gradient of the first update of the latest call `[P]`, the parameters of the
            encoder concatenated.
        encoded: number of sentences that the latest call encoded.
    """

    def __init__(self, fabric: Fabric, model: SentenceModel, split: Split, seed: int) -> None:
        super().__init__(fabric, model, model, None, split, TrainingConfig(seed=seed))
        self.names, self.parameters = zip(*model.encoder.named_parameters(), strict=True)
        self.gradient: Tensor | None = None
        self.encoded = self.latest = 0
        self.learning = False

    def __call__(self, rows: NDArray[np.int64], epoch: int, step: int) -> None:
        """Compute the gradient of the mean loss of the examples in `rows`."""
        self.gradient, self.encoded = None, 0
        super().__call__(rows, epoch, step)

    def _forward(self, batch: Batch, draw: Draw, head: bool = True) -> ModelOutput:
        self.latest = len(batch.sentences)
        self.encoded += self.latest
        return super()._forward(batch, draw, head)

    def _greedy_losses(self, batch: Batch) -> Tensor:
        self.encoded += len(batch.sentences)
        return super()._greedy_losses(batch)

    def _descend(self, objective: Callable[[], Tensor], share: float) -> None:
        if self.gradient is not None:
            # further updates repeat the part of the choices as long as no weight changes
            self.encoded += self.latest
            return
        loss = share * objective()
        if self.learning:
            self.gradient = loss.new_zeros(0)
            return
        found = torch.autograd.grad(
            loss, self.parameters, allow_unused=True, materialize_grads=True
        )
        self.gradient = torch.cat([x.flatten() for x in found])

    def learn(self, batches: Sequence[NDArray[np.int64]], epoch: int) -> None:
        """Update running means and the critic on batches, each with draws of its own."""
        self.learning = True
        for number, rows in enumerate(batches):
            self(rows, epoch + number, 0)
        self.learning = False

    @property
    def scale(self) -> float:
        """Factor of the advantages."""
        config = self.policy.config
        count, mean, square = self.policy.sums.tolist()
        if not (count and (config.scaled or config.baseline == "nvil")):
            return 1.0
        return float(max(1.0, square / count - (mean / count) ** 2) ** -0.5)


class Moments:
    """Mean and summed squared differences from it, updated draw by draw.

    Attributes:
        count: number of draws.
        mean: mean of the gradients, float64 `[P]`.
        squares: squared differences from the mean, summed over the draws, float64 `[P]`.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.count = 0
        self.mean, self.squares = torch.zeros(2, size, dtype=torch.float64, device=device)

    def add(self, gradient: Tensor) -> None:
        """Add one draw `[P]`."""
        self.count += 1
        difference = gradient.double() - self.mean
        self.mean += difference / self.count
        self.squares += difference * (gradient.double() - self.mean)

    def part(self, where: Tensor) -> "Moments":
        """Return the moments of some entries, bool `[P]`."""
        found = copy.copy(self)
        found.mean, found.squares = self.mean[where], self.squares[where]
        return found

    @property
    def variance(self) -> float:
        """Variance of a draw, summed over all entries."""
        return float(self.squares.sum()) / (self.count - 1)


class Measured(NamedTuple):
    """The gradients of one estimator."""

    setting: Setting
    moments: Moments
    groups: dict[str, Tensor]
    about: dict[str, Any]


def check_model(model: SentenceModel) -> None:
    """Raise ValueError unless the model draws the merges of one tree by their scores."""
    encoder = model.config.encoder
    if encoder.kind != "gumbel_tree" or encoder.score == "cosine":
        why = "has no weights for scores" if encoder.kind == "gumbel_tree" else "draws no trees"
        raise ValueError(
            f"the encoder {encoder.kind!r} of the model {why}, so there are no gradients to "
            "compare; pass a run of listops-gated, or of another recipe with "
            "encoder.kind=gumbel_tree and score=dot"
        )


def with_estimator(model: SentenceModel, setting: Setting) -> SentenceModel:
    """Return a copy of a model with another estimator, in evaluation mode."""
    encoder = dataclasses.replace(
        model.config.encoder, estimator=setting.estimator, temperature=setting.temperature
    )
    config = dataclasses.replace(model.config, encoder=encoder)
    other = SentenceModel(config, model.tokenizer).to(model.embedding.weight)
    other.load_state_dict(model.state_dict())
    return other.eval()


def learns(estimator: Any) -> bool:
    """Return whether the baseline of an estimator depends on earlier batches."""
    if not isinstance(estimator, ReinforceConfig):
        return False
    return estimator.scaled or estimator.baseline in ("running", "nvil")


def measure(
    model: SentenceModel,
    split: Split,
    rows: NDArray[np.int64],
    others: Sequence[NDArray[np.int64]],
    setting: Setting,
    draws: int,
    seed: int,
    fabric: Fabric,
    say: Say,
) -> Measured:
    """Compute the gradient of one estimator for many draws.

    Args:
        model: the model, in evaluation mode.
        split: the examples.
        rows: the measured batch.
        others: batches on which running means and critics learn first.
        setting: the estimator.
        draws: number of draws.
        seed: seed of the draws.
        fabric: Fabric on the device of the model.
        say: receives lines of progress.
    """
    start = time.perf_counter()
    step = GradientStep(fabric, with_estimator(model, setting), split, seed)
    if learns(setting.estimator):
        if not others:
            raise ValueError(
                f"{setting.name} has a baseline that must learn on other examples, but the file "
                f"has only the {len(rows)} measured ones; pass a larger file or fewer --examples"
            )
        step.learn(others, draws)
    state = copy.deepcopy(step.policy.state_dict())
    moments = Moments(sum(p.numel() for p in step.parameters), fabric.device)
    step.loss.zero_()
    for draw in range(draws):
        # everything but the draw stays the same
        step.policy.load_state_dict(copy.deepcopy(state))
        step(rows, draw, 0)
        assert step.gradient is not None
        moments.add(step.gradient)
        if (draw + 1) % 64 == 0 and draw + 1 < draws:
            say(f"{setting.name}: {draw + 1} of {draws} draws")
    step.policy.load_state_dict(state)
    score = [
        torch.full((p.numel(),), name == "query" or name.startswith("scorer."))
        for name, p in zip(step.names, step.parameters, strict=True)
    ]
    of_score = torch.cat(score).to(fabric.device)
    groups = {"score": of_score, "encoder": torch.ones_like(of_score)}
    about = {
        "draws": draws,
        "loss": float(step.loss) / (draws * len(rows)),
        "passes": step.encoded / (len(rows) * step.columns),
        "scale": step.scale,
        "seconds": round(time.perf_counter() - start, 2),
    }
    return Measured(setting, moments, groups, about)


def statistics(found: Measured, reference: Measured, group: str) -> dict[str, Any]:
    """Return the figures of one group of parameters; see the top of this file."""
    own = found.moments.part(found.groups[group])
    other = reference.moments.part(reference.groups[group])
    norm, deviation = float(own.mean.norm()), own.variance**0.5
    distance = float((own.mean - other.mean).norm())
    noise = (own.variance / own.count + other.variance / other.count) ** 0.5
    return {
        "parameters": own.mean.numel(),
        "norm": norm,
        "deviation": deviation,
        "error": deviation / own.count**0.5,
        "ratio": deviation / norm if norm else None,
        "distance": distance,
        "noise": noise,
        "visible": distance > VISIBLE * noise,
        "bias": max(0.0, distance**2 - noise**2) ** 0.5,
        "cosine": cosine(own.mean, other.mean),
    }


def cosine(x: Tensor, y: Tensor) -> float | None:
    """Return the cosine of two vectors, None if one of them is zero."""
    norms = float(x.norm() * y.norm())
    return float(x @ y) / norms if norms else None


def report(found: Sequence[Measured], reference: Measured) -> dict[str, Any]:
    """Return the figures of all estimators and the cosines of their means."""
    rows = {
        each.setting.name: {
            "set": list(each.setting.set),
            "estimator": dataclasses.asdict(each.setting.estimator),
            "temperature": each.setting.temperature,
            **each.about,
            **{group: statistics(each, reference, group) for group in each.groups},
        }
        for each in found
    }
    cosines = {
        group: {
            one.setting.name: {
                other.setting.name: cosine(*(x.moments.mean[x.groups[group]] for x in (one, other)))
                for other in found
            }
            for one in found
        }
        for group in reference.groups
    }
    of_reference = {
        "estimator": dataclasses.asdict(reference.setting.estimator),
        **reference.about,
        **{
            group: {
                key: value
                for key, value in statistics(reference, reference, group).items()
                if key in ("parameters", "norm", "deviation", "error", "ratio")
            }
            for group in reference.groups
        },
    }
    return {"reference": of_reference, "rows": rows, "cosines": cosines}


def settings_of(rows: Sequence[Row]) -> list[Setting]:
    """Return the estimators of a plan, each once; rows without learned trees are left out."""
    found: list[Setting] = []
    for row in rows:
        encoder = row.settings.model.encoder
        if encoder.kind != "gumbel_tree":
            continue
        setting = Setting(
            label(row).replace("`", ""), encoder.estimator, encoder.temperature, row.set
        )
        if all((setting.estimator, setting.temperature) != x[1:3] for x in found):
            found.append(setting)
    return found


def choose_rows(
    split: Split, examples: int, longest: int, warm_up: int, seed: int
) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """Return the rows of the measured batch and those of batches without any of them.

    Args:
        split: the examples.
        examples: examples per batch.
        longest: largest number of words; 0 for any.
        warm_up: number of other batches; none if there are not enough examples.
        seed: seed of the choice.
    """
    words = split.lengths.max(axis=1)
    short = np.flatnonzero(words <= longest) if longest else np.arange(len(split))
    if len(short) < examples:
        raise ValueError(
            f"the file has {len(short)} examples of at most {longest or words.max()} words, but "
            f"{examples} are to be measured; pass a larger file or fewer --examples"
        )
    generator = np.random.default_rng(seed)
    rows, rest = np.split(generator.permutation(short), [examples])
    size = min(examples, len(rest))
    batches = [generator.choice(rest, size, replace=False) for _ in range(warm_up if size else 0)]
    return rows, batches


def measure_all(
    model: SentenceModel,
    split: Split,
    settings: Sequence[Setting],
    fabric: Fabric,
    *,
    draws: int,
    examples: int,
    reference_draws: int,
    warm_up: int,
    longest: int,
    seed: int,
    say: Say,
) -> dict[str, Any]:
    """Measure all estimators and the reference on the same batch; see `measure`."""
    check_model(model)
    rows, others = choose_rows(split, examples, longest, warm_up, seed)

    def one(number: int, setting: Setting, count: int) -> Measured:
        # every estimator has draws of its own, so that the errors of two means are independent
        own = mixed_number(number, seed) >> 1
        found = measure(model, split, rows, others, setting, count, own, fabric, say)
        own_score = found.moments.part(found.groups["score"])
        ratio = own_score.variance**0.5 / max(float(own_score.mean.norm()), 1e-30)
        say(
            f"{setting.name}: loss {found.about['loss']:.4f}, deviation of the score's gradient "
            f"{ratio:.2f} times its mean, {found.about['seconds']:.0f} s"
        )
        return found

    temperature = model.config.encoder.temperature
    reference = one(0, Setting("reference", REFERENCE, temperature), reference_draws)
    found = [one(number, setting, draws) for number, setting in enumerate(settings, 1)]
    words = split.lengths.max(axis=1)[rows]
    batch = {
        "examples": examples,
        "mean_words": float(words.mean()),
        "longest": int(words.max()),
        "warm_up": len(others),
    }
    return {"seed": seed, "draws": draws, "batch": batch, **report(found, reference)}


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("json", type=Path, help="JSON file for all figures")
    parser.add_argument("--model", required=True, help="folder of a trained model or run")
    parser.add_argument("--data", type=Path, required=True, help="file with labelled examples")
    parser.add_argument("--plan", type=Path, default=PLAN, help="plan with the estimators")
    parser.add_argument("--draws", type=int, default=256, help="draws of each estimator")
    parser.add_argument("--reference-draws", type=int, help="draws of the reference, 4 trees each")
    parser.add_argument("--examples", type=int, default=64, help="examples of the batch")
    parser.add_argument("--warm-up", type=int, default=256, help="batches for running means")
    parser.add_argument("--seed", type=int, default=0, help="seed of the batch and all draws")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    # before the measurement, which takes long: the code can change meanwhile
    about = environment()
    reference_draws = given.draws if given.reference_draws is None else given.reference_draws
    if min(given.draws, reference_draws) < 2 or given.examples < 2:
        parser.error("variances need at least two draws, and baselines at least two examples")
    try:
        model = load(given.model, given.device)
        check_model(model)
        task = make_task(recipe := recipe_of(model, None, {}))
        check_fit(model, task)
        split = split_of(model, read_file(task, given.data, "dev", False), task.pretokenized)
        found = measure_all(
            model,
            split,
            settings_of(read_rows(given.plan)),
            start_fabric(given.device, "32"),
            draws=given.draws,
            examples=given.examples,
            reference_draws=reference_draws,
            warm_up=given.warm_up,
            longest=recipe.data.train_max_words,
            seed=given.seed,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
    except (OSError, ValueError) as error:
        sys.exit(f"gradient_variance: error: {error}")
    if given.device == "cuda":
        about["machine"]["gpu"] = torch.cuda.get_device_name()
    origin = model.provenance
    source = {
        "model": {
            "name": given.model,
            **{key: origin.get(key) for key in ("recipe_name", "seed", "metrics", "code")},
            "estimator": dataclasses.asdict(model.config.encoder.estimator),
        },
        "file": given.data.name,
    }
    given.json.parent.mkdir(parents=True, exist_ok=True)
    content = json.dumps({**about, **source, **found}, indent=1)
    given.json.write_text(content + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
