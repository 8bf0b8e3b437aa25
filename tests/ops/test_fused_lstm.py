"""Test that the fused leaf LSTM equals `LSTMLeaf`: states and gradients, both directions.

Without CUDA the kernels run in Triton's interpreter, in float64. With CUDA the same tests run
compiled, in float32, and allow twice the error of plain PyTorch.
"""

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gumbeltree.device.graphs import capture_stream
from gumbeltree.device.triton_support import Tile, tile_for
from gumbeltree.layout import Arrangement, Layout
from gumbeltree.nn.leaves.lstm import LSTMLeaf
from gumbeltree.ops.lstm import bilstm, lstm
from gumbeltree.ops.lstm import fused as fused_lstm

pytest.importorskip("triton")
pytest.importorskip("gumbeltree.ops.lstm.kernels")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
Values = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """A batch, drawn from `seed`."""

    lengths: tuple[int, ...]
    D: int = 5
    reverse: bool = False
    capacity: int = 0
    """Spare rows after the words."""
    extra_steps: int = 0
    extra_rows: int = 0
    device: str = DEVICE
    seed: int = 0


@dataclass
class Inputs:
    layout: Layout
    start: Tensor
    steps: int
    rows: int
    inputs: Tensor
    weight: Tensor
    dh: Tensor
    dc: Tensor


def make_inputs(case: Case) -> Inputs:
    """Draw a batch in float64, with NaN in the spare rows."""
    generator = torch.Generator().manual_seed(case.seed)
    layout = Layout.of(Arrangement.of(np.array(case.lengths), max(case.lengths)))
    N, D = layout.N, case.D

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def extend(x: Tensor) -> Tensor:
        spare = x.new_full((case.capacity, x.shape[1]), torch.nan)
        return torch.cat([x, spare]).to(case.device)

    start = layout.starts + [N] * case.extra_steps
    return Inputs(
        layout,
        torch.tensor(start, dtype=torch.int32, device=case.device),
        layout.steps + case.extra_steps,
        layout.B + case.extra_rows,
        extend(draw(N, 4 * D)),
        (draw(4 * D, D) / D**0.5).to(case.device),
        extend(draw(N, D)),
        extend(draw(N, D)),
    )


def run_fused(
    case: Case, batch: Inputs, dtype: torch.dtype = torch.float64, precision: str = "ieee"
) -> Values:
    inputs = batch.inputs.to(dtype).requires_grad_()
    weight = batch.weight.to(dtype).requires_grad_()
    h, c = fused_lstm.lstm(
        inputs, weight, batch.start, batch.steps, batch.rows, case.reverse, precision
    ).chunk(2, dim=-1)
    dinputs, dweight = torch.autograd.grad(
        (h, c), (inputs, weight), (batch.dh.to(dtype), batch.dc.to(dtype))
    )
    return {"h": h.detach(), "c": c.detach(), "d inputs": dinputs, "d weight": dweight}


def run_plain(
    case: Case, batch: Inputs, dtype: torch.dtype = torch.float64, autocast: bool = False
) -> Values:
    """Run `LSTMLeaf` with an identity W_ih and no bias, so that its words are `inputs`."""
    N, D = batch.layout.N, case.D
    leaf = LSTMLeaf(4 * D, D, reverse=case.reverse).to(case.device, dtype)
    with torch.no_grad():
        leaf.weight_ih.copy_(torch.eye(4 * D))
        leaf.weight_hh.copy_(batch.weight)
        leaf.bias_ih.zero_()
    words = batch.inputs[:N].to(dtype).requires_grad_()
    with torch.autocast(case.device, torch.bfloat16, enabled=autocast):
        h, c = leaf(words, batch.layout, "exact").chunk(2, dim=-1)
    loss = (h * batch.dh[:N]).sum() + (c * batch.dc[:N]).sum()
    dwords, dweight = torch.autograd.grad(loss, (words, leaf.weight_hh))
    values = {"h": h.detach(), "c": c.detach(), "d inputs": dwords, "d weight": dweight}
    # spare rows are zero
    return {
        name: x if name == "d weight" else torch.cat([x, x.new_zeros(case.capacity, x.shape[1])])
        for name, x in values.items()
    }


def errors(truth: Values, other: Values) -> dict[str, float]:
    """Return the largest error of each value relative to the largest entry of the truth."""
    return {
        name: float(
            ((other[name].double() - x).abs().max() / x.abs().max().clamp(min=1e-30)).nan_to_num(
                torch.inf
            )
        )
        for name, x in truth.items()
    }


def check_float32(case: Case) -> None:
    batch = make_inputs(case)
    truth = run_plain(case, batch)
    plain = errors(truth, run_plain(case, batch, torch.float32))
    result = run_fused(case, batch, torch.float32)
    for name, error in errors(truth, result).items():
        assert error <= 2 * plain[name] + 1e-6, (name, error, plain[name])
    check_spare_rows(case, result)


def check_spare_rows(case: Case, values: Values) -> None:
    for name in ("h", "c", "d inputs"):
        assert not values[name][len(values[name]) - case.capacity :].any(), name


def check(case: Case) -> None:
    if case.device == "cuda":
        return check_float32(case)
    batch = make_inputs(case)
    result = run_fused(case, batch)
    worst = errors(run_plain(case, batch), result)
    assert max(worst.values()) < 1e-10, worst
    check_spare_rows(case, result)


both_directions = pytest.mark.parametrize("reverse", [False, True], ids=["forwards", "backwards"])


@both_directions
@pytest.mark.parametrize(("lengths", "D"), [((1,), 5), ((5, 1, 1), 1), ((2, 2), 20)])
def test_lengths_and_widths(lengths: tuple[int, ...], D: int, reverse: bool) -> None:
    check(Case(lengths, D, reverse))


@both_directions
def test_bounds_can_exceed_the_batch(reverse: bool) -> None:
    check(Case((3, 1, 2), 5, reverse, capacity=3, extra_steps=2, extra_rows=30))


TILES = sorted({*fused_lstm.FORWARD.values(), *fused_lstm.BACKWARD.values()})


@both_directions
@pytest.mark.parametrize(
    ("tile", "case"),
    [
        (Tile(4, 4, 8, 4, 3), Case((2, 1, 2) * 3, 9, capacity=2)),
        # more than one tile of sentences and of units, the last ones not full
        *[
            pytest.param(tile, Case((2, 1, 2) * 22, 34, capacity=2), marks=pytest.mark.slow)
            for tile in TILES
        ],
    ],
    ids=str,
)
def test_tiles(tile: Tile, case: Case, reverse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not INTERPRETED and tile not in TILES:
        pytest.skip("tensor cores need larger tiles")
    # longer reductions of IEEE products do not fit a multiprocessor
    tiles = {"ieee": tile._replace(BK=min(tile.BK, 64))}
    monkeypatch.setattr(fused_lstm, "FORWARD", tiles)
    monkeypatch.setattr(fused_lstm, "BACKWARD", tiles)
    check(dataclasses.replace(case, reverse=reverse))


@pytest.mark.parametrize(
    ("room", "precision", "columns", "stages"),
    [
        (227, "tf32", 1, 3),
        (227, "tf32", 4, 3),
        # 64 KiB per stage: (64 + 64) * 128 * 4 bytes
        (163, "tf32", 4, 2),
        (99, "tf32", 4, 1),
        (64, "tf32", 4, 1),
        # 48 KiB per stage: 64 rows of float32, 64 columns of bfloat16
        (163, "bf16", 4, 3),
    ],
)
def test_tiles_fit_the_shared_memory(
    room: int, precision: str, columns: int, stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = SimpleNamespace(shared_memory_per_block_optin=room * 1024)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: card)
    x = SimpleNamespace(is_cuda=True, device=0)
    tiles = {"tf32": Tile(64, 16, 128, 4, 3), "ieee": Tile(16, 16, 16, 4, 3)}
    assert tile_for(tiles, precision, x, columns=columns) == tiles["tf32"]._replace(stages=stages)
    assert tile_for(tiles, "ieee", x, columns=columns) == tiles["ieee"]


def test_wide_states_use_wide_tiles() -> None:
    x = torch.zeros(1)
    tiles = {"tf32": Tile(64, 16, 128, 4, 3), "ieee": Tile(16, 16, 16, 4, 3)}
    assert tile_for(tiles, "tf32", x, 600) == tiles["tf32"]
    tiles["wide"] = Tile(64, 64, 64, 4, 3)
    for precision in ("tf32", "bf16"):
        assert tile_for(tiles, precision, x, 320) == tiles["tf32"]
        assert tile_for(tiles, precision, x, 321) == tiles["wide"]
    assert tile_for(tiles, "ieee", x, 600) == tiles["ieee"]


@pytest.mark.slow
@both_directions
@settings(max_examples=20)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=20).map(tuple),
    D=st.sampled_from([1, 3, 17]),
    capacity=st.integers(0, 3),
    extra=st.integers(0, 2),
    seed=st.integers(0, 10**6),
)
def test_random_batches(
    reverse: bool, lengths: tuple[int, ...], D: int, capacity: int, extra: int, seed: int
) -> None:
    check(Case(lengths, D, reverse, capacity, extra, extra, seed=seed))


@both_directions
def test_float32(reverse: bool) -> None:
    check_float32(Case((4, 2, 1), 20, reverse, capacity=2))


def test_saves_nothing_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case((3, 1, 2), 5)
    batch = make_inputs(case)
    expected = run_fused(case, batch, torch.float32)
    inputs, weight = batch.inputs.float(), batch.weight.float().requires_grad_()
    forward, saved = fused_lstm.forward, []

    def record(*args: object, save: bool) -> tuple[Tensor, Tensor]:
        states, gates = forward(*args, save=save)
        saved.append(gates.numel())
        return states, gates

    monkeypatch.setattr(fused_lstm, "forward", record)
    with torch.no_grad():
        states = fused_lstm.lstm(inputs, weight, batch.start, batch.steps, batch.rows)
    assert saved == [0]
    assert torch.equal(states, torch.cat([expected["h"], expected["c"]], dim=1))


@pytest.mark.parametrize(("name", "output"), [("inputs", 0), ("weight", 1)])
def test_gradient_of_one_input_from_one_output(name: str, output: int) -> None:
    case = Case((3, 1, 2), 5, capacity=1)
    batch = make_inputs(case)
    (batch.dc if output == 0 else batch.dh).zero_()
    expected = run_fused(case, batch, torch.float32)
    x = {"inputs": batch.inputs.float(), "weight": batch.weight.float()}
    x[name].requires_grad_()
    states = fused_lstm.lstm(x["inputs"], x["weight"], batch.start, batch.steps, batch.rows)
    cotangent = (batch.dh, batch.dc)[output].float()
    (gradient,) = torch.autograd.grad(states.chunk(2, dim=-1)[output], x[name], cotangent)
    assert torch.equal(gradient, expected[f"d {name}"])


def test_accepts_non_contiguous_tensors() -> None:
    case = Case((3, 1, 2), 5)
    batch = make_inputs(case)
    expected = run_fused(case, batch, torch.float32)
    for name in ("inputs", "weight", "dh", "dc"):
        setattr(batch, name, getattr(batch, name).t().contiguous().t())
    result = run_fused(case, batch, torch.float32)
    assert all(torch.equal(x, result[name]) for name, x in expected.items())


@pytest.mark.slow
@both_directions
def test_long_sentences(reverse: bool) -> None:
    check(Case((43, 1, 20, 17, 17, 9) * 6, 50, reverse, capacity=5, extra_steps=3))


def snli(reverse: bool, seed: int = 0) -> Case:
    """Return 256 sentences of at most 43 words, 300D, with 8192 rows and 44 steps."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(255, generator=generator).mul(0.45).add(2.5).exp().long().clamp(1, 43)
    lengths = (43, *drawn.tolist())
    return Case(lengths, 300, reverse, 8192 - sum(lengths), extra_steps=1, device="cuda", seed=seed)


def run_both(batches: list[Inputs], dtype: torch.dtype, precision: str) -> list[Values]:
    """Run an LSTM in each direction over sentences of the same lengths, and both backwards."""
    given = [(x.inputs.to(dtype), x.weight.to(dtype)) for x in batches]
    for pair in given:
        for x in pair:
            x.requires_grad_()
    first = batches[0]
    plans = [fused_lstm.Plan(first.steps, first.rows, back, precision) for back in (-1, 1)]
    states = fused_lstm.directions(given, first.start, plans)
    cotangents = [torch.cat([x.dh, x.dc], dim=1).to(dtype) for x in batches]
    gradients = torch.autograd.grad(states, [x for pair in given for x in pair], cotangents)
    names = ("h", "c", "d inputs", "d weight")
    return [
        dict(zip(names, (*x.detach().chunk(2, dim=-1), *pair), strict=True))
        for x, pair in zip(states, (gradients[:2], gradients[2:]), strict=True)
    ]


def check_both(cases: list[Case], precision: str) -> None:
    batches = [make_inputs(case) for case in cases]
    found = run_both(batches, torch.float32, precision)
    for case, batch, values in zip(cases, batches, found, strict=True):
        expected = run_fused(case, batch, torch.float32, precision)
        assert all(torch.equal(x, values[name]) for name, x in expected.items())


def test_both_directions_at_once_equal_each_alone() -> None:
    check_both(
        [Case((3, 1, 2), 5, back, 2, 1, 1, seed=int(back)) for back in (False, True)], "ieee"
    )


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("place", range(4))
def test_both_directions_with_one_gradient(place: int, again: bool) -> None:
    cases = [Case((3, 1, 2), 5, back, seed=int(back)) for back in (False, True)]
    batches = [make_inputs(case) for case in cases]
    expected = run_both(batches, torch.float64, "ieee")
    given = [(x.inputs.detach(), x.weight.detach()) for x in batches]
    wanted = given[place // 2][place % 2].requires_grad_()
    plans = [fused_lstm.Plan(batches[0].steps, batches[0].rows, x, "ieee") for x in (-1, 1)]
    states = fused_lstm.directions(given, batches[0].start, plans)
    cotangents = [torch.cat([x.dh, x.dc], dim=1) for x in batches]
    # a graph of the gradient, of which no derivative is taken
    (found,) = torch.autograd.grad(states, wanted, cotangents, create_graph=again)
    assert torch.equal(found, expected[place // 2][("d inputs", "d weight")[place % 2]])


def test_both_directions_have_the_layout_and_the_precision(monkeypatch) -> None:
    batch, plans = make_inputs(Case((3, 1))), []
    monkeypatch.setattr(fused_lstm, "directions", lambda given, start, own: plans.extend(own))
    monkeypatch.setattr("gumbeltree.ops.lstm.precision_of", lambda device: "tf32")
    batch.layout.overlap = overlap = mock.Mock()
    bilstm(*2 * [(batch.inputs, batch.weight)], batch.layout, "fused")
    assert plans == [fused_lstm.Plan(3, 2, back, "tf32", overlap) for back in (-1, 1)]


def test_both_directions_read_narrow_inputs() -> None:
    batch = make_inputs(Case((3, 1, 2)))
    inputs, weight = batch.inputs.to(torch.bfloat16), batch.weight.float()
    found = bilstm(*2 * [(inputs, weight)], batch.layout, "fused")
    for states, back in zip(found, (False, True), strict=True):
        assert torch.equal(states, lstm(inputs, weight, batch.layout, back, "fused"))


def test_backward_pass_ignores_autocast() -> None:
    torch.manual_seed(0)
    start = torch.tensor([0, 2, 4], dtype=torch.int32, device=DEVICE)
    gradients = []
    for inside in (False, True):
        torch.manual_seed(1)
        inputs = torch.randn(4, 20, device=DEVICE, requires_grad=True)
        weight = torch.randn(20, 5, device=DEVICE, requires_grad=True)
        total = fused_lstm.lstm(inputs, weight, start, 2, 2).square().sum()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=inside):
            gradients.append(torch.autograd.grad(total, (inputs, weight)))
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


@pytest.mark.gpu
@both_directions
def test_gpu_ieee(reverse: bool) -> None:
    check_float32(snli(reverse))


@pytest.mark.gpu
@both_directions
@pytest.mark.parametrize("D", [32, 100, 301, 600, 1024])
def test_gpu_other_widths(D: int, reverse: bool) -> None:
    check_float32(Case((9, 3, 1, 7) * 20, D, reverse, capacity=7, device="cuda"))


@pytest.mark.gpu
@both_directions
@pytest.mark.parametrize("D", [300, 1024])
def test_gpu_tf32(D: int, reverse: bool) -> None:
    case = snli(reverse)
    case = Case(case.lengths, D, reverse, case.capacity, device="cuda")
    batch = make_inputs(case)
    result = run_fused(case, batch, torch.float32, "tf32")
    worst = errors(run_plain(case, batch), result)
    # TF32 has 10 bits
    assert max(worst.values()) < 2e-3, worst
    check_spare_rows(case, result)


@pytest.mark.gpu
@both_directions
def test_gpu_bf16(reverse: bool) -> None:
    case = snli(reverse)
    batch = make_inputs(case)
    truth = run_plain(case, batch)
    plain = errors(truth, run_plain(case, batch, torch.float32, autocast=True))
    result = run_fused(case, batch, torch.float32, "bf16")
    for name, error in errors(truth, result).items():
        assert error <= 2 * plain[name], (name, error, plain[name])
    check_spare_rows(case, result)


@pytest.mark.gpu
@both_directions
@pytest.mark.parametrize("precision", ["ieee", "tf32", "bf16"])
def test_gpu_is_deterministic(precision: str, reverse: bool) -> None:
    case = snli(reverse)
    batch = make_inputs(case)
    first, second = (run_fused(case, batch, torch.float32, precision) for _ in range(2))
    assert all(torch.equal(x, second[name]) for name, x in first.items())


@pytest.mark.gpu
@both_directions
def test_gpu_graph_can_be_replayed_for_other_lengths(reverse: bool) -> None:
    cases = [snli(reverse, seed) for seed in (0, 1)]
    captured, other = (make_inputs(case) for case in cases)
    values, graph = capture(lambda: run_fused(cases[0], captured, torch.float32, "tf32"))
    for case, batch in zip(cases[::-1], (other, make_inputs(cases[0])), strict=True):
        for name in ("start", "inputs", "weight", "dh", "dc"):
            getattr(captured, name).copy_(getattr(batch, name))
        graph.replay()
        expected = run_fused(case, batch, torch.float32, "tf32")
        assert all(torch.equal(x, values[name]) for name, x in expected.items())


@pytest.mark.gpu
def test_gpu_both_directions_at_once_equal_each_alone() -> None:
    cases = [snli(back) for back in (False, True)]
    check_both(cases, "tf32")
    batches = [make_inputs(case) for case in cases]
    values: list[Values] = []

    def work() -> Values:
        values[:] = run_both(batches, torch.float32, "tf32")
        return {}

    _, graph = capture(work)
    for _ in range(3):
        for x in (y for each in values for y in each.values()):
            x.fill_(torch.nan)
        graph.replay()
        for case, batch, own in zip(cases, batches, values, strict=True):
            expected = run_fused(case, batch, torch.float32, "tf32")
            assert all(torch.equal(x, own[name]) for name, x in expected.items())


def capture(work: Callable[[], Values]) -> tuple[Values, torch.cuda.CUDAGraph]:
    """Run `work` once to compile its kernels, then capture it as a graph."""
    stream = capture_stream(torch.device("cuda", torch.cuda.current_device()))
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        values = work()
    return values, graph
