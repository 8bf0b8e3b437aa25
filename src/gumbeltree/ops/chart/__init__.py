"""Soft trees: a chart of all spans, each a mixture of its splits (Maillard et al. 2017).

A span of n words has n - 1 splits. Each split composes two shorter spans into a candidate, and the
state of the span is the mean of its candidates, weighted by a softmax of their scores. Each span is
multiplied by the weights once, so there are O(T^2) products for O(T^3) candidates. The backward
pass recomputes the candidates of one length at a time, so that memory is O(T^2) as well. Large
batches are divided: `roots` keeps the charts of some sentences at a time, and computes them twice.

On a GPU, Triton kernels (`kernels`) go through the splits of a span without storing candidates.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from gumbeltree.device.triton_support import check_kernels, why_not
from gumbeltree.layout import Layout
from gumbeltree.ops.chart import fused
from gumbeltree.ops.chart.fused import TINY

BLOCK = 2**11
"""Number of candidates that a CPU computes at once, so that they fit in its cache."""
LIMIT = 2**25
"""Numbers `T * T * B * D` in the charts that `roots` keeps; training needs 112 bytes for each."""


class Chart(NamedTuple):
    """All spans: `[n - 1, e, b]` has n words and ends at word e of the b-th longest sentence.

    Entries that are not spans of a sentence have no meaning.
    """

    h: Tensor
    """Hidden states `[T, T, B, D]`."""
    c: Tensor
    """Cell states `[T, T, B, D]`."""
    split: Tensor
    """Number of words in the left part of the best split, int64 `[T, T, B]`; 0 for single words."""


def chart(
    h: Tensor,
    c: Tensor,
    weight: Tensor,
    bias: Tensor,
    query: Tensor,
    beta: Tensor,
    active: Sequence[int],
    impl: str = "auto",
) -> Chart:
    """Compute the chart of each sentence.

    Args:
        h: hidden states of the words, sentences sorted by falling length, `[T, B, D]`.
        c: their cell states `[T, B, D]`.
        weight: weight of the gates i, f_l, f_r, o and u, `[5D, 2D]`, left part first.
        bias: their bias `[5D]`; forget gates add 1 to theirs.
        query: candidates are scored by its cosine with their hidden state, `[D]`.
        beta: factor of the cosines, `[]`; it has no gradient.
        active: number of sentences that have a word at each of the T positions.
        impl: "fused" uses kernels, "exact" PyTorch operations, "auto" kernels where they can run.
    """
    weights, plan = _prepared(weight, bias, query), _Plan.of(weight, active, impl)
    return Chart(*_Chart.apply(h, c, *weights, beta, plan))


def too_large(h: Tensor) -> bool:
    """Return whether the charts of words `[T, B, D]` exceed the limit."""
    return len(h) * h.numel() > LIMIT


def roots(
    h: Tensor,
    c: Tensor,
    weight: Tensor,
    bias: Tensor,
    query: Tensor,
    beta: Tensor,
    active: Sequence[int],
    lengths: Tensor,
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Return the hidden states of whole sentences and all best splits, in limited memory.

    Args:
        h: see `chart`, as for the following.
        c: cell states.
        weight: weight of the gates.
        bias: their bias.
        query: scores candidates.
        beta: factor of the cosines.
        active: number of sentences at each position.
        lengths: words per sentence, longest first, int64 `[B]`.
        impl: see `chart`.

    Returns:
        Hidden states `[B, D]`, and `Chart.split`.
    """
    weights, plan = _prepared(weight, bias, query), _Plan.of(weight, active, impl)
    vector, split = _Roots.apply(h, c, *weights, beta, plan, lengths - 1)
    return vector, split


class _Plan(NamedTuple):
    """How to compute charts."""

    active: tuple[int, ...]
    """Number of sentences at each position."""
    kernels: bool
    """Whether to use kernels."""

    @classmethod
    def of(cls, weight: Tensor, active: Sequence[int], impl: str) -> "_Plan":
        if impl == "fused":
            check_kernels(weight)
        kernels = impl == "fused" or (impl == "auto" and why_not(weight) is None)
        return cls(tuple(active), kernels)


def _prepared(weight: Tensor, bias: Tensor, query: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weight, the bias of all gates and the normalised query."""
    D = len(query)
    forget = torch.zeros_like(bias)
    forget[D : 3 * D] = 1
    return weight, bias + forget, torch.nn.functional.normalize(query, dim=0, eps=TINY)


class _Chart(Function):
    """The chart with a backward pass that recomputes the candidates."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        c: Tensor,
        weight: Tensor,
        bias: Tensor,
        query: Tensor,
        beta: Tensor,
        plan: _Plan,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the fields of a `Chart`."""
        found, ctx.parts = _filled(h, c, weight, bias, query, beta, plan)
        ctx.save_for_backward(found.h, weight, query, beta)
        ctx.plan = plan
        ctx.mark_non_differentiable(found.split)
        return found

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dH: Tensor, dC: Tensor, _: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, None, None]:
        """Return the gradients of `h`, `c`, `weight`, `bias` and `query`."""
        H, weight, query, beta = ctx.saved_tensors
        found = _gradients(H, ctx.parts, weight, query, beta, ctx.plan, dH, dC)
        return *found, None, None


class _Roots(Function):
    """The roots of some sentences at a time, whose charts the backward pass computes again."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        c: Tensor,
        weight: Tensor,
        bias: Tensor,
        query: Tensor,
        beta: Tensor,
        plan: _Plan,
        last: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the states `[B, D]` and the best splits `[T, T, B]`; `last` is the last word."""
        T, B, _ = h.shape
        split = torch.zeros((T, T, B), dtype=torch.int64, device=h.device)
        vector = torch.empty_like(h[0])
        for some, own in _shares(plan, h):
            words = h[: len(own.active), some], c[: len(own.active), some]
            found, _ = _filled(*words, weight, bias, query, beta, own)
            vector[some] = found.h[_root(last[some])]
            split[: len(own.active), : len(own.active), some] = found.split
        ctx.save_for_backward(h, c, weight, bias, query, beta, last)
        ctx.plan = plan
        ctx.mark_non_differentiable(split)
        return vector, split

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, dvector: Tensor, _: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, None, None, None]:
        """Return the gradients of `h`, `c`, `weight`, `bias` and `query`."""
        h, c, weight, bias, query, beta, last = ctx.saved_tensors
        dh, dc, *totals = (torch.zeros_like(x) for x in (h, c, weight, bias, query))
        for some, own in _shares(ctx.plan, h):
            words = h[: len(own.active), some], c[: len(own.active), some]
            found, parts = _filled(*words, weight, bias, query, beta, own)
            dH = torch.zeros_like(found.h)
            dH[_root(last[some])] = dvector[some]
            dC = torch.zeros((), dtype=h.dtype, device=h.device).expand_as(dH)
            gradients = _gradients(found.h, parts, weight, query, beta, own, dH, dC)
            dh[: len(own.active), some], dc[: len(own.active), some] = gradients[:2]
            for total, gradient in zip(totals, gradients[2:], strict=True):
                total += gradient
        return dh, dc, totals[0], totals[1], totals[2], None, None, None


def _shares(plan: _Plan, h: Tensor) -> Iterator[tuple[slice, _Plan]]:
    """Yield the sentences to compute together, and their own plan."""
    (_, B, D), first, active = h.shape, 0, plan.active
    while first < B:
        # the longest of them comes first
        T = sum(n > first for n in active)
        most = max(1, LIMIT // (T * T * D))
        some = slice(first, min(B, first + most))
        yield some, plan._replace(active=tuple(min(n, some.stop) - first for n in active[:T]))
        first = some.stop


def _root(last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the place of whole sentences in a chart, given their last words `[B]`."""
    return last, last, torch.arange(len(last), device=last.device)


def _filled(
    h: Tensor,
    c: Tensor,
    weight: Tensor,
    bias: Tensor,
    query: Tensor,
    beta: Tensor,
    plan: _Plan,
) -> "tuple[Chart, _Parts]":
    """Return a chart and the parts of its candidates."""
    T, B, D = h.shape
    H, C = h.new_zeros((T, T, B, D)), h.new_zeros((T, T, B, D))
    H[0], C[0] = h, c
    split = torch.zeros((T, T, B), dtype=torch.int64, device=h.device)
    parts = _Parts(T, B, H)
    for n in range(1, T + 1):
        if plan.kernels and n > 1:
            fused.fill(parts.all(), query, beta, (H, C, split), n, plan.active[n - 1])
        for ends, b in _blocks(plan, n, h.is_cuda):
            found = _Candidates(parts, n, ends, b, query, beta)
            H[n - 1, ends, :b], C[n - 1, ends, :b] = found.mean(found.h), found.mean(found.c)
            split[n - 1, ends, :b] = found.weights.argmax(-1) + 1
        if n < T:
            own = H[n - 1, n - 1 :]
            parts.store(n, own @ weight[:, :D].t() + bias, own @ weight[:, D:].t(), C[n - 1])
    return Chart(H, C, split), parts


def _gradients(
    H: Tensor,
    parts: "_Parts",
    weight: Tensor,
    query: Tensor,
    beta: Tensor,
    plan: _Plan,
    dH: Tensor,
    dC: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of `h`, `c`, `weight`, `bias` and `query`, given those of a chart."""
    T, _, B, D = H.shape
    gradients = _Parts(T, B, H)
    dleft, dright = torch.zeros_like(weight).split(D, dim=1)
    dbias, dquery = weight.new_zeros(5 * D), torch.zeros_like(query)
    # of kernels, by last word and sentence
    each_dquery = query.new_zeros((T, B, D) if plan.kernels else (0, D))
    for n in range(T, 0, -1):
        dh, dc = dH[n - 1, n - 1 :], dC[n - 1, n - 1 :]
        if n < T:
            left, right, more = gradients.load(n)
            dh = dh + left @ weight[:, :D] + right @ weight[:, D:]
            dc = dc + more
            left, right = left.flatten(0, 1), right.flatten(0, 1)
            states = H[n - 1, n - 1 :].flatten(0, 1)
            dleft.addmm_(left.t(), states)
            dright.addmm_(right.t(), states)
            dbias += left.sum(0)
        if plan.kernels and n > 1:
            sums = *gradients.all(), each_dquery
            fused.fill_backward(parts.all(), query, beta, (dh, dc), sums, n, plan.active[n - 1])
        for ends, b in _blocks(plan, n, H.is_cuda):
            found = _Candidates(parts, n, ends, b, query, beta)
            own = slice(ends.start - n + 1, ends.stop - n + 1)
            dquery += found.backward(dh[own, :b], dc[own, :b], gradients)
    dquery += each_dquery.flatten(0, -2).sum(0)
    return dh, dc, torch.cat([dleft, dright], dim=1), dbias, dquery


def _blocks(plan: _Plan, n: int, whole: bool) -> Iterator[tuple[slice, int]]:
    """Yield the last words of spans to compute together, and the number of sentences.

    Args:
        plan: with kernels, there is nothing else to compute.
        n: number of words per span; single words are not computed.
        whole: whether to compute all spans at once, including some past the end of a sentence.
    """
    active, first = plan.active, n - 1
    T = len(active)
    while n > 1 and first < T and not plan.kernels:
        b, last = active[first], T if whole else first + 1
        most = max(1, BLOCK // (b * (n - 1)))
        while last < T and active[last] == b and last - first < most:
            last += 1
        yield slice(first, last), b
        first = last


class _Parts:
    """What spans contribute to candidates as their left and their right part, or the gradients.

    Left parts are stored by their first word and length, right parts by their last word and
    length, the shortest last. The parts of all splits of a span are then adjacent.

    Args:
        T: number of words.
        B: number of sentences.
        like: a tensor with the width, type and device of the states.
    """

    def __init__(self, T: int, B: int, like: Tensor) -> None:
        shape, D = (T, B, T - 1), like.shape[-1]
        self.T = T
        self.left, self.right = (like.new_zeros((*shape, 5 * D)) for _ in range(2))
        self.c_left, self.c_right = (like.new_zeros((*shape, D)) for _ in range(2))

    def all(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return all parts: gates on the left and on the right, and cell states."""
        return self.left, self.right, self.c_left, self.c_right

    def store(self, n: int, left: Tensor, right: Tensor, c: Tensor) -> None:
        """Store the products `[T-n+1, B, 5D]` and cell states `[T, B, D]` of spans of n words."""
        first, last, r = slice(None, self.T - n + 1), slice(n - 1, None), self.T - 1 - n
        self.left[first, :, n - 1], self.right[last, :, r] = left, right
        self.c_left[first, :, n - 1] = self.c_right[last, :, r] = c[last]

    def load(self, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return both parts of spans of n words, and the sum of their cell states."""
        first, last, r = slice(None, self.T - n + 1), slice(n - 1, None), self.T - 1 - n
        c = self.c_left[first, :, n - 1] + self.c_right[last, :, r]
        return self.left[first, :, n - 1], self.right[last, :, r], c

    def of(self, n: int, ends: slice, b: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the parts of all splits of spans of n words: `[ends, b, n-1, 5D]` and c."""
        first = slice(ends.start - n + 1, ends.stop - n + 1)
        left = (first, slice(b), slice(n - 1))
        right = (ends, slice(b), slice(self.T - n, None))
        return self.left[left], self.right[right], self.c_left[left], self.c_right[right]


class _Candidates:
    """The candidates of some spans of n words; K = n - 1 of each.

    Args:
        parts: left and right parts.
        n: number of words.
        ends: last words of the spans.
        b: number of sentences.
        query: normalised query `[D]`.
        beta: factor of the cosines `[]`.
    """

    def __init__(
        self, parts: _Parts, n: int, ends: slice, b: int, query: Tensor, beta: Tensor
    ) -> None:
        self.where, self.query, self.beta = (n, ends, b), query, beta
        left, right, self.c_left, self.c_right = parts.of(*self.where)
        self.gates = left + right  # [ends, b, K, 5D]
        D = len(query)
        self.gates[..., : 4 * D].sigmoid_()
        self.gates[..., 4 * D :].tanh_()
        i, forget_left, forget_right, o, u = self.gates.chunk(5, dim=-1)
        self.c = (i * u).addcmul_(forget_left, self.c_left).addcmul_(forget_right, self.c_right)
        self.tanh = self.c.tanh()
        self.h = o * self.tanh
        self.norm = self.h.norm(dim=-1)  # [ends, b, K]
        self.cosine = (self.h @ query) / self.norm.clamp(min=TINY)
        self.weights = torch.softmax(beta * self.cosine, dim=-1)

    def mean(self, x: Tensor) -> Tensor:
        """Return the weighted mean over the splits, `[..., K, D]` -> `[..., D]`."""
        return (self.weights[..., None, :] @ x)[..., 0, :]

    def backward(self, dh: Tensor, dc: Tensor, gradients: _Parts) -> Tensor:
        """Add the gradients of the parts to `gradients`, and return that of the query `[D]`.

        Args:
            dh: gradient of the hidden states of the spans `[ends, b, D]`.
            dc: gradient of their cell states `[ends, b, D]`.
            gradients: receives the gradients of the parts.
        """
        a, D = self.weights, len(self.query)
        dweights = (self.h @ dh[..., None] + self.c @ dc[..., None])[..., 0]
        dscores = a * (dweights - (a * dweights).sum(-1, keepdim=True))
        norm = self.norm.clamp(min=TINY)
        slope = self.beta * dscores / norm  # gradient of the product with the query
        # below its limit, the norm is a constant
        shrink = torch.where(self.norm > TINY, slope * self.cosine / norm, 0)
        each = a[..., None] * dh[..., None, :]
        each.addcmul_(slope[..., None], self.query).addcmul_(shrink[..., None], self.h, value=-1)
        i, forget_left, forget_right, o, u = self.gates.chunk(5, dim=-1)
        each_c = (1 - self.tanh.square()).mul_(o).mul_(each)
        each_c.addcmul_(a[..., None], dc[..., None, :])
        dgates = torch.empty_like(self.gates)
        outputs = dgates.chunk(5, dim=-1)
        factors = (u, self.c_left, self.c_right, self.tanh, i)
        for j, (output, factor) in enumerate(zip(outputs, factors, strict=True)):
            torch.mul(each if j == 3 else each_c, factor, out=output)
        sigmoids = self.gates[..., : 4 * D]
        dgates[..., : 4 * D].mul_(sigmoids).mul_(1 - sigmoids)
        outputs[4].mul_(1 - u.square())
        left, right, c_left, c_right = gradients.of(*self.where)
        left += dgates
        right += dgates
        c_left.addcmul_(each_c, forget_left)
        c_right.addcmul_(each_c, forget_right)
        dquery: Tensor = slope.flatten() @ self.h.flatten(0, -2)
        return dquery


class ChartTrees(NamedTuple):
    """The trees of the best splits, from the top."""

    order: Tensor
    """Merges, the leftmost first, int64 `[B, T-1]`, -1 past the end of a sentence."""
    cell: Tensor
    """Place of each merged span in a flattened chart, int64 `[B, T-1]`, 0 past the end."""


def best_trees(split: Tensor, layout: Layout) -> ChartTrees:
    """Follow the best split of each span, beginning with whole sentences.

    Args:
        split: best splits of all spans; see `Chart`.
        layout: layout of the sentences.
    """
    T, _, B = split.shape
    device = split.device
    end, rank = torch.arange(T, device=device)[:, None], torch.arange(B, device=device)
    # number of open nodes to the left of a span, plus 1; 0 if the span is not in the tree. The last
    # entry takes what is not written, since finding the spans would wait for the device
    depth = split.new_zeros(split.numel() + 1)
    last = layout.lengths - 1
    depth.scatter_(0, _places(last, last, rank, T, B), 1)
    for n in range(T, 1, -1):
        k, outside = split[n - 1], depth[:-1].view_as(split)[n - 1]
        left, right = _places(k - 1, end - (n - k), rank, T, B), _places(n - k - 1, end, rank, T, B)
        index = torch.where(outside > 0, torch.stack([left, right]), split.numel())
        depth.scatter_(0, index.flatten(), torch.stack([outside, outside + 1]).flatten())
    # a merge follows all merges that end before it, and the shorter ones that end with it
    made = depth[:-1].view_as(split)[1:].permute(2, 1, 0)[layout.rank].flatten(1)  # [B, T(T-1)]
    step = torch.where(made > 0, (made > 0).cumsum(1) - 1, layout.T - 1)
    more = torch.arange(1, T, device=device)
    cell = _places(more, end, layout.rank[:, None, None], T, B).flatten(1)
    # here, the last column takes what is not written
    order, place = (split.new_full((B, layout.T), x) for x in (-1, 0))
    order.scatter_(1, step, made - 1)
    place.scatter_(1, step, cell)
    return ChartTrees(order[:, :-1], place[:, :-1])


def _places(more: Tensor, end: Tensor, rank: Tensor, T: int, B: int) -> Tensor:
    """Return the places in a flattened chart of spans of ``more + 1`` words."""
    return (more * T + end) * B + rank
