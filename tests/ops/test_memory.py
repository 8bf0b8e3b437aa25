"""ops.memory against a plain recurrence with autograd, word by word and slot by slot."""

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gumbeltree.device.triton_support import product
from gumbeltree.layout import Layout, Sentences
from gumbeltree.ops import memory as module
from gumbeltree.ops.memory import rewrite

D = 5
LENGTHS = [(1,), (3, 3), (1, 7, 4, 2, 1)]


def plain(given: list[Tensor], layout: Layout, mask: Tensor | None) -> Tensor:
    """Return the states, one sentence and word after the other."""
    memory, read, of_x, of_h, bias, *compose = given
    states: dict[int, Tensor] = {}
    for b, (slots, length) in enumerate(zip(memory, layout.lengths.tolist(), strict=True)):
        M = slots[:length]
        h = c = read.new_zeros(read.shape[1])
        for first, n in zip(layout.starts, layout.active, strict=False):
            if b >= n:
                break
            o = read[first + b]
            z = (M @ o).softmax(0)
            x = torch.cat([o, z @ M])
            if compose:
                x = compose[0] @ x + compose[1]
            if mask is not None:
                x = x * mask[first + b]
            i, f, g, out = (of_x @ x + of_h @ h + bias).chunk(4)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = out.sigmoid() * c.tanh()
            M = (1 - z[:, None]) * M + z[:, None] * h
            states[first + b] = h
    return torch.stack([states[row] for row in range(len(read))])


def dropping(mask: Tensor | None) -> Callable[[Tensor], Tensor] | None:
    """Return dropout by a given mask of all words, whose inputs may come in several parts."""
    if mask is None:
        return None
    rest = mask

    def drop(x: Tensor) -> Tensor:
        nonlocal rest
        now, rest = rest[: len(x)], rest[len(x) :]
        return x * now

    return drop


def layout_of(lengths: tuple[int, ...], spare: int = 0, device: str = "cpu") -> Layout:
    """Return a layout; with spare rows, all sentences have as many."""
    arrange = Sentences.full if spare else Sentences.padded
    padded = torch.zeros(len(lengths), max(lengths) + spare, dtype=torch.int64, device=device)
    return arrange(padded, torch.tensor(lengths, device=device)).layout


def inputs_of(layout: Layout, compose: bool, width: int = D) -> list[Tensor]:
    """Return random memory, o and weights."""
    shapes = [(layout.B, layout.T, width), (layout.rows, width)]
    shapes += [(4 * width, 2 * width), (4 * width, width), (4 * width,)]
    shapes += [(2 * width, 2 * width), (2 * width,)] * compose
    memory, read, *given = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
    # o is half of the states of the reader
    read = torch.cat([read, read], dim=1)[:, :width]
    return [memory, read, *(x * 2 / width**0.5 for x in given)]


def run(given: list[Tensor], layout: Layout, mask: Tensor | None = None) -> Tensor:
    return rewrite(*given[:2], given[2:5], given[5:] or None, layout, dropping(mask))


def force_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the kernels in Triton's interpreter, in blocks of two slots."""
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("on a CPU, kernels run in Triton's interpreter")
    monkeypatch.setattr(module, "BLOCK", 16)
    monkeypatch.setattr(module, "why_not", lambda weight: None)
    monkeypatch.setattr(module, "_plain", None)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("spare", [0, 2])
@pytest.mark.parametrize("compose", [True, False])
@pytest.mark.parametrize("dropout", [True, False])
@pytest.mark.parametrize("fused", [False, True])
def test_values_and_gradients(
    lengths: tuple[int, ...],
    spare: int,
    compose: bool,
    dropout: bool,
    fused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if fused:
        force_kernels(monkeypatch)
    layout = layout_of(lengths, spare)
    assert layout.rows == (len(lengths) * layout.T if spare else sum(lengths))
    given = [x.requires_grad_() for x in inputs_of(layout, compose)]
    # what is past the last word has no effect
    given[0].data[~layout.valid(layout.T)] = 1e3
    mask = (torch.rand(layout.rows, 2 * D, dtype=torch.float64) < 0.7) / 0.7 if dropout else None
    found, expected = run(given, layout, mask), plain(given, layout, mask)
    with torch.no_grad():
        # shares the memory between words
        before = [x.clone() for x in given]
        without = run(given, layout, mask)
    torch.testing.assert_close(found, expected)
    assert torch.equal(found, without)
    assert all(torch.equal(x, y) for x, y in zip(given, before, strict=True))
    outside = torch.randn(D, layout.rows, dtype=torch.float64).t()
    kept = outside.clone()
    gradients = [torch.autograd.grad(x, given, outside) for x in (found, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
    # it belongs to the caller
    assert torch.equal(outside, kept)


@pytest.mark.parametrize("fused", [False, True])
def test_word_vectors_need_not_be_learned(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if fused:
        force_kernels(monkeypatch)
    layout = layout_of((3, 1), 2)
    memory, *given = inputs_of(layout, True)
    for x in given:
        x.requires_grad_()
    found, expected = (
        torch.autograd.grad(function([memory, *given], layout, None).sum(), given)
        for function in (run, plain)
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_high_scores_do_not_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = layout_of((6, 3))
    given = inputs_of(layout, True)
    # softmax of one slot, wherever it is
    given[1] *= 1e4
    given[5][:, :D] /= 1e4
    expected = run(given, layout)
    force_kernels(monkeypatch)
    given[0].requires_grad_()
    found = run(given, layout)
    torch.testing.assert_close(found.detach(), expected)
    (gradient,) = torch.autograd.grad(found.sum(), given[:1])
    assert gradient.isfinite().all()


def test_autocast_narrows_products_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: set[tuple[str, torch.dtype]] = set()

    def spy(a: Tensor, b: Tensor, precision: str, **out: Tensor) -> Tensor:
        found = product(a, b, precision, **out)
        kinds.add((precision, found.dtype))
        return found

    layout = layout_of((3, 1, 2))
    given = [x.float().requires_grad_() for x in inputs_of(layout, True)]
    exact = run(given, layout)
    force_kernels(monkeypatch)
    monkeypatch.setattr(module, "product", spy)
    with torch.autocast("cpu", torch.bfloat16):
        found = run(given, layout)
    assert found.dtype == torch.float32
    outside = torch.randn_like(found)
    gradients = [torch.autograd.grad(x, given, outside) for x in (found, exact)]
    assert kinds == {("bf16", torch.float32)}
    for one, other in zip((found, *gradients[0]), (exact, *gradients[1]), strict=True):
        # narrow products differ, but not much
        assert 1e-5 < float(((one - other).norm() / other.norm()).detach()) < 0.1


@pytest.mark.gpu
@pytest.mark.parametrize("compose", [True, False])
def test_gpu_kernels_equal_operations(compose: bool) -> None:
    torch.manual_seed(0)
    units, lengths = 300, (40, 17, 5, 5, 1)
    given = inputs_of(layout_of(lengths), compose, units)
    # scores of ordinary size
    given[1] /= units**0.5
    outside = torch.randn(sum(lengths), units, dtype=torch.float64)
    found = []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
        inputs = [x.to(device, dtype).requires_grad_() for x in given]
        states = run(inputs, layout_of(lengths, device=device))
        assert (type(states.grad_fn).__name__ == "_RewriteBackward") == (device == "cuda")
        gradients = torch.autograd.grad(states, inputs, outside.to(device, dtype))
        found.append([x.detach().cpu().double() for x in (states, *gradients)])
    for exact, fused in zip(*found, strict=True):
        assert float((fused - exact).norm() / exact.norm()) < 1e-4
