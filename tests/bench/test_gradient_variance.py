"""benchmarks/gradient_variance.py: enumerated gradients, zero variance, its report and errors."""

import dataclasses
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from gumbeltree import Draw, save
from gumbeltree.config import GumbelRaoConfig, PPOConfig, ReinforceConfig, SampledConfig
from gumbeltree.config import StraightThroughConfig as STGumbelConfig
from gumbeltree.data.compile import prepare
from gumbeltree.data.split import Split
from gumbeltree.model import SentenceModel
from gumbeltree.text.tokenizer import whitespace_tokenizer
from gumbeltree.training.loop import train
from tests.models import WORDS, encoder_settings, tiny_config
from tests.oracle import merge_orders
from tests.runs import small

LENGTHS = (4, 4, 3, 2, 3, 4)
MEASURED = np.array([0, 2])


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return importlib.import_module("gradient_variance")


def tiny(**encoder: Any) -> SentenceModel:
    """Return a model in float64, with dropout and with weights that make trees matter."""
    config = dataclasses.replace(tiny_config("single"), encoder=encoder_settings(**encoder))
    model = SentenceModel(config, whitespace_tokenizer(WORDS)).double().eval()
    torch.manual_seed(0)
    for p in model.parameters():
        nn.init.normal_(p, std=0.7)
    return model


def split_of() -> Split:
    words = np.random.default_rng(3).integers(2, len(WORDS) + 2, sum(LENGTHS)).astype(np.uint16)
    sentences = np.arange(len(LENGTHS), dtype=np.int32)[:, None]
    return Split(words, np.cumsum([0, *LENGTHS]), sentences, np.arange(len(LENGTHS)) % 2)


def measured(script: ModuleType, estimator: Any, draws: int, seed: int = 1) -> Any:
    others = [np.array([1, 3]), np.array([4, 5])]
    setting = script.Setting("one", estimator)
    fabric = Fabric(accelerator="cpu", devices=1)
    return script.measure(
        tiny(), split_of(), MEASURED, others, setting, draws, seed, fabric, lambda text: None
    )


def enumerated(model: SentenceModel) -> Tensor:
    """Return the gradient of the expected mean loss for the encoder `[P]`, over all trees."""
    split, total = split_of(), torch.zeros(()).double()
    for row in MEASURED.tolist():
        batch = split.batch([row])
        for order in merge_orders(LENGTHS[row]):
            # keys make the model return the probabilities of the forced merges
            draw = Draw(torch.zeros(1, 2, dtype=torch.int64))
            found = model(batch.sentences.with_order(torch.tensor([order])), draw)
            loss = model.head.loss(found.output, batch.targets).sum()
            total = total + found.log_prob.sum().exp() * loss / len(MEASURED)
    gradients = torch.autograd.grad(
        total, list(model.encoder.parameters()), allow_unused=True, materialize_grads=True
    )
    return torch.cat([x.flatten() for x in gradients])


@pytest.mark.parametrize(
    "estimator",
    [
        ReinforceConfig(baseline="batch"),
        ReinforceConfig(baseline="rloo", samples=2),
        PPOConfig(baseline="self_critical"),
    ],
    ids=["batch", "rloo", "ppo"],
)
def test_mean_of_unbiased_estimators_is_the_enumerated_gradient(
    script: ModuleType, estimator: ReinforceConfig
) -> None:
    wanted = enumerated(tiny(estimator={"kind": "reinforce"}))
    found = measured(script, estimator, 400)
    for where in found.groups.values():
        own = found.moments.part(where)
        error = own.variance**0.5 / own.count**0.5
        assert float((own.mean - wanted[where]).norm()) < 4 * error
        # small enough to notice a missing term
        assert error < 0.2 * float(wanted[where].norm())


def test_bias_of_st_gumbel_exceeds_the_noise(script: ModuleType) -> None:
    wanted = enumerated(tiny(estimator={"kind": "reinforce"}))
    found = measured(script, STGumbelConfig(), 400)
    where = found.groups["score"]
    own = found.moments.part(where)
    distance = float((own.mean - wanted[where]).norm())
    assert distance > 4 * own.variance**0.5 / own.count**0.5


def test_a_deterministic_estimator_has_no_variance(script: ModuleType) -> None:
    found = measured(script, SampledConfig(forward_temperature=1e-6), 5)
    own = found.moments.part(found.groups["encoder"])
    assert own.variance == 0
    assert own.mean.norm() > 0.01
    sampled = measured(script, SampledConfig(), 5)
    assert sampled.moments.part(sampled.groups["score"]).variance > 0


def test_the_seed_determines_all_figures(script: ModuleType) -> None:
    for estimator in (GumbelRaoConfig(), ReinforceConfig(baseline="nvil")):
        one, again, other = (measured(script, estimator, 4, seed) for seed in (1, 1, 2))
        assert torch.equal(one.moments.mean, again.moments.mean)
        assert torch.equal(one.moments.squares, again.moments.squares)
        assert not torch.equal(one.moments.mean, other.moments.mean)


@pytest.mark.parametrize(
    ("estimator", "passes"),
    [
        (STGumbelConfig(), 1),
        (ReinforceConfig(baseline="batch"), 1),
        (ReinforceConfig(baseline="self_critical"), 2),
        (ReinforceConfig(baseline="rloo", samples=5), 5),
        (ReinforceConfig(baseline="nvil"), 1),
        (PPOConfig(baseline="self_critical", updates=4), 5),
    ],
    ids=lambda x: str(getattr(x, "baseline", x)),
)
def test_passes_of_the_encoder_are_counted(script: ModuleType, estimator: Any, passes: int) -> None:
    assert measured(script, estimator, 2).about["passes"] == passes


def test_moments_are_those_of_numpy(script: ModuleType) -> None:
    draws = torch.randn(7, 3)
    moments = script.Moments(3, torch.device("cpu"))
    for draw in draws:
        moments.add(draw)
    torch.testing.assert_close(moments.mean, draws.double().mean(0))
    assert moments.variance == pytest.approx(float(draws.double().var(0).sum()))
    part = moments.part(torch.tensor([True, False, True]))
    assert part.variance == pytest.approx(float(draws[:, [0, 2]].double().var(0).sum()))


def test_bias_is_visible_only_beyond_the_noise(script: ModuleType) -> None:
    def constant(value: float) -> Any:
        moments = script.Moments(4, torch.device("cpu"))
        for sign in (-1, 1):
            moments.add(torch.full((4,), value + sign))
        groups = {"score": torch.ones(4, dtype=torch.bool)}
        return script.Measured(script.Setting("one", None), moments, groups, {})

    # two draws with variance 2 in each of 4 entries: error 2, noise 8 ** 0.5
    near, far = (script.statistics(constant(x), constant(0.0), "score") for x in (1.0, 5.0))
    assert near["error"] == pytest.approx(2)
    assert near["noise"] == pytest.approx(8**0.5)
    assert (near["distance"], near["visible"], near["bias"]) == (2.0, False, 0.0)
    assert (far["distance"], far["visible"]) == (10.0, True)
    assert far["bias"] == pytest.approx(92**0.5)
    assert far["ratio"] == pytest.approx(8**0.5 / 10)
    # the mean of the reference is zero
    assert far["cosine"] is None


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ({"trees": "random"}, "the encoder 'fixed_tree' of the model draws no trees"),
        ({"kind": "beam_tree"}, "the encoder 'beam_tree' of the model draws no trees"),
        ({"score": "cosine"}, "'gumbel_tree' of the model has no weights for scores"),
    ],
)
def test_models_without_sampled_trees_are_rejected(
    script: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    encoder: dict[str, Any],
    message: str,
) -> None:
    save(tiny(**encoder).float(), tmp_path / "model")
    arguments = ["x", "out.json", "--model", str(tmp_path / "model"), "--data", "missing.tsv"]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit, match=message):
        script.main()


def test_too_few_examples_are_explained(script: ModuleType) -> None:
    with pytest.raises(ValueError, match="has 1 examples of at most 2 words, but 2 are to be"):
        script.choose_rows(split_of(), 2, 2, 1, 0)
    rows, others = script.choose_rows(split_of(), len(LENGTHS), 0, 3, 0)
    assert sorted(rows) == list(range(len(LENGTHS)))
    assert others == []
    rows, others = script.choose_rows(split_of(), 2, 0, 3, 0)
    assert len(others) == 3
    assert not set(rows) & {int(row) for batch in others for row in batch}
    fabric = Fabric(accelerator="cpu", devices=1)
    setting = script.Setting("NVIL", ReinforceConfig(baseline="nvil"))
    with pytest.raises(ValueError, match="NVIL has a baseline that must learn on other examples"):
        script.measure(tiny(), split_of(), rows, [], setting, 2, 0, fabric, print)


def test_report_of_a_trained_model(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = ["cell.dropout=0.1", "train_max_words=12", "max_words=40", "precision=32"]
    recipe = small(*changes, name="listops-gated")
    train(recipe, prepare(recipe), tmp_path / "run", recipe_name="listops-gated")
    data = tmp_path / "dev.tsv"
    data.write_text("".join(f"{i % 10}\t( ( ( [MAX {i % 10} ) {i % 3} ) ] )\n" for i in range(9)))
    out = tmp_path / "out.json"
    arguments = ["--model", str(tmp_path / "run"), "--data", str(data), "--draws", "3"]
    sizes = ["--examples", "4", "--warm-up", "2"]
    monkeypatch.setattr(sys, "argv", ["x", str(out), *arguments, *sizes])
    script.main()
    found = json.loads(out.read_text())
    assert found["model"]["recipe_name"] == "listops-gated"
    assert {"machine", "versions", "code", "seed"} < found.keys()
    assert found["batch"] == {"examples": 4, "mean_words": 4.0, "longest": 4, "warm_up": 2}
    rows = found["rows"]
    assert len(rows) == len(script.read_rows())
    for name, row in rows.items():
        assert row["score"]["parameters"] == 8
        assert row["encoder"]["parameters"] > 100
        assert found["cosines"]["encoder"][name][name] == pytest.approx(1)
    assert rows["REINFORCE, leave-one-out"]["passes"] == 4
    assert any(name.startswith("decoupled straight-through, ") for name in rows)
