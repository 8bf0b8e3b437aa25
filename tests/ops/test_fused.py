"""fused == reference: order, vector, every gradient; interpreted on a CPU, compiled on a GPU."""

import pytest
import torch
from hypothesis import given, settings

from gumbeltree import EncoderConfig, GumbelTreeEncoder
from gumbeltree.cells.treelstm import TreeLSTMCell
from gumbeltree.estimators.soft import SoftGumbel
from gumbeltree.estimators.st_gumbel import StraightThroughGumbel
from gumbeltree.ops import choose, fused
from tests.ops.comparison import TEMPERATURES, Case, cases, errors, make_inputs, run

pytest.importorskip("triton")

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")

HARD = [
    Case(lengths=(1,), details=True),
    Case(lengths=(1, 1, 1), hidden_dim=3),
    Case(lengths=(2,), hidden_dim=1, details=True),
    Case(lengths=(3, 2, 1), hidden_dim=17, details=True, leaf="lstm"),
    Case(lengths=(16, 17, 15), hidden_dim=16, attention=True, temperature=0.3),
    # more sentences than a tile, more units than a tile, lengths that end one after the other
    Case(lengths=tuple(1 + i % 5 for i in range(70)), hidden_dim=33, details=True),
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
@settings(max_examples=15)
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
    for seed in range(3):
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
    assert "not 'fused': it is new, and runs when asked for by name" in reason
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


@pytest.mark.gpu
@pytest.mark.parametrize("D", [32, 300, 600])
def test_gpu_ieee_equals_exact(D: int) -> None:
    result = {}
    for impl in ("exact", "fused"):
        torch.manual_seed(0)
        encoder = GumbelTreeEncoder(EncoderConfig(20, D, impl=impl)).cuda()
        torch.nn.init.normal_(encoder.query, std=0.3)
        words = torch.randn(100, 30, 20, device="cuda", requires_grad=True)
        lengths = (torch.arange(100, device="cuda") % 30) + 1
        noise = torch.rand(100, 29, 29, device="cuda")
        encoding = encoder(words, lengths, noise=noise)
        encoding.vector.square().sum().backward()
        gradients = [words.grad, *(p.grad for p in encoder.parameters())]
        result[impl] = encoding.order, [encoding.vector.detach(), *gradients]
    assert (result["exact"][0] == result["fused"][0]).float().mean() > 0.999
    for a, b in zip(result["exact"][1], result["fused"][1], strict=True):
        assert float((a - b).norm() / a.norm()) < 1e-4
