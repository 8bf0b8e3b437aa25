"""Shift-reduce over batches of sentences, with a stack of row numbers instead of vectors.

A sentence of L words takes 2L - 1 steps: SHIFT pushes the next word, REDUCE replaces the two
topmost nodes by their parent. States are stored once, in the rows that `Layout` gives to words and
nodes, followed by three rows that stand for a missing top node, second node and next word, and one
that is never read. The stack holds row numbers, so SHIFT moves no vectors.

An optional tracker, an LSTM, reads [top; second; next word] before each step. Its state takes part
in the composition.

Three implementations agree in values and gradients:

- `machine` keeps the stack on the device and runs any sequence of actions, given or its own.
  Autograd differentiates it. Each step then copies all states, and each read makes a gradient of
  their size, so the work grows with T^2.
- `thin` runs given trees. All row numbers are known in advance (`tables`), so the backward pass
  follows the same tables in reverse and adds the gradients to the rows that were read. Work and
  memory are linear in T. Without a tracker, it needs only the T - 1 merges, since nothing depends
  on SHIFT.
- `fused` does the same inside a CUDA graph, with Triton kernels between the products. With a
  tracker, a step of `thin` has 110 operations, forward and backward, one of `fused` ten. Without
  one, it also has a machine that chooses its own actions, and composes given trees in any order of
  their merges, and full trees level by level, with dropout.

Inside a CUDA graph, where the host does not know the lengths, all sentences take part in all steps
(`Layout.full`), and `device_tables` computes the row numbers on the device.

`transitions` converts between merge orders and sequences of actions.
"""

from gumbeltree.device.triton_support import check_kernels
from gumbeltree.ops.stack import fused, thin
from gumbeltree.ops.stack.problem import StackProblem, StackResult, TrackerWeights
from gumbeltree.ops.stack.tables import StackTables, device_tables, stack_tables

__all__ = [
    "StackProblem",
    "StackResult",
    "StackTables",
    "TrackerWeights",
    "device_tables",
    "follow",
    "stack_tables",
]


def follow(problem: StackProblem, tables: StackTables, impl: str = "auto") -> StackResult:
    """Compose the nodes of given trees.

    Args:
        problem: sentences and weights.
        tables: rows to read and write.
        impl: "auto" uses kernels inside a graph where they can run, "fused" raises an error where
            they cannot; any other value uses `thin`.
    """
    if impl == "fused" and problem.layout.spare:
        check_kernels(problem.weight)
    if fused.why_not_kernels(problem, impl) is None:
        return fused.follow(problem, tables)
    return thin.follow(problem, tables)
