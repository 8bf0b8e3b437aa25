"""Base class of shift-reduce encoders: Tree-LSTM cell, tracker, choice of actions."""

import dataclasses
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gumbeltree.config import TreeLSTMConfig
from gumbeltree.layout import Layout, Sentences
from gumbeltree.nn.cells.treelstm import TreeLSTMCell
from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.nn.spans import spans_of
from gumbeltree.noise import is_keys
from gumbeltree.ops.stack import (
    StackProblem,
    StackResult,
    StackTables,
    TrackerWeights,
    device_tables,
    follow,
    fused,
    machine,
    stack_tables,
)
from gumbeltree.states import Draw, Encoding, Keep, NodeState


class Tracker(nn.Module):
    """The weights of an LSTM that reads the stack and the next word before each action.

    Args:
        hidden_dim: width D of the states that it reads.
        width: its own width d.
    """

    def __init__(self, hidden_dim: int, width: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(4 * width, 3 * hidden_dim))
        self.weight_hh = nn.Parameter(torch.empty(4 * width, width))
        self.bias = nn.Parameter(torch.zeros(4 * width))
        self.to_cell = nn.Parameter(torch.empty(5 * hidden_dim, width))
        for weight in (self.weight_ih, self.weight_hh, self.to_cell):
            nn.init.xavier_uniform_(weight)


class Followed(NamedTuple):
    """Trees that a shift-reduce encoder has followed."""

    encoding: Encoding
    """Vectors, trees and what else was asked for."""
    log_prob: Tensor
    """Log-probability of the actions `[B]`; empty unless asked for."""
    entropy: Tensor
    """Sum of the entropies of the choices `[B]`; empty unless asked for."""


class StackEncoder(Encoder):
    """Encoder that composes a tree by SHIFT and REDUCE.

    Args:
        config: settings with `hidden_dim`, `tracker` and `impl`.
        cell: settings of the Tree-LSTM cell.
    """

    def __init__(self, config: Any, cell: TreeLSTMConfig) -> None:
        super().__init__(config)
        D = config.hidden_dim
        self.cell = TreeLSTMCell(D, cell)
        self.tracker = Tracker(D, config.tracker) if config.tracker else None

    def why_not_captured(self, sample: bool) -> str | None:
        """Return why `encode` cannot be captured as a CUDA graph, or None if it can."""
        if not sample and self.trees == "sampled":
            # the scores of all merges look ahead at every step
            return "graphs of its own trees are too large outside of training"
        return super().why_not_captured(sample)

    def action_scores(self, view: Tensor, tracked: Tensor | None) -> Tensor:
        """Return the scores of SHIFT and REDUCE `[n, 2]`.

        Args:
            view: h of top node, second node and next word `[n, 3D]`.
            tracked: [h; c] of the tracker `[n, 2d]`, if there is one.
        """
        raise NotImplementedError

    def missing(self) -> Tensor:
        """Return h of a missing top node, second node and next word `[3, D]`; zero by default."""
        return self.cell.weight.new_zeros((3, self.config.hidden_dim))

    def problem(self, leaves: Tensor, layout: Layout) -> StackProblem:
        """Return the inputs of `ops.stack`, float32 or wider.

        Args:
            leaves: states of the words `[N, 2D]`.
            layout: their layout; the host must know the lengths.
        """
        dtype = torch.promote_types(self.cell.weight.dtype, torch.float32)
        tracker = None
        if self.tracker is not None:
            names = TrackerWeights._fields
            tracker = TrackerWeights(*(getattr(self.tracker, name).to(dtype) for name in names))
        return StackProblem(
            leaves.to(dtype),
            layout,
            self.cell.weight.to(dtype),
            self.cell.gate_bias().to(dtype),
            self.cell,
            self.missing().to(dtype),
            tracker,
        )

    def build(
        self, leaves: Tensor, sentences: Sentences, draw: Draw, keep: Keep, weighed: str = ""
    ) -> Followed:
        """Build the trees of sentences, following `sentences.order` if it is set.

        Args:
            leaves: states of the words `[cap, 2D]`.
            sentences: layout of the words, and trees to follow.
            draw: how to choose actions.
            keep: what to return in addition to vectors and trees.
            weighed: steps whose log-probabilities and entropies are summed: `free`, where both
                actions are possible, or `all`; by default none.
        """
        # under autocast as well, states keep the precision of the weights
        with torch.autocast(leaves.device.type, enabled=False):
            packed = sentences.layout
            problem = self.problem(packed.spread(leaves), packed.full())
            return self._built(problem, sentences, draw, keep, weighed)

    def _built(
        self, problem: StackProblem, sentences: Sentences, draw: Draw, keep: Keep, weighed: str
    ) -> Followed:
        layout, order, tables = problem.layout, sentences.order, None
        if order is not None:
            tables = self._tables(order, layout)
            order = tables.order
        scores, result = None, None
        if order is None or keep.scores:
            choose = machine.greedy(self.action_scores)
            if order is not None:
                choose = machine.along(order, problem)
            elif draw.noise is not None:
                chooser = machine.sampled if is_keys(draw.noise) else machine.drawn
                choose = chooser(self.action_scores, draw.noise, problem)
            # whether nothing looks further than the next action
            near = order is None and not keep.scores
            near = near and (draw.noise is None or is_keys(draw.noise))
            make: type[machine.Machine] = machine.Machine
            if near and fused.why_no_machine(problem, self.config.impl) is None:
                make = fused.FusedMachine
            if keep.scores:
                K = layout.T - 1
                scores = problem.leaves.new_full((layout.B, K, K), -torch.inf)
                choose = machine.recording(choose, self.action_scores, scores, layout)
            with torch.no_grad():
                result, order = machine.run(problem, choose, make)
        assert order is not None
        if result is None or weighed or torch.is_grad_enabled():
            tables = tables or self._tables(order, layout)
            if self.config.impl == "reference":
                result = machine.run(problem, machine.along(order, problem)).result
            else:
                result = follow(problem, tables, self.config.impl)
        dtype, D = self.cell.weight.dtype, self.config.hidden_dim
        root = result.states[layout.root_rows()][layout.rank]
        encoding = Encoding(root[:, :D].to(dtype), order)
        if keep.nodes:
            h, c = layout.unpack_nodes(result.states[: layout.nodes]).to(dtype).chunk(2, dim=-1)
            mask = layout.node_mask()
            encoding = dataclasses.replace(encoding, nodes=NodeState(h, c), mask=mask)
        if scores is not None:
            encoding = dataclasses.replace(encoding, scores=scores[layout.rank])
        if not weighed or tables is None:
            return Followed(encoding, root[:0, 0], root[:0, 0])
        return Followed(encoding, *self._weights(result, tables, layout, weighed == "free"))

    def _tables(self, order: Tensor, layout: Layout) -> StackTables:
        """Return the rows that given trees read and write."""
        tracked = self.tracker is not None
        if not layout.spare:
            return stack_tables(order, layout, tracked)
        step = torch.arange(layout.T - 1, device=order.device)
        merged = step < layout.own_lengths()[:, None] - 1
        return device_tables(*spans_of(torch.where(merged, order, -1)), layout, tracked)

    def _weights(
        self, result: StackResult, tables: StackTables, layout: Layout, only_free: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probability and the entropy of the actions of each sentence, `[B]`."""
        counted = tables.free
        if layout.spare and not only_free:
            step = torch.arange(2 * layout.T - 1, device=counted.device)
            counted = (step[:, None] < 2 * layout.lengths - 1).view(-1)
        if layout.spare or not only_free:
            rows: Any = slice(None)
        else:
            rows = counted.nonzero()[:, 0]
        h = result.states.chunk(2, dim=1)[0]
        view = torch.cat([h[row] for row in tables.view[:, rows]], dim=1)
        tracked = None if result.tracked is None else result.tracked[rows]
        logs = self.action_scores(view, tracked).log_softmax(1)
        chosen = logs.gather(1, tables.reduces[rows].long()[:, None])[:, 0]
        entropy = -(logs.exp() * logs).sum(1)
        if layout.spare:
            found = (torch.where(counted, x, 0) for x in (chosen, entropy))
            log_prob, total = (x.view(-1, layout.B).sum(0)[layout.rank] for x in found)
            return log_prob, total
        zeros = logs.new_zeros(layout.B)
        log_prob, total = (
            zeros.index_add(0, tables.rank[rows], x)[layout.rank] for x in (chosen, entropy)
        )
        return log_prob, total
