"""fused == reference: order, vector, every gradient; interpreted on a CPU, compiled on a GPU."""

import dataclasses
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from gumbeltree import EncoderConfig, GumbelTreeEncoder
from gumbeltree.config import EncoderSettings
from gumbeltree.device import triton_support
from gumbeltree.layout import Arrangement, Layout, Sentences
from gumbeltree.nn.cells.treelstm import TreeLSTMCell
from gumbeltree.nn.encoders.tree_encoder import TreeEncoder
from gumbeltree.nn.estimators.soft import SoftGumbel
from gumbeltree.nn.estimators.st_gumbel import StraightThroughGumbel
from gumbeltree.noise import gumbel_noise, keyed_noise, sentence_keys
from gumbeltree.ops.lstm import fused as fused_lstm
from gumbeltree.ops.merge import choose, fused
from gumbeltree.ops.merge.problem import TreeProblem
from gumbeltree.parts import ENCODERS
from gumbeltree.states import Draw
from tests.models import encoder_settings
from tests.ops.comparison import TEMPERATURES, Case, cases, errors, make_inputs, run

pytest.importorskip("triton")
fused_backward = pytest.importorskip("gumbeltree.ops.merge.fused.backward")
fused_forward = pytest.importorskip("gumbeltree.ops.merge.fused.forward")

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")

HARD = [
    Case(lengths=(1,), details=True),
    Case(lengths=(1, 1, 1), hidden_dim=3),
    Case(lengths=(2,), hidden_dim=1, details=True),
    Case(lengths=(3, 2, 1), hidden_dim=17, details=True, leaf="lstm"),
    Case(lengths=(16, 17, 15), hidden_dim=16, attention=True, temperature=0.3),
    # more sentences than a tile, more units than a tile, lengths that end one after the other
    Case(lengths=tuple(1 + i % 4 for i in range(36)), hidden_dim=33, details=True),
    Case(lengths=(23, 1, 9), hidden_dim=5, forced=True, attention=True, score="scaled_dot"),
    Case(lengths=(9, 14, 2), hidden_dim=6, sample=False, details=True),
    Case(lengths=(8, 5), hidden_dim=6, sample=False, forced=True, attention=True, extra_width=2),
]


def check_float64(case: Case) -> None:
    inputs = make_inputs(case)
    reference, found = run(case, inputs, "reference"), run(case, inputs, "fused")
    assert torch.equal(reference.order, found.order)
    worst = errors(reference, found)
    assert max(worst.values()) < 1e-10, worst


@interpreted
@pytest.mark.parametrize("case", HARD, ids=str)
def test_hard_cases(case: Case) -> None:
    check_float64(case)


@interpreted
@settings(max_examples=3)
@given(cases([t for t in TEMPERATURES if t >= 0.3]))
def test_fused_equals_reference_in_float64(case: Case) -> None:
    check_float64(case)


@pytest.mark.slow
@interpreted
@given(cases([t for t in TEMPERATURES if t >= 0.3]))
def test_many_cases(case: Case) -> None:
    check_float64(case)


@interpreted
def test_float32_is_as_exact_as_reference() -> None:
    worst: dict[str, dict[str, float]] = {"reference": {}, "fused": {}}
    for seed in range(2):
        case = Case(lengths=(13, 7, 2, 1), hidden_dim=10, leaf="lstm", details=True, seed=seed)
        inputs = make_inputs(case)
        truth = run(case, inputs, "reference")
        for impl, largest in worst.items():
            narrow = run(case, inputs, impl, torch.float32, truth.order)
            for name, error in errors(truth, narrow).items():
                largest[name] = max(error, largest.get(name, 0.0))
    for name, error in worst["fused"].items():
        assert error <= 2 * worst["reference"][name] + 1e-6, name


@interpreted
def test_twice_the_same_bits() -> None:
    case = Case(lengths=(9, 12, 3), hidden_dim=20, attention=True, details=True)
    inputs = make_inputs(case)
    first, again = (run(case, inputs, "fused", torch.float32) for _ in range(2))
    assert torch.equal(first.order, again.order)
    for name, x in first.values.items():
        assert torch.equal(x, again.values[name]), name


@interpreted
def test_no_second_derivative() -> None:
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4, impl="fused"))
    words = torch.randn(2, 5, 3, requires_grad=True)
    vector = encoder(words, torch.tensor([5, 3])).vector
    (gradient,) = torch.autograd.grad(vector.sum(), words, create_graph=True)
    with pytest.raises(RuntimeError, match="'fused' has first derivatives only"):
        gradient.sum().backward()


@interpreted
def test_it_is_never_chosen_on_a_cpu_by_itself() -> None:
    cell, estimator = TreeLSTMCell(4), StraightThroughGumbel()
    name, reason = choose("auto", cell, estimator, sample=True)
    assert name == "exact"
    assert reason == "not 'fused': its kernels run on CUDA devices, the weights are on cpu"
    assert choose("fused", cell, estimator, sample=True).name == "fused"


@interpreted
def test_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(TreeLSTMCell):
        pass

    estimator = StraightThroughGumbel()
    assert "TreeLSTMCell, got Other" in str(fused.unsupported(Other(4), estimator, True, True))
    soft = fused.unsupported(TreeLSTMCell(4), SoftGumbel(), True, True)
    assert "StraightThroughGumbel only, got SoftGumbel" in str(soft)
    # a greedy choice needs no estimator
    assert fused.unsupported(TreeLSTMCell(4), SoftGumbel(), False, True) is None
    narrow = fused.unsupported(TreeLSTMCell(4).bfloat16(), estimator, True, True)
    assert "the weights are torch.bfloat16" in str(narrow)
    with torch.device("meta"):
        wide = TreeLSTMCell(1025)
    assert "fit 1024 units, the cell has 1025" in str(
        fused.unsupported(wide, estimator, True, True)
    )
    monkeypatch.delenv("TRITON_INTERPRET")
    reason = fused.unsupported(TreeLSTMCell(4), estimator, True, True)
    assert "run on CUDA devices" in str(reason)


# sentences of more nodes than one program sends to


LONG = [
    # with gradients of scores from outside, and without
    Case(lengths=(3, 19, 1), hidden_dim=3, details=True, attention=True, temperature=0.5),
    pytest.param(Case(lengths=(70, 3, 2), hidden_dim=2), marks=pytest.mark.slow),
    pytest.param(
        Case(lengths=(64, 15, 9), hidden_dim=2, details=True, sample=False), marks=pytest.mark.slow
    ),
]


def send_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all layers sent to by programs of four nodes."""
    ways = dict.fromkeys(fused_backward.SEND, fused_backward.SEND["few"])
    monkeypatch.setattr(fused_backward, "SEND", ways)


@interpreted
@pytest.mark.parametrize("case", LONG, ids=str)
def test_long_sentences(case: Case) -> None:
    # layers of few and of many nodes, which only layouts that are not dense have
    assert max(case.lengths) > 2 * fused_backward.FEW
    assert not rows_of(list(case.lengths), max(case.lengths), sum(case.lengths)).dense
    check_float64(case)


@interpreted
@pytest.mark.parametrize(
    "case",
    [
        Case(lengths=(3, 2, 1), hidden_dim=17, details=True, leaf="lstm"),
        Case(lengths=(18, 9), hidden_dim=3, forced=True, attention=True, extra_width=2),
        Case(lengths=(9, 14, 2), hidden_dim=6, sample=False, details=True),
    ],
    ids=str,
)
def test_layers_in_several_blocks(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    send_in_blocks(monkeypatch)
    check_float64(case)


@interpreted
def test_wide_states_of_sentences_of_many_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    # their sums come in more parts: at this width none of the six is empty
    monkeypatch.setattr(fused_backward, "WIDE", 2)
    check_float64(Case(lengths=(7, 1, 2, 1), hidden_dim=33, details=True, temperature=0.5))


@interpreted
@pytest.mark.parametrize("lengths", [(6, 5), (10, 1, 2)], ids=["dense", "sparse"])
def test_states_of_more_units_than_a_program_sends(
    lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_backward, "UNITS", {"dense": 32, "sparse": 16})
    check_float64(Case(lengths=lengths, hidden_dim=33, temperature=0.5))


def test_dense_layouts() -> None:
    assert rows_of([5, 5, 4], 5, 14).dense
    assert not rows_of([9, 2, 1], 9, 12).dense
    # by the room for words, whatever is in it
    assert rows_of([9, 2, 1], 9, 14).dense


# rows with spare ones: what captured steps run


def rows_of(lengths: list[int], T: int, cap: int) -> Layout:
    """Return a layout of more words than there are, for longer sentences than there are."""
    arrangement = Arrangement.of(np.array(lengths), T)
    sizes, sentence, rank, start = map(torch.from_numpy, arrangement)
    return Layout(cap, start, sizes, sentence, rank)


def made(config: EncoderSettings) -> TreeEncoder:
    return ENCODERS[config.kind](config)


def rows_encoder(dtype: torch.dtype = torch.float64, **settings: object) -> TreeEncoder:
    generator = torch.Generator().manual_seed(4)
    encoder = made(encoder_settings(embedding_dim=3, impl="fused", **settings)).to(dtype)
    with torch.no_grad():
        for p in encoder.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.7)
    return encoder


def run_rows(
    encoder: TreeEncoder, words: Tensor, layout: Layout, keys: Tensor | None
) -> dict[str, Tensor]:
    """Encode rows; return the order, the vectors, and the gradients of words and parameters."""
    words = words.clone().requires_grad_()
    temperature = torch.full((), 0.5, dtype=words.dtype)
    encoding = encoder(Sentences(words, layout), draw=Draw(keys, temperature))
    names = ["words", *dict(encoder.named_parameters())]
    gradients = torch.autograd.grad(
        (encoding.vector * torch.arange(1.0, 7)).square().sum(),
        [words, *encoder.parameters()],
        materialize_grads=True,
    )
    values = {f"d {name}": x for name, x in zip(names, gradients, strict=True)}
    return {"order": encoding.order, "vector": encoding.vector.detach(), **values}


ROWS = [
    {},
    {"leaf": "lstm"},
    {"leaf": "bilstm", "attention": True},
    {"trees": "balanced"},
    {"trees": "random"},
]


@interpreted
@pytest.mark.parametrize("sample", [True, False])
@pytest.mark.parametrize("settings", ROWS, ids=str)
def test_rows_equal_padded_sentences(settings: dict[str, object], sample: bool) -> None:
    # the noise of the kernels is that of `keyed_noise`
    lengths, T, cap = [3, 6, 1, 2], 8, 15
    encoder = rows_encoder(**settings)
    encoder.temperature = 0.5
    layout = rows_of(lengths, T, cap)
    keys = sentence_keys(3, 1, torch.tensor([5, 0, 2**33, 7]))
    padded = torch.randn(4, T, 3, dtype=torch.float64, requires_grad=True)
    packed = Sentences.padded(padded, torch.tensor(lengths)).words
    words = torch.cat([packed.detach(), torch.zeros(cap - 12, 3)]).double()
    found = run_rows(encoder, words, layout, keys if sample else None)
    plain = made(dataclasses.replace(encoder.config, impl="exact")).double()
    plain.load_state_dict(encoder.state_dict())
    plain.temperature = 0.5
    noise = keyed_noise(keys, T)
    expected = plain(padded, torch.tensor(lengths), noise=noise, sample=sample)
    assert torch.equal(found["order"], expected.order)
    torch.testing.assert_close(found["vector"], expected.vector.detach(), rtol=1e-6, atol=1e-6)
    loss = (expected.vector * torch.arange(1.0, 7)).square().sum()
    named = dict(plain.named_parameters())
    dpadded, *gradients = torch.autograd.grad(
        loss, [padded, *named.values()], materialize_grads=True
    )
    torch.testing.assert_close(
        found["d words"][:12],
        Sentences.padded(dpadded, torch.tensor(lengths)).words,
        rtol=1e-5,
        atol=1e-6,
    )
    assert not found["d words"][12:].any()
    for name, gradient in zip(named, gradients, strict=True):
        largest = float(gradient.abs().max())
        torch.testing.assert_close(
            found[f"d {name}"], gradient, rtol=1e-5, atol=1e-6 * max(1.0, largest)
        )


@interpreted
@pytest.mark.parametrize(
    ("settings", "sample", "long"),
    [
        ({"leaf": "lstm"}, True, True),
        ({"leaf": "lstm"}, False, False),
        ({"leaf": "bilstm", "attention": True}, True, False),
        ({"leaf": "bilstm", "attention": True}, False, True),
    ],
)
def test_memory_that_nothing_wrote_is_never_read(
    settings: dict[str, object], sample: bool, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if long:
        send_in_blocks(monkeypatch)
    encoder = rows_encoder(torch.float32, **settings)
    layout = rows_of([3, 5, 1, 2], 7, 16)
    keys = sentence_keys(0, 0, torch.arange(4)) if sample else None
    words = torch.randn(16, 3)

    def filled(value: float) -> dict[str, Tensor]:
        """Run with `value` in all memory that is asked for without zeros."""
        taken: list[int] = []

        def fill(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
            def empty(*given: object, **options: object) -> Tensor:
                x = function(*given, **options)
                taken.append(x.numel())
                return x.fill_(value) if x.is_floating_point() else x.fill_(10**9)

            return empty

        with monkeypatch.context() as patch:
            for owner, name in (
                (torch, "empty"),
                (torch, "empty_like"),
                (torch.Tensor, "new_empty"),
            ):
                patch.setattr(owner, name, fill(getattr(owner, name)))
            result = run_rows(encoder, words, layout, keys)
        # so that this test notices if memory comes from elsewhere
        assert len(taken) > 4
        return result

    poisoned, other = filled(torch.nan), filled(-3.0)
    for name, x in poisoned.items():
        assert x.isfinite().all(), name
        assert torch.equal(x, other[name]), name
    # nor do spare rows of words matter, which are finite
    words[11:] = 1e4
    again = run_rows(encoder, words, layout, keys)
    assert not again["d words"][11:].any()
    for name, x in poisoned.items():
        # sums over all rows may be in another order
        torch.testing.assert_close(again[name], x, rtol=1e-5, atol=1e-5, msg=name)


@interpreted
def test_spare_leaves_may_be_anything() -> None:
    encoder = rows_encoder(torch.float32)
    layout = rows_of([3, 5, 1, 2], 7, 16)
    keys, temperature = sentence_keys(0, 0, torch.arange(4)), torch.ones(())
    results = []
    for value in (0.0, torch.nan, torch.inf):
        leaves = torch.randn(16, 12, generator=torch.Generator().manual_seed(1))
        leaves[11:] = value
        leaves.requires_grad_()
        problem = TreeProblem(
            leaves,
            layout,
            encoder.cell,
            encoder.query,
            1.0,
            encoder.estimator,
            temperature,
            True,
            keys,
        )
        result = fused.build_tree(problem)
        inputs = [leaves, encoder.cell.weight, encoder.cell.bias, encoder.query]
        gradients = torch.autograd.grad(result.vector.square().sum(), inputs)
        assert not gradients[0][11:].any()
        results.append([result.order, result.vector, *gradients])
    for other in results[1:]:
        for x, y in zip(results[0], other, strict=True):
            assert x.isfinite().all()
            assert torch.equal(x, y)


# compiled


@dataclass
class Compiled:
    """One run on the device."""

    order: Tensor
    values: dict[str, Tensor]


def run_compiled(
    impl: str,
    D: int,
    order: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    precision: str = "ieee",
    sentences: int = 100,
    longest: int = 30,
) -> Compiled:
    """Encode the same sentences by any implementation, with an LSTM below."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    encoder = GumbelTreeEncoder(EncoderConfig(20, D, impl=impl, leaf="lstm"))
    with torch.no_grad():
        for name, p in encoder.named_parameters():
            # queries wide enough for trees to follow the words, everything else of size one
            p.copy_(draw(*p.shape) * (0.3 if name == "query" else p.shape[-1] ** -0.5))
    encoder.to("cuda", dtype)
    words = draw(sentences, longest, 20).to("cuda", dtype).requires_grad_()
    lengths = (torch.arange(sentences, device="cuda") % longest) + 1
    noise = gumbel_noise((sentences, longest - 1, longest - 1), generator=generator).cuda()
    cotangent = draw(sentences, D).to("cuda")
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
    return Compiled(encoding.order, values)


def distance(truth: Compiled, other: Compiled) -> dict[str, float]:
    """Return the norm of each value's error over the norm of the truth; NaN is infinite."""
    found = {}
    for name, x in truth.values.items():
        relative = float((other.values[name] - x).norm() / x.norm())
        found[name] = math.inf if math.isnan(relative) else relative
    return found


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
    narrow = {
        impl: run_compiled(impl, D, order=truth.order, precision=precision, **sizes)
        for impl in ("exact", "fused")
    }
    exact, fused_ = (distance(truth, narrow[impl]) for impl in ("exact", "fused"))
    for name, error in fused_.items():
        assert error <= 2 * exact[name] + 1e-3, (name, fused_, exact)
    # precision shows: products were not IEEE
    assert fused_["vector"] > 1e-5
    made = truth.order >= 0
    for impl in ("exact", "fused"):
        free = run_compiled(impl, D, precision=precision, **sizes)
        share = float((free.order == truth.order)[made].float().mean())
        print(f"{precision} D={D} {impl}: {share:.4f} of the merges are those of float64")


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
        # few programs: not every multiprocessor takes part in every kernel
        (16, 40, 300, "tf32"),
        (1, 30, 100, "tf32"),
        # sparse and dense, see `Layout.dense`
        (64, 40, 600, "tf32"),
        (20, 10, 600, "tf32"),
        (64, 20, 300, "bf16"),
    ],
)
def test_gpu_chained_kernels_give_the_same_bits(
    sentences: int, longest: int, D: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("kernels are chained from compute capability 9.0 on")
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
def test_kernels_are_chained_where_the_card_can(
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
    # nor can kernels that are interpreted, or made by an older Triton
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert triton_support.chain_options(card, "tf32") == apart
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr("triton.__version__", "3.4.0")
    assert triton_support.chain_options(card, "tf32") == apart


@pytest.mark.parametrize(
    ("capability", "D"),
    [
        (90, 300),
        *[
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((90, 1024), (86, 300), (86, 1024), (80, 300), (75, 100))
        ],
    ],
)
def test_kernels_compile(capability: int, D: int) -> None:
    # interpreted they are ordinary Python, which takes more than the compiler does
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.ops.compile_kernels", str(capability), str(D)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "send_kernel" in result.stdout
