"""Test Adadelta by row against that of torch, with PyTorch operations and with the kernel."""

import pytest
import torch

from gumbeltree.ops.adadelta import (
    ENTRIES,
    MOST,
    SMALL,
    Coefficients,
    Rows,
    Scalars,
    Weights,
    block,
    update_exact,
    update_fused,
    update_rows,
    update_weights,
    update_weights_exact,
    update_weights_fused,
)

SHAPES = [(3, 7), (), (16,), (33,), (1, 1), (2, 4, 5)]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RHO, EPS, RATE = 0.9, 1e-6, 0.7
# on a GPU, `update_exact` also updates absent rows, which makes no difference later
UPDATES = [
    pytest.param(update_exact, id="update_exact"),
    pytest.param(
        update_fused, id="update_fused", marks=pytest.mark.gpu if DEVICE == "cuda" else ()
    ),
]


@pytest.fixture(autouse=True)
def _small_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gumbeltree.ops.adadelta.ENTRIES", 16)
    monkeypatch.setattr("gumbeltree.ops.adadelta.SMALL", 16)
    monkeypatch.setattr("gumbeltree.ops.adadelta.MOST", 4)


def new_rows(V: int, E: int, function: object = None, dtype: torch.dtype = torch.float64) -> Rows:
    """Return a random matrix without a gradient in its initial state."""
    torch.manual_seed(1)
    device = "cpu" if function is update_exact else DEVICE
    weight = torch.randn(V, E, dtype=dtype).to(device)
    return Rows(weight, *(torch.zeros_like(weight) for _ in range(3)), weight.new_zeros(V))


def update(function, rows: Rows, number: int, scale: float = 1.0) -> None:
    numbers = (rows.weight.new_full((), x) for x in (number, RATE, scale))
    function(rows, Scalars(*numbers), RHO, EPS)


@pytest.mark.parametrize("function", UPDATES)
# one row, fewer rows than a program has, and a last program with fewer rows
@pytest.mark.parametrize(("V", "E"), [(1, 1), (1, 5), (7, 8), (5, 20), (35, 2)])
def test_equals_adadelta_of_torch_in_which_all_means_shrink(function, V: int, E: int) -> None:
    if function is update_fused:
        pytest.importorskip("triton")
    rows = new_rows(V, E, function)
    wanted = torch.nn.Parameter(rows.weight.clone())
    torchs = torch.optim.Adadelta([wanted], RATE, rho=RHO, eps=EPS)
    generator = torch.Generator().manual_seed(0)
    for number in range(1, 30):
        present = torch.rand(V, generator=generator) < (0.2 if number > 3 else 0.7)
        gradient = torch.randn(V, E, generator=generator, dtype=torch.float64)
        gradient[:, 1:] *= torch.rand(V, E - 1, generator=generator) < 0.5
        gradient = (gradient * present[:, None]).to(rows.weight)
        # the gradients of a few steps are large, so clipping scales them
        scale = 4.0 if number % 5 == 0 else 1.0
        rows.gradient.copy_(gradient)
        before = [x.clone() for x in rows]
        update(function, rows, number, scale)
        wanted.grad = gradient / scale
        torchs.step()
        absent = ~gradient.any(1)
        for old, new in zip(before, rows, strict=True):
            assert torch.equal(old[absent], new[absent])
        torch.testing.assert_close(rows.weight, wanted.detach(), rtol=1e-10, atol=1e-12)
    assert rows.last.max() > 3
    # in the end, every row makes up for the steps that it missed
    rows.gradient.fill_(0.1)
    update(function, rows, 30)
    wanted.grad = torch.full_like(wanted, 0.1)
    torchs.step()
    torch.testing.assert_close(rows.weight, wanted.detach(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(rows.squares, torchs.state[wanted]["square_avg"])
    torch.testing.assert_close(rows.deltas, torchs.state[wanted]["acc_delta"])
    assert rows.last.tolist() == [30.0] * V


@pytest.mark.parametrize("function", UPDATES)
def test_means_of_rare_words_vanish_without_nan(function) -> None:
    if function is update_fused:
        pytest.importorskip("triton")
    rows = new_rows(2, 3, function, torch.float32)
    rows.squares.fill_(2.0)
    rows.deltas.fill_(3.0)
    rows.gradient[0] = 0.5
    update(function, rows, 2_000_000)
    torch.testing.assert_close(rows.squares[0], torch.full_like(rows.squares[0], 0.1 * 0.25))
    assert torch.isfinite(rows.weight).all()
    assert rows.squares[1].tolist() == [2.0] * 3


@pytest.mark.parametrize("function", UPDATES)
def test_passes_nan_on(function) -> None:
    if function is update_fused:
        pytest.importorskip("triton")
    rows = new_rows(3, 2, function)
    rows.gradient[1, 1] = torch.nan
    update(function, rows, 1)
    assert rows.weight.isnan().tolist() == [[False, False], [False, True], [False, False]]


def test_programs_have_few_entries_and_whole_rows() -> None:
    assert [block(E) for E in (1, 3, 8, 9, 40)] == [(16, 1), (4, 4), (2, 8), (1, 16), (1, 64)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")
def test_uses_pytorch_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gumbeltree.ops.adadelta.update_fused", None)
    rows = new_rows(3, 2)
    rows.gradient[1] = 1.0
    before = rows.weight.clone()
    update(update_rows, rows, 1)
    assert (rows.weight != before).any(1).tolist() == [False, True, False]


@pytest.mark.gpu
@pytest.mark.parametrize("contiguous", [True, False])
def test_gpu_update_in_a_graph_equals_float64(contiguous: bool, monkeypatch) -> None:
    monkeypatch.setattr("gumbeltree.ops.adadelta.ENTRIES", ENTRIES)
    calls = []
    monkeypatch.setattr(
        "gumbeltree.ops.adadelta.update_fused", lambda *x: (calls.append(x), update_fused(*x))
    )
    V, E = 5_003, 300
    rows = new_rows(V, E, dtype=torch.float32)
    exact = Rows(*(x.double().cpu() for x in new_rows(V, E, dtype=torch.float32)))
    if not contiguous:
        rows = rows._replace(gradient=torch.zeros(E, V, device=DEVICE).T)
    scalars = Scalars(*(rows.weight.new_full((), x) for x in (0, RATE, 2.0)))

    def step() -> None:
        scalars.step.add_(1)
        update_rows(rows, scalars, RHO, EPS)

    # compiles the kernel; no row has a gradient
    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    assert bool(calls) == contiguous
    for number in range(2, 12):
        found = torch.randint(0, V, (200,))
        gradient = torch.zeros(V, E)
        gradient[found] = torch.randn(200, E)
        rows.gradient.copy_(gradient)
        graph.replay()
        exact.gradient.copy_(gradient)
        update(update_exact, exact, number, 2.0)
    # a gradient in another order is not for the kernel, and all rows make up for missed steps
    names = Rows._fields if contiguous else ("weight",)
    for name in names:
        one, other = getattr(rows, name).double().cpu(), getattr(exact, name)
        assert float((one - other).norm() / other.norm()) < 1e-5, name


def new_weights(device: str, dtype: torch.dtype, shapes: list[tuple[int, ...]]) -> Weights:
    """Return random tensors without a gradient in their initial state."""
    torch.manual_seed(2)
    weights = [torch.randn(shape, dtype=dtype).to(device) for shape in shapes]
    return Weights(weights, *([torch.zeros_like(x) for x in weights] for _ in range(3)))


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize(
    "function",
    [
        update_weights_exact,
        pytest.param(update_weights_fused, marks=pytest.mark.gpu if DEVICE == "cuda" else ()),
    ],
)
def test_weights_equal_those_of_torch(function, decay: float) -> None:
    if function is update_weights_fused:
        pytest.importorskip("triton")
    exact = function is update_weights_exact
    device = "cpu" if exact else DEVICE
    # the kernel rounds as float32 does
    dtype, tolerance = (torch.float64, 1e-11) if exact else (torch.float32, 1e-5)
    ours = new_weights(device, dtype, SHAPES)
    wanted = [torch.nn.Parameter(x.cpu().double().clone()) for x in ours.weights]
    torchs = torch.optim.Adadelta(wanted, RATE, rho=RHO, eps=EPS, weight_decay=decay)
    for number in range(1, 6):
        # a number, a tensor, and none
        scale = None if number == 3 else torch.tensor(number / 2, dtype=dtype, device=device)
        rate = RATE if number < 3 else torch.tensor(RATE, dtype=dtype, device=device)
        for p, gradient in zip(wanted, ours.gradients, strict=True):
            gradient.copy_(torch.randn(p.shape))
            p.grad = gradient.double().cpu() / (1 if scale is None else float(scale))
        before = [x.clone() for x in ours.gradients]
        function(ours, Coefficients(rate, scale, RHO, EPS, decay))
        torchs.step()
        assert all(map(torch.equal, before, ours.gradients))
    state = [torchs.state[p] for p in wanted]
    close = {"rtol": tolerance, "atol": 1e-2 * tolerance, "check_dtype": False}
    pairs = (
        (ours.weights, [p.detach() for p in wanted]),
        (ours.squares, [x["square_avg"] for x in state]),
        (ours.deltas, [x["acc_delta"] for x in state]),
    )
    for found, other in pairs:
        torch.testing.assert_close([x.cpu() for x in found], other, **close)


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")
@pytest.mark.parametrize("field", [*Weights._fields, "rate", "scale", None])
@pytest.mark.parametrize("change", ["order", "dtype", "device"])
def test_weights_in_another_form_are_not_for_the_kernel(field, change: str, monkeypatch) -> None:
    calls = []
    monkeypatch.setattr("gumbeltree.ops.adadelta.why_not", lambda weight: None)
    for name in ("fused", "exact"):
        monkeypatch.setattr(
            f"gumbeltree.ops.adadelta.update_weights_{name}",
            lambda *x, name=name: calls.append(name),
        )
    weights, rate, scale = new_weights("cpu", torch.float32, [(3, 5), (4, 2)]), 0.5, None
    changed = {
        "order": torch.zeros(2, 4).T,
        "dtype": torch.zeros(4, 2, dtype=torch.float64),
        "device": torch.zeros(4, 2, device="meta"),
    }[change]
    if field == "rate":
        rate = changed.sum()
    elif field == "scale":
        scale = changed.sum()
    elif field is not None:
        getattr(weights, field)[1] = changed
    update_weights(weights, Coefficients(rate, scale, RHO, EPS))
    # a sum has no order
    same = field is None or (field in {"rate", "scale"} and change == "order")
    assert calls == ["fused" if same else "exact"]


def test_kernel_of_weights_passes_nan_on() -> None:
    pytest.importorskip("triton")
    weights = new_weights(DEVICE, torch.float32, [(3,), (2, 2)])
    weights.gradients[1][0, 1] = torch.nan
    update_weights_fused(weights, Coefficients(RATE, None, RHO, EPS))
    assert [x.isnan().any().item() for x in weights.weights] == [False, True]
    assert weights.weights[1].isnan().tolist() == [[False, True], [False, False]]


@pytest.mark.gpu
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_gpu_updates_weights_with_the_bits_of_torch(decay: float, monkeypatch) -> None:
    for name, value in (("SMALL", SMALL), ("MOST", MOST)):
        monkeypatch.setattr(f"gumbeltree.ops.adadelta.{name}", value)
    calls = []
    monkeypatch.setattr(
        "gumbeltree.ops.adadelta.update_weights_fused",
        lambda *x: (calls.append(1), update_weights_fused(*x)),
    )
    shapes = [(1500, 600), (300,), (), (7, 13), *[(64, i) for i in range(1, MOST + 4)]]
    ours, exact = (new_weights(DEVICE, torch.float32, shapes) for _ in range(2))
    scale, rate = torch.tensor(1.7, device=DEVICE), torch.tensor(RATE, device=DEVICE)
    for _ in range(10):
        for one, other in zip(ours.gradients, exact.gradients, strict=True):
            one.normal_().mul_(10.0 ** torch.randint(-20, 5, (), device=DEVICE))
            other.copy_(one)
        update_weights(ours, Coefficients(rate, scale, RHO, EPS, decay))
        update_weights_exact(exact, Coefficients(rate, scale, RHO, EPS, decay))
        for name in Weights._fields:
            assert all(map(torch.equal, getattr(ours, name), getattr(exact, name))), name
    assert len(calls) == 10


@pytest.mark.gpu
@pytest.mark.parametrize("place", range(4))
def test_gpu_weights_in_another_order_are_not_for_the_kernel(place: int, monkeypatch) -> None:
    monkeypatch.setattr("gumbeltree.ops.adadelta.update_weights_fused", None)
    weights = new_weights(DEVICE, torch.float32, [(3, 5), (4,)])
    weights[place][0] = torch.zeros(5, 3, device=DEVICE).T
    update_weights(weights, Coefficients(RATE, None, RHO, EPS))
