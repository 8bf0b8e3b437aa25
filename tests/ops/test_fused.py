"""Test that `fused` equals `reference`: in Triton's interpreter on a CPU, compiled on a GPU."""

import dataclasses
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

from gumbeltree import EncoderConfig, GumbelTreeEncoder
from gumbeltree.config import EncoderSettings
from gumbeltree.device import triton_support
from gumbeltree.device.triton_support import Tile
from gumbeltree.layout import Arrangement, Layout, Sentences
from gumbeltree.nn.cells.treelstm import TreeLSTMCell
from gumbeltree.nn.encoders.tree_encoder import TreeEncoder
from gumbeltree.nn.estimators.soft import SoftGumbel
from gumbeltree.nn.estimators.st_gumbel import StraightThroughGumbel
from gumbeltree.noise import gumbel_noise, keyed_noise, sentence_keys
from gumbeltree.ops.lstm import fused as fused_lstm
from gumbeltree.ops.merge import exact, fused
from gumbeltree.ops.merge.problem import TreeProblem
from gumbeltree.parts import ENCODERS
from gumbeltree.states import Draw
from tests.models import encoder_settings
from tests.ops.comparison import TEMPERATURES, Case, Result, cases, errors, make_inputs, run

pytest.importorskip("triton")
fused_backward = pytest.importorskip("gumbeltree.ops.merge.fused.backward")
fused_forward = pytest.importorskip("gumbeltree.ops.merge.fused.forward")

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")


def slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


def check_float64(case: Case) -> None:
    inputs = make_inputs(case)
    reference, result = run(case, inputs, "reference"), run(case, inputs, "fused")
    assert torch.equal(reference.order, result.order)
    worst = errors(reference, result)
    assert max(worst.values()) < 1e-10, worst


# The time in the interpreter grows with the number of programs, hardly with the size of tiles.


@interpreted
@pytest.mark.parametrize(
    "case",
    [
        Case(lengths=(1, 1), details=True),
        Case(lengths=(2,), hidden_dim=1, details=True),
        Case(lengths=(3, 2, 1), hidden_dim=17, details=True, leaf="lstm"),
        Case(lengths=(5, 6), hidden_dim=3, attention=True, temperature=0.3),
        Case(lengths=(6, 1, 3), forced=True, attention=True, score="scaled_dot"),
        Case(lengths=(3, 5, 2), hidden_dim=6, sample=False, details=True),
        Case(lengths=(4, 3), sample=False, forced=True, attention=True, extra_width=2),
        # more words than the smallest block; few and many nodes per layer in a sparse layout
        Case(lengths=(1, 17, 1), hidden_dim=2, details=True, attention=True, temperature=0.5),
        slow(Case(lengths=(16, 17, 15), hidden_dim=16, attention=True, temperature=0.3)),
        slow(Case(lengths=tuple(1 + i % 4 for i in range(50)), hidden_dim=33, details=True)),
        slow(Case(lengths=(23, 1, 9), forced=True, attention=True, score="scaled_dot")),
        slow(Case(lengths=(70, 3, 2), hidden_dim=2)),
        slow(Case(lengths=(64, 15, 9), hidden_dim=2, details=True, sample=False)),
    ],
    ids=str,
)
def test_equals_reference(case: Case) -> None:
    check_float64(case)


@pytest.mark.slow
@interpreted
@given(cases([t for t in TEMPERATURES if t >= 0.3]))
def test_random_cases_equal_reference(case: Case) -> None:
    check_float64(case)


@interpreted
def test_several_tiles_of_sentences_and_units(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((fused_forward, "PROJECT"), (fused_backward, "UNDO")):
        monkeypatch.setattr(module, name, {"ieee": Tile(2, 8, 4, 4, 3)})
    check_float64(Case(lengths=(4, 1, 3, 3), hidden_dim=5, details=True))


@interpreted
@pytest.mark.parametrize(
    "case",
    [
        Case(lengths=(7, 5), hidden_dim=3, forced=True, attention=True, extra_width=2),
        Case(lengths=(2, 6, 1), hidden_dim=3, sample=False, details=True),
    ],
    ids=str,
)
def test_several_blocks_of_nodes(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    send_in_blocks(monkeypatch)
    check_float64(case)


def send_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use programs of four nodes in all layouts."""
    blocks = dict.fromkeys(fused_backward.SEND, fused_backward.SEND["few"])
    monkeypatch.setattr(fused_backward, "SEND", blocks)


@interpreted
def test_wide_states_in_sparse_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    # six parts of 8 of the 45 gate gradients, none of them empty
    monkeypatch.setattr(fused_backward, "WIDE", 2)
    monkeypatch.setattr(fused_backward, "UNDO", {"ieee": Tile(32, 32, 8, 4, 3)})
    check_float64(Case(lengths=(5, 1, 2, 1), hidden_dim=9, details=True, temperature=0.5))


@interpreted
@pytest.mark.parametrize("lengths", [(4, 3), (5, 1, 1)], ids=["dense", "sparse"])
def test_several_blocks_of_units(lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_backward, "UNITS", {"dense": 4, "sparse": 2})
    check_float64(Case(lengths=lengths, hidden_dim=5, temperature=0.5))


def test_density_is_judged_by_the_bounds() -> None:
    assert layout_of([5, 5, 4], 5, 14).dense
    assert not layout_of([9, 2, 1], 9, 12).dense
    assert layout_of([9, 2, 1], 9, 14).dense


@interpreted
def test_float32_is_as_exact_as_reference() -> None:
    worst: dict[str, dict[str, float]] = {"reference": {}, "fused": {}}
    for seed in range(2):
        case = Case(lengths=(5, 3, 1), hidden_dim=10, leaf="lstm", details=True, seed=seed)
        inputs = make_inputs(case)
        truth = run(case, inputs, "reference")
        for impl, largest in worst.items():
            narrow = run(case, inputs, impl, torch.float32, truth.order)
            for name, error in errors(truth, narrow).items():
                largest[name] = max(error, largest.get(name, 0.0))
    for name, error in worst["fused"].items():
        assert error <= 2 * worst["reference"][name] + 1e-6, name


@interpreted
def test_gives_the_same_without_gradients() -> None:
    case = Case(lengths=(4, 2, 1))
    inputs = make_inputs(case)
    encoder = GumbelTreeEncoder(dataclasses.replace(case.config, impl="fused")).double()
    encoder.load_state_dict(inputs.state)

    def encode() -> list[Tensor]:
        result = encoder(inputs.words, inputs.lengths, noise=inputs.noise, details=True)
        return [result.order, result.vector, result.nodes.h, result.nodes.c, result.scores]

    recorded = encode()
    with torch.no_grad():
        for x, y in zip(recorded, encode(), strict=True):
            assert torch.equal(x, y)


@interpreted
def test_second_derivatives_are_rejected() -> None:
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4, impl="fused"))
    words = torch.randn(2, 3, 3, requires_grad=True)
    vector = encoder(words, torch.tensor([3, 2])).vector
    (gradient,) = torch.autograd.grad(vector.sum(), words, create_graph=True)
    with pytest.raises(RuntimeError, match=r"'fused'.*second derivatives"):
        gradient.sum().backward()


@interpreted
def test_unsupported_cases_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(TreeLSTMCell):
        pass

    def reason(cell: TreeLSTMCell, estimator: object = None, sample: bool = True) -> str | None:
        estimator = estimator or StraightThroughGumbel()
        return fused.unsupported(cell, estimator, sample, by_name=True)

    with torch.device("meta"):
        wide = TreeLSTMCell(1025)
    assert reason(TreeLSTMCell(4)) is None
    assert "Other" in reason(Other(4))
    assert "SoftGumbel" in reason(TreeLSTMCell(4), SoftGumbel())
    # greedy choices need no estimator
    assert reason(TreeLSTMCell(4), SoftGumbel(), sample=False) is None
    assert "bfloat16" in reason(TreeLSTMCell(4).bfloat16())
    assert "1025" in reason(wide)
    monkeypatch.delenv("TRITON_INTERPRET")
    assert "CUDA" in reason(TreeLSTMCell(4))


# Layouts with spare rows and steps, as in captured graphs


def layout_of(lengths: list[int], T: int, cap: int) -> Layout:
    """Return a layout with room for longer sentences and more words than there are."""
    arrangement = Arrangement.of(np.array(lengths), T)
    sizes, sentence, rank, start = map(torch.from_numpy, arrangement)
    return Layout(cap, start, sizes, sentence, rank)


def make_encoder(config: EncoderSettings) -> TreeEncoder:
    return ENCODERS[config.kind](config)


def random_encoder(dtype: torch.dtype = torch.float64, **settings: object) -> TreeEncoder:
    generator = torch.Generator().manual_seed(4)
    encoder = make_encoder(encoder_settings(embedding_dim=3, impl="fused", **settings)).to(dtype)
    with torch.no_grad():
        for p in encoder.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.7)
    return encoder


def run_packed(
    encoder: TreeEncoder, words: Tensor, layout: Layout, keys: Tensor | None
) -> dict[str, Tensor]:
    """Encode packed words; return order, vectors, and gradients of words and parameters."""
    words = words.clone().requires_grad_()
    temperature = torch.full((), 0.5, dtype=words.dtype)
    # for the keys of dropout inside the cell
    torch.manual_seed(1)
    encoding = encoder(Sentences(words, layout), draw=Draw(keys, temperature))
    loss = (encoding.vector * torch.arange(1.0, 7)).square().sum()
    named = {"words": words, **dict(encoder.named_parameters())}
    gradients = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
    values = {f"d {name}": x for name, x in zip(named, gradients, strict=True)}
    return {"order": encoding.order, "vector": encoding.vector.detach(), **values}


PACKED = [
    ({}, True),
    ({"leaf": "lstm"}, False),
    ({"leaf": "bilstm", "attention": True}, True),
    ({"trees": "balanced"}, False),
    ({"trees": "random"}, True),
    ({"cell": "gated", "leaf": "norm"}, True),
    ({"cell": "gated", "leaf": "norm", "attention": True}, False),
    slow({}, False),
    slow({"leaf": "lstm"}, True),
    slow({"leaf": "bilstm", "attention": True}, False),
    slow({"trees": "balanced"}, True),
    slow({"trees": "random"}, False),
]


@interpreted
@pytest.mark.parametrize(("settings", "sample"), PACKED, ids=str)
def test_packed_sentences_equal_padded_ones(settings: dict[str, object], sample: bool) -> None:
    # the kernels compute the noise of `keyed_noise` from the keys
    lengths, T, cap = [2, 4, 1], 6, 9
    encoder = random_encoder(**settings)
    encoder.temperature = 0.5
    keys = sentence_keys(3, 1, torch.tensor([5, 2**33, 7]))
    padded = torch.randn(3, T, 3, dtype=torch.float64, requires_grad=True)
    packed = Sentences.padded(padded, torch.tensor(lengths)).words
    words = torch.cat([packed.detach(), torch.zeros(cap - 7, 3)]).double()
    result = run_packed(encoder, words, layout_of(lengths, T, cap), keys if sample else None)
    plain = make_encoder(dataclasses.replace(encoder.config, impl="exact")).double()
    plain.load_state_dict(encoder.state_dict())
    plain.temperature = 0.5
    noise = keyed_noise(keys, T)
    expected = plain(padded, torch.tensor(lengths), noise=noise, sample=sample)
    assert torch.equal(result["order"], expected.order)
    torch.testing.assert_close(result["vector"], expected.vector.detach(), rtol=1e-6, atol=1e-6)
    loss = (expected.vector * torch.arange(1.0, 7)).square().sum()
    named = {"words": padded, **dict(plain.named_parameters())}
    gradients = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
    assert not result["d words"][7:].any()
    result["d words"] = result["d words"][:7]
    for name, gradient in zip(named, gradients, strict=True):
        if name == "words":
            gradient = Sentences.padded(gradient, torch.tensor(lengths)).words
        tolerance = 1e-6 * max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(result[f"d {name}"], gradient, rtol=1e-5, atol=tolerance)


@interpreted
@pytest.mark.parametrize(
    ("settings", "sample", "blocks"),
    [
        ({"leaf": "bilstm", "attention": True}, True, True),
        ({"leaf": "lstm"}, False, False),
        ({"cell": "gated", "leaf": "norm", "attention": True}, True, False),
        ({"cell": "gated", "leaf": "norm"}, False, False),
        ({"cell": {"kind": "gated", "dropout": 0.4}, "leaf": "norm"}, True, False),
        slow({"leaf": "lstm"}, True, True),
        slow({"leaf": "bilstm", "attention": True}, False, False),
    ],
)
def test_uninitialized_memory_is_never_read(
    settings: dict[str, object], sample: bool, blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if blocks:
        send_in_blocks(monkeypatch)
    encoder = random_encoder(torch.float32, **settings)
    layout = layout_of([2, 5, 1], 6, 10)
    keys = sentence_keys(0, 0, torch.arange(3)) if sample else None
    words = torch.randn(10, 3)

    def run_filled(value: float) -> dict[str, Tensor]:
        """Encode with `value` in all memory that is allocated uninitialized."""
        sizes: list[int] = []

        def fill(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
            def empty(*arguments: object, **options: object) -> Tensor:
                x = function(*arguments, **options)
                sizes.append(x.numel())
                return x.fill_(value) if x.is_floating_point() else x.fill_(10**9)

            return empty

        allocators = [(torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")]
        with monkeypatch.context() as patch:
            for owner, name in allocators:
                patch.setattr(owner, name, fill(getattr(owner, name)))
            result = run_packed(encoder, words, layout, keys)
        assert len(sizes) > 4, "memory is allocated by functions that this test does not know"
        return result

    poisoned, other = run_filled(torch.nan), run_filled(-3.0)
    for name, x in poisoned.items():
        assert x.isfinite().all(), name
        assert torch.equal(x, other[name]), name
    # nor do the spare rows of words matter
    words[8:] = 1e4
    again = run_packed(encoder, words, layout, keys)
    assert not again["d words"][8:].any()
    for name, x in poisoned.items():
        # sums over all rows can be in another order
        torch.testing.assert_close(again[name], x, rtol=1e-5, atol=1e-5, msg=name)


def small_problem(leaves: Tensor, layout: Layout, **fields: object) -> TreeProblem:
    encoder = random_encoder(leaves.dtype)
    keys = sentence_keys(0, 0, torch.arange(layout.B))
    values = {"query": encoder.query, "temperature": torch.ones(()), "noise": keys, **fields}
    return TreeProblem(
        leaves, layout, encoder.cell, scale=1.0, estimator=encoder.estimator, sample=True, **values
    )


@interpreted
def test_spare_leaves_are_ignored() -> None:
    layout = layout_of([2, 4, 1], 5, 9)
    results = []
    for value in (0.0, torch.nan):
        leaves = torch.randn(9, 12, generator=torch.Generator().manual_seed(1))
        leaves[7:] = value
        problem = small_problem(leaves.requires_grad_(), layout)
        result = fused.build_tree(problem)
        inputs = [leaves, problem.cell.weight, problem.cell.bias, problem.query]
        gradients = torch.autograd.grad(result.vector.square().sum(), inputs)
        assert not gradients[0][7:].any()
        results.append([result.order, result.vector, *gradients])
    for x, y in zip(*results, strict=True):
        assert x.isfinite().all()
        assert torch.equal(x, y)


@interpreted
def test_nan_scores_merge_from_the_left() -> None:
    layout = Layout.of(Arrangement.of(np.array([4, 2]), 4))
    query = torch.full((6,), torch.nan)
    problem = small_problem(torch.randn(6, 12), layout, query=query, temperature=1.0)
    with torch.no_grad():
        result, expected = fused.build_tree(problem), exact.build_tree(problem)
    assert result.order.tolist() == expected.order.tolist() == [[0, 0, 0], [0, -1, -1]]
    torch.testing.assert_close(result.vector, expected.vector)


@interpreted
def test_near_ties_merge_from_the_left() -> None:
    # equal words, so only the noise distinguishes the two candidates of each sentence
    noise = torch.zeros(2, 2, 2)
    noise[:, 0, 1] = torch.tensor([1e-7, 1e-4])
    layout = Layout.of(Arrangement.of(np.array([3, 3]), 3))
    problem = small_problem(torch.randn(12).expand(6, 12), layout, noise=noise)
    with torch.no_grad():
        assert fused.build_tree(problem).order.tolist() == [[0, 0], [1, 0]]


# Compiled kernels


def run_compiled(
    impl: str,
    D: int,
    order: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    precision: str = "ieee",
    sentences: int = 100,
    longest: int = 30,
    cell: str | dict[str, object] = "treelstm",
) -> Result:
    """Encode random sentences on the GPU, with an LSTM leaf."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    encoder = GumbelTreeEncoder(EncoderConfig(20, D, impl=impl, leaf="lstm", cell=cell))
    with torch.no_grad():
        for name, p in encoder.named_parameters():
            # a large query, so that the trees depend on the words
            size = {"query": 0.3, "cell.gain": 1.0}.get(name, p.shape[-1] ** -0.5)
            p.copy_(draw(*p.shape) * size)
    encoder.to("cuda", dtype)
    words = draw(sentences, longest, 20).to("cuda", dtype).requires_grad_()
    lengths = longest - torch.arange(sentences, device="cuda") % longest
    noise = gumbel_noise((sentences, longest - 1, longest - 1), generator=generator).cuda()
    cotangent = draw(sentences, D).to("cuda")
    # for the keys of dropout inside the cell
    torch.manual_seed(1)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            encoding = encoder(words, lengths, noise=noise, sample=True, order=order)
        loss = (encoding.vector * cotangent).sum()
        named = {"words": words, **dict(encoder.named_parameters())}
        gradients = torch.autograd.grad(loss, list(named.values()))
    finally:
        torch.set_float32_matmul_precision(before)
    values = {"vector": encoding.vector.detach().double()}
    for name, gradient in zip(named, gradients, strict=True):
        values[f"d {name}"] = gradient.double()
    return Result(encoding.order, values)


def distance(truth: Result, other: Result) -> dict[str, float]:
    """Return the norm of each value's error relative to the norm of the truth."""
    relative = {
        name: float((other.values[name] - x).norm() / x.norm()) for name, x in truth.values.items()
    }
    return {name: math.inf if math.isnan(x) else x for name, x in relative.items()}


@pytest.mark.gpu
@pytest.mark.parametrize("D", [32, 100, 300, 600, 1024])
def test_gpu_ieee_equals_exact(D: int) -> None:
    exact, free = run_compiled("exact", D), run_compiled("fused", D)
    made = exact.order >= 0
    assert torch.equal(made, free.order >= 0)
    assert (exact.order == free.order)[made].float().mean() > 0.999
    forced = run_compiled("fused", D, order=exact.order)
    assert torch.equal(forced.order, exact.order)
    worst = distance(run_compiled("exact", D, order=exact.order), forced)
    assert max(worst.values()) < 1e-4, worst


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
@pytest.mark.parametrize("D", [100, 300])
def test_gpu_narrow_products_are_as_exact_as_those_of_torch(D: int, precision: str) -> None:
    sizes = {"sentences": 64, "longest": 24}
    truth = run_compiled("reference", D, dtype=torch.float64, **sizes)
    exact, narrow = (
        distance(truth, run_compiled(impl, D, order=truth.order, precision=precision, **sizes))
        for impl in ("exact", "fused")
    )
    for name, error in narrow.items():
        assert error <= 2 * exact[name] + 1e-3, (name, narrow, exact)
    assert narrow["vector"] > 1e-5, "the products were IEEE"


@pytest.mark.gpu
def test_gpu_long_sentences_equal_exact() -> None:
    sizes = {"sentences": 90, "longest": 90}
    exact = run_compiled("exact", 64, **sizes)
    worst = distance(
        run_compiled("exact", 64, order=exact.order, **sizes),
        run_compiled("fused", 64, order=exact.order, **sizes),
    )
    assert max(worst.values()) < 1e-4, worst


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("sentences", "longest", "D", "precision"),
    [
        (256, 40, 300, "tf32"),
        # few programs, so some multiprocessors are idle
        (16, 40, 300, "tf32"),
        (1, 30, 100, "tf32"),
        # a sparse and a dense layout
        (64, 40, 600, "tf32"),
        (20, 10, 600, "tf32"),
        (64, 20, 300, "bf16"),
    ],
)
def test_gpu_chained_kernels_give_identical_bits(
    sentences: int, longest: int, D: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("chains need compute capability 9.0")
    sizes = {"sentences": sentences, "longest": longest}
    runs = [run_compiled("fused", D, precision=precision, **sizes) for _ in range(5)]
    for module in (fused_backward, fused_forward, fused_lstm):
        monkeypatch.setattr(module, "chain_options", lambda *_: {"CHAIN": False})
    apart = run_compiled("fused", D, precision=precision, **sizes)
    for chained in runs:
        assert torch.equal(chained.order, apart.order)
        for name, x in apart.values.items():
            assert torch.equal(chained.values[name], x), name


@pytest.mark.parametrize(
    ("version", "capability", "chained"),
    [
        ("13.0", (9, 0), True),
        ("13.0", (12, 0), True),
        ("13.0", (8, 9), False),
        (None, (9, 4), False),
    ],
)
def test_kernels_are_chained_where_supported(
    version: str | None,
    capability: tuple[int, int],
    chained: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class OnCard:
        is_cuda, device = True, torch.device("cuda", 0)

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    card, apart = cast(Tensor, OnCard()), {"CHAIN": False}
    for precision in ("tf32", "bf16"):
        options = triton_support.chain_options(card, precision)
        assert options == ({"CHAIN": True, "launch_pdl": True} if chained else apart)
    assert triton_support.chain_options(card, "ieee") == apart
    assert triton_support.chain_options(torch.zeros(1), "tf32") == apart
    # neither the interpreter nor older versions of Triton support it
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert triton_support.chain_options(card, "tf32") == apart
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr("triton.__version__", "3.4.0")
    assert triton_support.chain_options(card, "tf32") == apart


@pytest.mark.parametrize(
    ("capability", "D", "assemble"),
    [
        (90, 300, False),
        *[
            pytest.param(*case, True, marks=pytest.mark.slow)
            for case in ((90, 300), (90, 1024), (86, 300), (86, 1024), (80, 300), (75, 100))
        ],
    ],
)
def test_kernels_compile(capability: int, D: int, assemble: bool, tmp_path: Path) -> None:
    # the interpreter accepts Python that the compiler rejects
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.ops.compile_kernels", str(capability), str(D)]
    if not assemble:
        command.append(str(tmp_path))
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "send_kernel" in result.stdout
