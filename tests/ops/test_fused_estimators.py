"""Test that every estimator has the gradients of `exact` in the kernels of `fused`."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from gumbeltree import EncoderConfig, GumbelTreeEncoder
from gumbeltree.layout import Sentences
from gumbeltree.nn.estimators.estimator import LocalEstimator
from gumbeltree.nn.estimators.gumbel_rao import uniform_parts
from gumbeltree.nn.estimators.st import StraightThrough
from gumbeltree.noise import NoiseLayers, keyed_noise, sentence_keys
from gumbeltree.ops.merge import choose, fused
from gumbeltree.ops.merge.fused import estimators
from gumbeltree.ops.merge.fused.estimators import kernel_of
from gumbeltree.parts import ESTIMATORS
from gumbeltree.states import Draw
from tests.ops.comparison import Case, Result, errors, make_inputs, run
from tests.ops.test_fused import distance, interpreted, layout_of, slow

pytest.importorskip("triton")

SETTINGS: dict[str, dict[str, Any]] = {
    "st": {"kind": "st"},
    "decoupled": {"kind": "st", "forward_temperature": 0.4},
    "gumbel_rao": {"kind": "gumbel_rao", "samples": 10},
    "gapped": {"kind": "gapped", "gap": 0.7},
    "reinmax": {"kind": "reinmax"},
    "spigot": {"kind": "spigot", "step": 0.5},
    "ce": {"kind": "spigot", "variant": "ce", "step": 0.3},
    "eg": {"kind": "spigot", "variant": "eg", "step": 2.0},
}
every = pytest.mark.parametrize("name", SETTINGS)


def make(name: str, **settings: object) -> LocalEstimator:
    """Return an estimator of `SETTINGS`, some settings replaced."""
    values = {**SETTINGS[name], **settings}
    part = ESTIMATORS[values.pop("kind")]
    return part(part.Config(**values))


@pytest.mark.parametrize("name", [*SETTINGS, "st_gumbel"])
def test_every_local_estimator_has_kernels(name: str) -> None:
    estimator = make(name) if name in SETTINGS else ESTIMATORS[name]()
    assert estimators.is_supported(estimator)


def test_every_registered_local_estimator_is_tested() -> None:
    local = {name for name in ESTIMATORS if isinstance(ESTIMATORS[name](), LocalEstimator)}
    assert local == {settings["kind"] for settings in SETTINGS.values()} | {"st_gumbel"}


@interpreted
def test_estimators_without_kernels_are_refused() -> None:
    class Own(LocalEstimator):
        def logit_gradient(
            self, dy: Tensor, logits: Tensor, noise: Tensor, choice: Tensor, temperature: float
        ) -> Tensor:
            return torch.zeros_like(logits)

    class Heir(StraightThrough):
        """May differ from its parent, whose kernel it does not declare as its own."""

    cell = GumbelTreeEncoder(EncoderConfig(3, 4)).cell
    for estimator in (Own(), Heir()):
        reason = fused.unsupported(cell, estimator, sample=True, by_name=True)
        assert type(estimator).__name__ in reason
        assert "st_gumbel, st, gumbel_rao, gapped, reinmax, spigot" in reason
        assert choose("auto", cell, estimator, sample=True).name == "exact"
        with pytest.raises(NotImplementedError, match=type(estimator).__name__):
            choose("fused", cell, estimator, sample=True)
        # greedy choices need no estimator
        assert fused.unsupported(cell, estimator, sample=False, by_name=True) is None


# One layer


class Layer:
    """Random numbers of layer `t` of sentences of up to T words."""

    def __init__(self, T: int, keys: bool, dtype: torch.dtype = torch.float64, t: int = 2) -> None:
        generator = torch.Generator().manual_seed(T)
        self.T, self.t, self.device = T, t, "cuda" if torch.cuda.is_available() else "cpu"
        lengths = [4, 1, T, 3, 9, T // 2, 5, 2, T - 2, 6]
        self.layout = layout_of(lengths, T, sum(lengths))
        B = len(lengths)

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

        self.logits, self.x, self.y = 2 * draw(T - 1, B, T - 1), draw(B, T) / 4, draw(B, T) / 4
        self.keys = sentence_keys(1, 2, torch.arange(B))
        self.noise = self.keys if keys else keyed_noise(self.keys, T).to(dtype)
        self.number = self.layout.lengths - 1 - t
        """Candidates of each sentence."""
        # often, but not always, the best candidate is chosen
        inside = torch.arange(T - 1) < self.number[:, None]
        likely = torch.where(inside, self.logits[t] + draw(B, T - 1), -torch.inf)
        self.choice = likely.argmax(1)
        self.dscores = draw(B, T - 1, T - 1)

    def expected(self, estimator: LocalEstimator, temperature: float) -> Tensor:
        """Return the gradients `[B, T-1]` in float64, zero where there is no candidate."""
        found = torch.zeros(self.layout.B, self.T - 1, dtype=torch.float64)
        layers = NoiseLayers(self.noise, self.layout.sentence, self.T - 1)
        noise = layers(self.t, self.layout.B, self.T - 1).double()
        for b, K in enumerate(self.number.tolist()):
            if K < 1:
                continue
            later = self.x[b, :K].double().flip(0).cumsum(0).flip(0) - self.x[b, :K].double()
            found[b : b + 1, :K] = estimator.logit_gradient(
                (self.y[b, :K].double() + later)[None],
                self.logits[self.t, b : b + 1, :K].double(),
                noise[b : b + 1, :K],
                self.choice[b : b + 1],
                temperature,
            )
        return found

    def computed(
        self, estimator: LocalEstimator, temperature: float, dscores: bool = False
    ) -> Tensor:
        """Return the gradients that the kernel stores, `[B, 2, T]`, zero where it stores none."""
        from tests.ops.estimator_kernel import estimator_kernel

        B, T, kernel = self.layout.B, self.T, kernel_of(estimator)
        start = self.layout.start.int()
        # merge r = start[t+1] + b
        position = torch.zeros(int(start[-1]) + B, dtype=torch.int32)
        position[int(start[self.t + 1]) + torch.arange(B)] = self.choice.int()
        # X and Y, each the sum of two parts
        numbers = torch.stack([self.x - 1, self.x * 0 + 1, self.y - 2, self.y * 0 + 2], dim=1)
        out = torch.zeros_like(self.x[:, None]).repeat(1, 2, 1)
        inputs = [
            *(numbers, self.logits, position, self.noise, self.dscores, self.layout.sentence),
            *(torch.tensor(temperature, dtype=out.dtype), self.layout.lengths.int(), start, out),
        ]
        on_device = [x.contiguous().to(self.device) for x in inputs]
        BT = max(16, 1 << (T - 1).bit_length())
        estimator_kernel[(B,)](
            self.t, *on_device, B, T, BT=BT, PIECES=2, HAS_DSCORES=dscores,
            FROM_KEYS=self.noise.dtype == torch.int64, ESTIMATOR=kernel.name,
            SETTING=kernel.setting, DRAWS=kernel.points(BT),
        )  # fmt: skip
        return on_device[-1].cpu()


@every
@pytest.mark.parametrize("temperature", [0.1, 1.0, 2.0])
@pytest.mark.parametrize("keys", [False, True], ids=["table", "keys"])
def test_kernel_equals_logit_gradient(name: str, keys: bool, temperature: float) -> None:
    layer, estimator = Layer(40, keys), make(name)
    expected = layer.expected(estimator, temperature)
    assert (expected.abs().amax(1) > 1e-8).sum() >= 4
    found = layer.computed(estimator, temperature)
    torch.testing.assert_close(found[:, 0, :-1], expected, rtol=1e-9, atol=1e-12)
    # the second row is shifted by one position
    torch.testing.assert_close(found[:, 1, 1:], found[:, 0, :-1], rtol=0, atol=0)


@every
def test_kernel_in_float32(name: str) -> None:
    layer, estimator = Layer(40, keys=True, dtype=torch.float32), make(name)
    expected = layer.expected(estimator, 0.5)
    found = layer.computed(estimator, 0.5)[:, 0, :-1].double()
    torch.testing.assert_close(found, expected, rtol=0, atol=3e-6 * expected.abs().max().item())


@pytest.mark.parametrize("tile", [64, 512, 2048])
def test_any_number_of_draws(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimators, "TILE", tile)
    layer, estimator = Layer(9, keys=True), make("gumbel_rao", samples=21)
    draws = kernel_of(estimator).points(16)
    assert draws == min(32, tile // 16)
    expected = layer.expected(estimator, 0.7)
    torch.testing.assert_close(layer.computed(estimator, 0.7)[:, 0, :-1], expected)


def test_gradients_of_the_scores_are_added() -> None:
    layer, estimator = Layer(9, keys=True), make("gapped")
    plain, both = (layer.computed(estimator, 0.7, dscores) for dscores in (False, True))
    for b, (K, own) in enumerate(zip(layer.number.tolist(), layer.layout.sentence, strict=True)):
        if K > 0:
            added = layer.dscores[own, layer.t, :K]
            torch.testing.assert_close(both[b, 0, :K], plain[b, 0, :K] + added)


@pytest.mark.parametrize("name", ["st", "gapped", "gumbel_rao"])
def test_low_temperatures_cost_no_precision(name: str) -> None:
    # all gradients of weights share a large term, and the softmax is nearly one-hot
    layer, estimator = Layer(12, keys=False, dtype=torch.float32), make(name)
    layer.x, layer.y = torch.zeros_like(layer.x), layer.y.round(decimals=2) + 64
    layer.logits /= 10
    expected = layer.expected(estimator, 0.02)
    found = layer.computed(estimator, 0.02)[:, 0, :-1].double()
    seen = expected.abs() > 1e-20
    assert (seen & (expected.abs() < 1e-4)).sum() > 10
    error = ((found - expected).abs() / expected.abs())[seen]
    assert error.max() < 1e-3


def test_draws_do_not_depend_on_the_rounding_of_the_noise() -> None:
    # logarithms of different devices round up or down
    parts = torch.randint(1 << 23, (10_000,))
    for inner in rounded(-((parts + 0.5) / (1 << 23)).double().log()):
        for noise in rounded(-inner.double().log()):
            assert torch.equal(uniform_parts(noise), parts)


def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x, float64, rounded down and up to float32."""
    near, infinity = x.float(), torch.tensor(torch.inf)
    down = torch.where(near > x, near.nextafter(-infinity), near)
    return down, torch.where(near < x, near.nextafter(infinity), near)


# Whole trees


@dataclass(frozen=True)
class EstimatorCase(Case):
    """A case with an estimator of `SETTINGS`."""

    name: str = "st"
    cell: str = "treelstm"

    @property
    def config(self) -> EncoderConfig:
        parts = {"estimator": SETTINGS[self.name], "cell": self.cell}
        return dataclasses.replace(super().config, **parts)


@interpreted
@every
@pytest.mark.parametrize(
    "settings",
    [
        {"lengths": (1, 5, 2), "hidden_dim": 3, "temperature": 0.1},
        slow({"lengths": (2, 6, 1), "forced": True, "details": True, "attention": True}),
        slow({"lengths": (40, 1, 17), "hidden_dim": 2, "temperature": 2.0}),
    ],
    ids=["short", "forced", "long"],
)
def test_trees_and_gradients_equal_those_of_exact(name: str, settings: dict[str, Any]) -> None:
    case = EstimatorCase(**settings, name=name)
    inputs = make_inputs(case)
    expected, result = run(case, inputs, "exact"), run(case, inputs, "fused")
    assert torch.equal(expected.order, result.order)
    worst = errors(expected, result)
    assert max(worst.values()) < 1e-10, worst


@interpreted
@pytest.mark.parametrize("name", ["decoupled", "gumbel_rao", slow("ce")])
def test_gated_cell(name: str) -> None:
    case = EstimatorCase(lengths=(4, 2), hidden_dim=3, temperature=0.5, name=name, cell="gated")
    inputs = make_inputs(case)
    expected, result = run(case, inputs, "exact"), run(case, inputs, "fused")
    assert torch.equal(expected.order, result.order)
    worst = errors(expected, result)
    assert max(worst.values()) < 1e-10, worst


def packed(
    name: str,
    impl: str,
    lengths: list[int],
    order: Tensor | None = None,
    *,
    D: int = 4,
    spare: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Result:
    """Encode sentences, with noise from keys, the temperature in a tensor and `spare` rows."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(2)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)

    config = EncoderConfig(3, D, leaf="affine", impl=impl, estimator=SETTINGS[name])
    encoder = GumbelTreeEncoder(config).to(device, dtype)
    with torch.no_grad():
        for key, p in encoder.named_parameters():
            # a large query, so that the trees depend on the words
            p.copy_(draw(*p.shape) * (0.6 if key == "query" else p.shape[-1] ** -0.5))
    T = max(lengths)
    words, cotangent = draw(len(lengths), T, 3), draw(len(lengths), D)
    sentences = Sentences.padded(words, torch.tensor(lengths, device=device))
    if spare:
        rows = torch.cat([sentences.words, words.new_zeros(spare, 3)])
        sentences = Sentences(rows, layout_of(lengths, T + spare, len(rows)))
    sentences.order = order
    keys = sentence_keys(3, 1, torch.arange(len(lengths))).to(device)
    temperature = torch.tensor(0.5, dtype=dtype, device=device)
    encoding = encoder(sentences, draw=Draw(keys, temperature))
    named = dict(encoder.named_parameters())
    gradients = torch.autograd.grad((encoding.vector * cotangent).sum(), list(named.values()))
    values = {"vector": encoding.vector.detach().double()}
    for key, gradient in zip(named, gradients, strict=True):
        values[f"d {key}"] = gradient.double()
    return Result(encoding.order[:, : T - 1], values)


@interpreted
@every
def test_keys_spare_rows_and_a_temperature_on_the_device(name: str) -> None:
    expected = packed(name, "exact", [2, 4, 1])
    result = packed(name, "fused", [2, 4, 1], spare=1)
    assert torch.equal(expected.order, result.order)
    # the logarithms of the noise differ in the last bit of float32
    worst = errors(expected, result)
    assert max(worst.values()) < 1e-6, worst


# Compiled kernels


@pytest.mark.gpu
@every
@pytest.mark.parametrize("longest", [40, 70])
def test_gpu_equals_exact(name: str, longest: int) -> None:
    lengths = [1 + (7 * i) % longest for i in range(longest)]
    sizes: dict[str, Any] = {"D": 64, "dtype": torch.float32}
    free = [packed(name, impl, lengths, **sizes).order for impl in ("exact", "fused")]
    made = free[0] >= 0
    assert torch.equal(made, free[1] >= 0)
    assert (free[0] == free[1])[made].float().mean() > 0.99
    expected, result = (
        packed(name, impl, lengths, free[0], **sizes) for impl in ("exact", "fused")
    )
    worst = distance(expected, result)
    assert max(worst.values()) < 1e-4, worst
