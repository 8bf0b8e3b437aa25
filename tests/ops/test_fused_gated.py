"""Test that `fused` equals `exact` for the gated cell, interpreted on a CPU, compiled on a GPU."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gumbeltree import EncoderConfig, GumbelTreeEncoder
from gumbeltree.config import GatedConfig
from gumbeltree.device.triton_support import Tile
from gumbeltree.layout import Arrangement, Layout
from gumbeltree.nn.cells.gated import GatedCell
from gumbeltree.nn.estimators.soft import SoftGumbel
from gumbeltree.nn.estimators.st_gumbel import StraightThroughGumbel
from gumbeltree.noise import sentence_keys
from gumbeltree.ops.lstm import fused as fused_lstm
from gumbeltree.ops.merge import choose, fused
from tests.ops.comparison import Case, Inputs, Result, errors, make_inputs, run
from tests.ops.test_fused import (
    distance,
    interpreted,
    layout_of,
    random_encoder,
    run_compiled,
    run_packed,
    slow,
)

pytest.importorskip("triton")
shared_backward = pytest.importorskip("gumbeltree.ops.merge.fused.backward")
gated_backward = pytest.importorskip("gumbeltree.ops.merge.fused.gated.backward")
gated_forward = pytest.importorskip("gumbeltree.ops.merge.fused.gated.forward")

DROPPING = {"kind": "gated", "dropout": 0.4}
"""A cell with dropout."""


@dataclass(frozen=True)
class GatedCase(Case):
    """A test case with the gated cell."""

    leaf: str = "norm"
    expansion: int = 4
    dropout: float = 0.0
    estimator: str = "st_gumbel"

    @property
    def config(self) -> EncoderConfig:
        return EncoderConfig(
            embedding_dim=3,
            hidden_dim=self.hidden_dim,
            leaf=self.leaf,
            cell=GatedConfig(expansion=self.expansion, dropout=self.dropout),
            estimator=self.estimator,
            score=self.score,
            temperature=self.temperature,
            attention=self.attention,
        )


def check_float64(case: Case, other: str = "exact") -> None:
    inputs = make_inputs(case)
    exact, result = (seeded(case, inputs, impl) for impl in (other, "fused"))
    assert torch.equal(exact.order, result.order)
    worst = errors(exact, result)
    assert max(worst.values()) < 1e-10, worst


def seeded(case: Case, inputs: Inputs, impl: str) -> Result:
    """Encode with the same keys for dropout every time."""
    torch.manual_seed(case.seed)
    return run(case, inputs, impl)


@interpreted
@pytest.mark.parametrize(
    "case",
    [
        GatedCase(lengths=(1, 1), details=True),
        GatedCase(lengths=(2,), hidden_dim=1, details=True, expansion=1),
        GatedCase(lengths=(3, 2, 1), hidden_dim=17, details=True),
        GatedCase(lengths=(5, 4), hidden_dim=3, attention=True, temperature=0.3),
        GatedCase(lengths=(5, 1, 3), forced=True, attention=True, score="scaled_dot"),
        GatedCase(lengths=(3, 5, 2), hidden_dim=6, sample=False, details=True, expansion=1),
        GatedCase(lengths=(4, 3), sample=False, forced=True, attention=True, extra_width=2),
        GatedCase(lengths=(1, 7, 1), hidden_dim=2, details=True, attention=True, leaf="lstm"),
        slow(GatedCase(lengths=(16, 17, 15), hidden_dim=16, attention=True, temperature=0.3)),
        slow(GatedCase(lengths=tuple(1 + i % 4 for i in range(50)), hidden_dim=33, details=True)),
        slow(GatedCase(lengths=(23, 1, 9), forced=True, attention=True, score="scaled_dot")),
        slow(GatedCase(lengths=(40, 3, 2), hidden_dim=3)),
        slow(GatedCase(lengths=(40, 15, 9), hidden_dim=2, details=True, sample=False)),
    ],
    ids=str,
)
def test_equals_exact(case: Case) -> None:
    check_float64(case)


@interpreted
@pytest.mark.parametrize(
    "case",
    [
        GatedCase(lengths=(2, 5, 1), hidden_dim=3, dropout=0.4, details=True, temperature=0.5),
        GatedCase(lengths=(4, 1, 6), dropout=0.1, attention=True, estimator="reinmax"),
        GatedCase(lengths=(1, 2, 6), dropout=0.5, estimator="spigot", expansion=1),
        GatedCase(lengths=(3, 5, 2), dropout=0.3, forced=True, details=True),
        GatedCase(lengths=(2, 6), dropout=0.3, sample=False, forced=True, attention=True),
        GatedCase(lengths=(1, 6, 2), dropout=0.6, sample=False, details=True, extra_width=2),
        slow(GatedCase(lengths=(13, 17, 2, 16), hidden_dim=16, dropout=0.2, details=True)),
        slow(GatedCase(lengths=(40, 3, 1), hidden_dim=2, dropout=0.4, leaf="lstm")),
        *[
            slow(GatedCase(lengths=(7, 2, 1, 4), hidden_dim=3, dropout=0.3, estimator=name))
            for name in ("st", "gapped", "gumbel_rao")
        ],
    ],
    ids=str,
)
def test_drops_the_same_units(case: GatedCase) -> None:
    check_float64(case)
    check_float64(case, "reference")


@interpreted
def test_dropout_changes_every_step() -> None:
    # otherwise the comparisons above could compare nothing
    cases = [GatedCase(lengths=(5, 2), dropout=rate, details=True) for rate in (0.0, 0.4)]
    inputs = make_inputs(cases[0])
    plain, dropped = (run(case, inputs, "fused").values["h"] for case in cases)
    parents = plain[0, 5:].abs().sum(1) > 0
    assert parents.tolist() == [True] * 4
    assert ((plain - dropped)[0, 5:].abs().amax(1) > 1e-3).all()
    assert torch.equal(plain[:, :5], dropped[:, :5])


@interpreted
@pytest.mark.parametrize("sample", [True, False])
def test_dropout_with_spare_rows(sample: bool) -> None:
    # the caller's order differs from that by length, and the bounds exceed the sizes
    lengths, T, cap = [2, 4, 1, 5], 7, 15
    noise = sentence_keys(3, 1, torch.arange(4)) if sample else None
    words = torch.randn(cap, 3, dtype=torch.float64)
    results = []
    exact = Layout.of(Arrangement.of(np.array(lengths), 5))
    for impl, layout in (("exact", exact), ("fused", layout_of(lengths, T, cap))):
        encoder = random_encoder(cell=DROPPING, leaf="norm")
        encoder.config = dataclasses.replace(encoder.config, impl=impl)
        results.append(run_packed(encoder, words[: layout.cap], layout, noise))
    expected, result = results
    assert torch.equal(result["order"][:, :4], expected["order"])
    assert not result["d words"][12:].any()
    result["d words"] = result["d words"][:12]
    for name, x in expected.items():
        # the logarithms of the noise differ in the last bit of float32
        size = max(1.0, float(x.abs().max())) * (1e-6 if sample else 1e-10)
        if name != "order":
            torch.testing.assert_close(result[name], x, rtol=0, atol=size, msg=name)


@interpreted
@pytest.mark.parametrize("trees", ["left", "random", "balanced"])
def test_dropout_with_fixed_trees(trees: str) -> None:
    words, lengths = torch.randn(3, 6, 3, dtype=torch.float64), torch.tensor([2, 6, 1])
    results = []
    for impl in ("exact", "fused"):
        encoder = random_encoder(cell=DROPPING, leaf="norm", trees=trees)
        encoder.config = dataclasses.replace(encoder.config, impl=impl)
        torch.manual_seed(3)
        vector = encoder(words, lengths).vector
        vector.sin().sum().backward()
        results.append([vector, *(p.grad for p in encoder.parameters())])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@interpreted
@settings(max_examples=15)
@given(
    st.builds(
        GatedCase,
        lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple),
        # the normalised state of a single unit is constant, and its gradients are rounding errors
        hidden_dim=st.sampled_from([3, 5, 10]),
        expansion=st.integers(1, 4),
        dropout=st.sampled_from([0.0, 0.1, 0.5]),
        leaf=st.sampled_from(["affine", "norm"]),
        **dict.fromkeys(["sample", "forced", "attention", "details", "ledger"], st.booleans()),
        temperature=st.sampled_from([0.3, 1.0, 3.0]),
        score=st.sampled_from(["dot", "scaled_dot"]),
        extra_width=st.integers(0, 2),
        seed=st.integers(0, 10**6),
    )
)
def test_random_cases_equal_exact(case: Case) -> None:
    check_float64(case)


@interpreted
def test_several_tiles_blocks_and_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"ieee": Tile(2, 8, 4, 4, 3)}
    for module, name in (
        (gated_forward, "PROJECT"),
        (gated_forward, "GATES"),
        (gated_backward, "INNER"),
        (gated_backward, "UNDO"),
    ):
        monkeypatch.setattr(module, name, small)
    for module in (gated_forward, gated_backward):
        monkeypatch.setattr(module, "PAIRS", (2, 8, 4))
    monkeypatch.setattr(gated_forward, "NUMBERS", 32)
    monkeypatch.setattr(gated_backward, "BLOCK", 8)
    case = GatedCase(lengths=(4, 1, 3), hidden_dim=3, details=True, expansion=3)
    check_float64(case)
    monkeypatch.setattr(gated_forward, "CODES", 2)
    check_float64(dataclasses.replace(case, dropout=0.3))


@interpreted
def test_float32_is_as_exact_as_exact() -> None:
    case = GatedCase(lengths=(4, 2, 1), hidden_dim=10, details=True)
    inputs = make_inputs(case)
    truth = run(case, inputs, "reference")
    exact, narrow = (
        errors(truth, run(case, inputs, impl, torch.float32, truth.order))
        for impl in ("exact", "fused")
    )
    for name, error in narrow.items():
        assert error <= 3 * exact[name] + 2e-6, (name, error, exact[name])


@interpreted
def test_gives_the_same_without_gradients() -> None:
    encoder = GumbelTreeEncoder(EncoderConfig(3, 6, cell="gated", leaf="norm", impl="fused"))
    words, lengths = torch.randn(3, 4, 3), torch.tensor([4, 2, 1])

    def encode() -> list[Tensor]:
        result = encoder(words, lengths, sample=False, details=True)
        return [result.order, result.vector, result.nodes.h, result.nodes.c, result.scores]

    recorded = encode()
    with torch.no_grad():
        for x, y in zip(recorded, encode(), strict=True):
            assert torch.equal(x, y)


@interpreted
def test_second_derivatives_are_rejected() -> None:
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4, cell="gated", impl="fused"))
    words = torch.randn(2, 3, 3, requires_grad=True)
    vector = encoder(words, torch.tensor([3, 2])).vector
    (gradient,) = torch.autograd.grad(vector.sum(), words, create_graph=True)
    with pytest.raises(RuntimeError, match=r"'fused'.*second derivatives"):
        gradient.sum().backward()


@interpreted
def test_unsupported_cases_are_explained() -> None:
    class Other(GatedCell):
        pass

    def reason(cell: GatedCell, estimator: object = None) -> str | None:
        estimator = estimator or StraightThroughGumbel()
        return fused.unsupported(cell, estimator, True, by_name=True)

    with torch.device("meta"):
        wide = GatedCell(1025)
    assert reason(GatedCell(4)) is None
    assert reason(GatedCell(4, GatedConfig(dropout=0.4))) is None
    assert "Other" in reason(Other(4))
    assert "SoftGumbel" in reason(GatedCell(4), SoftGumbel())
    assert "1025" in reason(wide)
    assert "float32" in reason(GatedCell(4).bfloat16())


# Compiled kernels


@pytest.mark.gpu
def test_gpu_is_chosen_by_default() -> None:
    assert choose("auto", GatedCell(8).cuda(), StraightThroughGumbel(), True).name == "fused"


@pytest.mark.gpu
@pytest.mark.parametrize("cell", ["gated", DROPPING], ids=["plain", "dropout"])
@pytest.mark.parametrize("D", [32, 100, 128, 300, 1024])
def test_gpu_ieee_equals_exact(D: int, cell: Any) -> None:
    exact, free = run_compiled("exact", D, cell=cell), run_compiled("fused", D, cell=cell)
    made = exact.order >= 0
    assert torch.equal(made, free.order >= 0)
    assert (exact.order == free.order)[made].float().mean() > 0.999
    forced = run_compiled("fused", D, order=exact.order, cell=cell)
    assert torch.equal(forced.order, exact.order)
    worst = distance(run_compiled("exact", D, order=exact.order, cell=cell), forced)
    assert max(worst.values()) < 1e-4, worst


@pytest.mark.gpu
@pytest.mark.parametrize("cell", ["gated", DROPPING], ids=["plain", "dropout"])
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_gpu_narrow_products_are_as_exact_as_those_of_torch(precision: str, cell: Any) -> None:
    sizes = {"sentences": 64, "longest": 24, "cell": cell}
    truth = run_compiled("reference", 128, dtype=torch.float64, **sizes)
    plain, narrow = (
        distance(truth, run_compiled(impl, 128, order=truth.order, precision=precision, **sizes))
        for impl in ("reference", "fused")
    )
    for name, error in narrow.items():
        # a few sentences whose normalised sums are small dominate the error, so that it varies
        # tenfold between inputs, in both implementations
        assert error <= 5 * plain[name] + 1e-3, (name, narrow, plain)
    assert narrow["vector"] > 1e-5, "the products were IEEE"


@pytest.mark.gpu
@pytest.mark.parametrize(("sentences", "longest"), [(90, 90), (1, 300)])
def test_gpu_long_sentences_equal_exact(sentences: int, longest: int) -> None:
    sizes = {"sentences": sentences, "longest": longest, "cell": "gated"}
    exact = run_compiled("exact", 64, **sizes)
    worst = distance(
        run_compiled("exact", 64, order=exact.order, **sizes),
        run_compiled("fused", 64, order=exact.order, **sizes),
    )
    assert max(worst.values()) < 1e-4, worst


@pytest.mark.gpu
@pytest.mark.parametrize("cell", ["gated", DROPPING], ids=["plain", "dropout"])
@pytest.mark.parametrize(
    ("sentences", "longest", "D", "precision"),
    [(128, 40, 128, "tf32"), (16, 40, 300, "tf32"), (1, 30, 100, "tf32"), (64, 20, 128, "bf16")],
)
def test_gpu_chained_kernels_give_identical_bits(
    sentences: int,
    longest: int,
    D: int,
    precision: str,
    cell: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("chains need compute capability 9.0")
    sizes = {"sentences": sentences, "longest": longest, "cell": cell, "precision": precision}
    runs = [run_compiled("fused", D, **sizes) for _ in range(5)]
    for module in (gated_backward, gated_forward, fused_lstm):
        monkeypatch.setattr(module, "chain_options", lambda *_: {"CHAIN": False})
    apart = run_compiled("fused", D, **sizes)
    for chained in runs:
        assert torch.equal(chained.order, apart.order)
        for name, x in apart.values.items():
            assert torch.equal(chained.values[name], x), name
