"""Compile every Triton kernel for a compute capability and a state width, without a GPU.

Run it in a process of its own, without TRITON_INTERPRET: `python -m tests.ops.compile_kernels 90
300`. With a third argument, a folder for Triton's cache, it stops at PTX, whose assembly takes a
quarter of the time.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gumbeltree.device import find_rows_kernels as layout
from gumbeltree.device.triton_support import Tile, tile_for
from gumbeltree.ops import adadelta
from gumbeltree.ops.adadelta import kernels as adadelta_kernels
from gumbeltree.ops.lstm import fused as fused_lstm
from gumbeltree.ops.lstm import kernels as lstm
from gumbeltree.ops.merge.fused import backward as fused_backward
from gumbeltree.ops.merge.fused import backward_kernels as backward
from gumbeltree.ops.merge.fused import forward as fused_forward
from gumbeltree.ops.merge.fused import forward_kernels as forward
from gumbeltree.ops.merge.fused.estimators import ST_GUMBEL, Kernel
from gumbeltree.ops.merge.fused.gated import backward as gated_backward
from gumbeltree.ops.merge.fused.gated import backward_kernels as gated_bwd
from gumbeltree.ops.merge.fused.gated import forward as gated_forward
from gumbeltree.ops.merge.fused.gated import forward_kernels as gated_fwd
from gumbeltree.ops.merge.fused.gated import record_width
from gumbeltree.ops.pair_features import kernels as features

SIZES = {"t", "B", "T", "cap", "steps", "offset"}
INT32 = {
    *("cand", "node", "tape_rows", "chosen", "position", "node_state", "left", "right"),
    *("lengths", "start", "previous", "rows", "p_start"),
}
INT64 = {"order", "forced", "sentence", "codes"}
OPERANDS = {"both", "weight_t", "weight_out_t", "p_weight"}
ESTIMATORS = [
    *(Kernel("st"), Kernel("reinmax"), Kernel("gapped", 0.8)),
    *(Kernel(variant, 0.5) for variant in ("spigot", "ce", "eg")),
    Kernel("gumbel_rao", 10),
]
ROOM = {75: 64, 80: 163, 86: 99, 90: 227}
"""KiB of shared memory available to a program."""
CAPABILITY, D = (int(x) for x in sys.argv[1:3]) if len(sys.argv) > 2 else (90, 300)


def tile_on_gpu(tiles: Mapping[str, Tile], precision: str, D: int, columns: int = 1) -> Tile:
    """Return the tile for a GPU of this compute capability."""
    card = SimpleNamespace(shared_memory_per_block_optin=ROOM[CAPABILITY] * 1024)
    with mock.patch("torch.cuda.get_device_properties", return_value=card):
        x = cast(Tensor, SimpleNamespace(is_cuda=True, device=0))
        return tile_for(tiles, precision, x, D, columns)


def compiled(
    kernel: Any,
    constants: dict[str, Any],
    warps: int = 4,
    stages: int = 3,
    **kinds: str | tuple[str, ...],
) -> None:
    """Compile a kernel and print its use of shared memory.

    `kinds` overrides argument types, with a tuple for arguments that are tuples.
    """
    # bfloat16 operands use the same PRECISION as IEEE ones
    ieee = constants.get("PRECISION") == "ieee" and "*bf16" not in kinds.values()
    chained = CAPABILITY >= 90 and "CHAIN" in kernel.arg_names
    chained = chained and not (ieee or constants.get("BEGIN"))
    if "CHAIN" in kernel.arg_names:
        constants = constants | {"CHAIN": chained}

    def kind(name: str) -> str | tuple[str, ...]:
        if name in constants:
            return "constexpr"
        if name in kinds:
            return kinds[name]
        if name in SIZES:
            return "i32"
        return "*i32" if name in INT32 else "*i64" if name in INT64 else "*fp32"

    names = kernel.arg_names
    signature = {name: kind(name) for name in names}
    source = ASTSource(
        kernel,
        signature,
        {(names.index(name),): value for name, value in constants.items()},
        {
            place: [["tt.divisibility", 16]]
            for i, name in enumerate(names)
            for place, one in places(i, signature[name])
            if one.startswith("*")
        },
    )
    options = {"num_warps": warps, "num_stages": stages, "launch_pdl": chained}
    result = triton.compile(source, target=GPUTarget("cuda", CAPABILITY, 32), options=options)
    if "CHAIN" in kernel.arg_names:
        assert set(joins(result.asm["ptx"])) == {chained}, (kernel.__name__, constants)
    assert result.metadata.shared <= ROOM[CAPABILITY] * 1024, (kernel.__name__, constants)
    print(kernel.__name__, constants, f"{result.metadata.shared / 1024:.0f} KiB", flush=True)


def places(i: int, kind: str | tuple[str, ...]) -> list[tuple[tuple[int, ...], str]]:
    """Return the place and type of argument i, or of each of its items."""
    if isinstance(kind, str):
        return [((i,), kind)]
    return [((i, j), one) for j, one in enumerate(kind)]


def joins(ptx: str) -> Iterator[bool]:
    """Yield for each exit of a kernel whether the path to it joins the chain; see `join_chain`.

    Follow all paths through the kernel. Fail if one launches dependents before it waits, or writes
    before it does both.
    """
    body = ptx[ptx.index("{", ptx.index(".entry")) :]
    lines = [re.sub("//.*", "", line).strip() for line in body.splitlines()]
    labels = {
        line[:-1]: i for i, line in enumerate(lines) if line.startswith("$") and line[-1] == ":"
    }
    chained = any("griddepcontrol" in line for line in lines)
    seen: set[tuple[int, int]] = set()
    # line and state of a path: 1 after the wait, 2 after the launch of dependents
    paths = [(0, 0)]
    while paths:
        if (path := paths.pop()) in seen:
            continue
        seen.add(path)
        at, state = path
        line = lines[at]
        if "griddepcontrol.wait" in line:
            state = max(state, 1)
        elif "griddepcontrol.launch_dependents" in line:
            assert state > 0, "launches dependents before it waits"
            state = 2
        elif re.search(r"\b(st\.global|red|atom)\b", line):
            assert state == 2 or not chained, f"writes before it joins the chain: {line}"
        always = not line.startswith("@")
        if re.search(r"\bret;", line):
            yield state == 2
        if jump := re.search(r"\bbra(?:\.uni)?\s+(\$[\w$]+)", line):
            paths.append((labels[jump[1]], state))
        if not (always and (jump or re.search(r"\bret;", line))) and at + 1 < len(lines):
            paths.append((at + 1, state))


def power_of_two(x: int) -> int:
    """Return the smallest power of two >= x."""
    return 1 << (x - 1).bit_length()


CHOICES = (
    (True, 16, True, True, False, False),
    (True, 4096, False, False, True, True),
    (False, 16, True, True, False, False),
    (False, 16, True, False, True, True),
    (False, 4096, False, False, False, False),
)
"""BEGIN, T, SAMPLE, FROM_KEYS, FORCED and KEEP_SCORES of the step kernels."""

DROPS = (
    {"LIMIT": 0, "SCALE": 1.0, "OFF": -1e4},
    {"LIMIT": 1 << 30, "SCALE": 4 / 3, "OFF": -1e4},
)
"""The gated cell without dropout and with a rate of 0.25."""
SCALES = [{"SCALE": drops["SCALE"]} for drops in DROPS]


def estimator_constants(kernel: Kernel, BT: int, keys: bool) -> dict[str, Any]:
    """Return the constants of `undo_kernel` that select an estimator."""
    constants = {"FROM_KEYS": keys, "ESTIMATOR": kernel.name, "SETTING": kernel.setting}
    return {**constants, "DRAWS": kernel.points(BT)}


def gated() -> None:
    """Compile the kernels of the gated recursive cell."""
    W = 4 * D
    wide, record = {"W": W, "REC": record_width(W, D)}, {"RECORD": True}
    all_sizes = {"D": D, **wide}
    BM, BN, warps = gated_forward.PAIRS
    rows, BD, row_warps = gated_forward.rows_per_program(D)
    whole = {"BM": rows, "BD": BD, **all_sizes}
    compiled(gated_fwd.word_codes_kernel, {"BLOCK": gated_forward.CODES}, keys="*i64")
    for recorded in (True, False):
        for drops in DROPS:
            constants = {"BM": BM, "BN": BN, **wide, "RECORD": recorded, **drops}
            compiled(gated_fwd.pairs_kernel, constants, warps)
        constants = {**whole, "EPSILON": 1e-5, "RECORD": recorded}
        compiled(gated_fwd.first_layer_kernel, constants, row_warps)
    for begin, T, sample, keys, forced, scores in CHOICES:
        BT, _, warps = fused_forward.step_block(T, D)
        constants = {"SLACK": 1e-6, "EPSILON": 1e-5, **all_sizes, "BD": BD, "BT": BT}
        constants |= {"BEGIN": begin, "SAMPLE": sample, "FROM_KEYS": keys, "FORCED": forced}
        constants |= {"NOISE_SCALE": 0.4 if forced else 1.0, "SOFTMAX": not forced}
        constants |= {"KEEP_SCORES": scores, **record}
        noise = "*i64" if keys else "*fp32"
        compiled(gated_fwd.step_kernel, constants, warps, noise=noise)
    for precision in ("tf32", "bf16", "ieee"):
        dots = {"PRECISION": "ieee" if precision == "bf16" else precision}
        operands = dict.fromkeys(OPERANDS, "*bf16") if precision == "bf16" else {}
        out = {"weight": "*bf16"} if precision == "bf16" else {}
        BM, BN, BK, warps, stages = tile_on_gpu(gated_forward.PROJECT, precision, D)
        for drops in DROPS:
            constants = {**all_sizes, **record, "BM": BM, "BN": BN, "BK": BK, **drops, **dots}
            compiled(gated_fwd.project_kernel, constants, warps, stages, **operands)
        BM, BN, BK, warps, stages = tile_on_gpu(gated_forward.GATES, precision, D)
        constants = {"W": W, "COLUMNS": 4 * D, "BM": BM, "BN": BN, "BK": BK, **dots}
        compiled(gated_fwd.gates_kernel, constants, warps, stages, **out)
        BM, BN, BK, warps, stages = tile_on_gpu(gated_backward.INNER, precision, D)
        for scale in SCALES:
            constants = {**wide, "COLUMNS": 4 * D, "BM": BM, "BN": BN, "BK": BK, **scale, **dots}
            compiled(gated_bwd.inner_kernel, constants, warps, stages, **operands)
        BM, BN, BK, warps, stages = tile_on_gpu(gated_backward.UNDO, precision, D)
        constants = {"D": D, "STATE": D, "GATES": W, "BM": BM, "BN": BN, "BK": BK, **dots}
        constants |= {"PARTS": fused_backward.PARTS, "BT": 128, "PIECES": 1, "HAS_DIRECT": True}
        constants |= {"SPAN": fused_backward.SPAN, "SAMPLE": True, "HAS_DSCORES": True}
        constants |= estimator_constants(ST_GUMBEL, 128, False)
        compiled(backward.undo_kernel, constants, warps, stages, **operands)
    compiled(gated_bwd.score_backward_kernel, whole, row_warps)
    BM, BN, warps = gated_forward.PAIRS
    for scale in SCALES:
        compiled(gated_bwd.slope_kernel, {**wide, "BM": BM, "BN": BN, **scale}, warps)
    for scored, sample, dnodes in ((True, True, True), (True, False, False), (False, False, True)):
        constants = {**all_sizes, "BJ": rows, "BD": BD, "SCORED": scored, "SAMPLE": sample}
        constants |= {"PARTS": fused_backward.PARTS if scored else 1, "HAS_DNODES": dnodes}
        compiled(gated_bwd.send_kernel, constants, row_warps)
    width = -(-(W + 1) // 4) * 4
    block = min(gated_backward.BLOCK, power_of_two(width))
    for scale in SCALES:
        compiled(gated_bwd.inner_rows_kernel, {**wide, "WIDTH": width, "BN": block, **scale})


def beams() -> None:
    """Compile the kernels of the beam search, and those of the gated cell that it uses."""
    from gumbeltree.ops.gated import kernels as cell
    from gumbeltree.ops.merge.beams import forward, fused, kernels

    kinds = dict.fromkeys(("all_candidates", "candidates", "all_nodes"), "*i32")
    kinds |= dict.fromkeys(("parents", "positions", "all_merged"), "*i32")
    kinds |= dict.fromkeys(("left", "right", "hashes", "change", "all_codes", "lengths"), "*i64")
    kinds |= dict.fromkeys(("slots", "spare", "n"), "i32")
    hashes = {"LEFT": forward.LEFT, "RIGHT": forward.RIGHT, "OFFSET": forward.OFFSET}
    for k, T, distinct in ((5, 100, True), (1, 30, False), (5, 1000, True)):
        KB, BT, warps = fused._block(k, T)
        size = {"k": k, "KB": KB, "BT": BT, "NEVER": forward.NEVER}
        compiled(kernels.choose_kernel, {**size, "DISTINCT": distinct, **hashes}, warps, **kinds)
        compiled(kernels.score_gradient_kernel, size, warps, **kinds)
        compiled(kernels.order_kernel, {"k": k, "KB": KB}, 1, **kinds)
    for single, only_h in ((True, False), (False, False), (False, True)):
        constants = {"D": D, "BD": 128, "SINGLE": single, "ONLY_H": only_h}
        compiled(kernels.add_to_children_kernel, constants, **kinds)
    strides = dict.fromkeys(("left_stride", "right_stride", "h_stride", "c_stride"), "i32")
    states = strides | {"left": "*fp32", "right": "*fp32"}
    row = {"W": 4 * D, "REC": 9 * D + 1, "D": D, "BD": power_of_two(D)}
    compiled(cell.normalise_kernel, row | {"EPSILON": 1e-5}, **states)
    for has_dc in (True, False):
        compiled(cell.normalise_backward_kernel, row | {"HAS_DC": has_dc}, **states)
    compiled(cell.slope_kernel, {"W": 4 * D, "REC": 9 * D + 1, "BW": 512})
    constants = {"LIMIT": 1 << 30, "OFF": -1e4, "W": 4 * D, "BW": 512}
    compiled(cell.drop_kernel, constants, stride="i32")


def shift_reduce() -> None:
    """Compile the kernels of shift-reduce, without a tracker and with one."""
    from gumbeltree.ops.stack import fused, kernels

    kinds = {"p_rows": "*i64", "p_next": "*i64", "NODES": "i32"}
    state = {"D": D, "BD": fused.BD}
    for d in (0, 61):
        columns = fused.StackColumns(D, d)
        of_inputs = {**state, "d": d, "FIRST": columns.first, "WIDE": columns.wide}
        of_gradients = {**state, "d": d, "DP": columns.padded}
        for drops in [False] if d else [False, True]:
            compiled(kernels.read_kernel, {**of_inputs, "DROPS": drops}, **kinds)
            compiled(kernels.add_kernel, {**of_gradients, "DROPS": drops}, **kinds)
    names = ("lengths", "stack", "size", "merged", "order", "rows", "view")
    of_stacks = {f"p_{name}": "*i64" for name in names} | {"p_wanted": "*u8", "ORDER": "i32"}
    compiled(kernels.advance_kernel, {"BS": fused.BS}, **of_stacks)
    of_spans = dict.fromkeys(("p_order", "p_start", "p_end"), "*i64") | {"M": "i32"}
    for BT in (16, 512):
        compiled(kernels.spans_kernel, {"BT": BT}, 1, **of_spans)
    compiled(kernels.track_kernel, of_inputs, **kinds)
    compiled(kernels.track_backward_kernel, of_gradients, **kinds)
    for drops in (True, False):
        compiled(kernels.compose_kernel, {**state, "DROPS": drops}, **kinds)
        compiled(kernels.compose_backward_kernel, {**state, "DROPS": drops}, **kinds)
    of_trees = {f"p_{name}": "*i64" for name in ("order", "sentence", "lengths", "rows")}
    for T in (2, 100):
        compiled(kernels.merges_kernel, {"BT": power_of_two(T)}, 1, **of_trees)


def charts() -> None:
    """Compile the kernels of charts."""
    from gumbeltree.ops.chart import fused, kernels

    sizes = fused.sizes(torch.empty(D))
    warps = int(sizes.pop("num_warps"))
    compiled(kernels.fill_kernel, sizes, warps, n="i32", p_split="*i64")
    compiled(kernels.fill_backward_kernel, sizes, warps, n="i32")


def multiplicative() -> None:
    """Compile the kernels of the multiplicative LSTM."""
    from gumbeltree.ops import mlstm
    from gumbeltree.ops.mlstm import kernels

    for first in (True, False):
        constants = {"D": D, "BD": mlstm.BD, "FIRST": first}
        compiled(kernels.gates_kernel, constants)
        compiled(kernels.gates_backward_kernel, constants)


def attention() -> None:
    """Compile the kernels of the GRU with attention, for products in float32 and bfloat16."""
    from gumbeltree.ops.attention_gru import _sizes, kernels

    sizes = _sizes(torch.empty(1, D, device="meta"))
    for kind in ("*fp32", "*bf16"):
        kinds = dict.fromkeys(("p_hidden", "p_read", "p_through", "p_dhidden"), kind)
        for keep in (True, False):
            compiled(kernels.step_kernel, {**sizes, "KEEP": keep}, **kinds)
        compiled(kernels.step_backward_kernel, sizes, **kinds)


def memories() -> None:
    """Compile the kernels of a memory that is rewritten word by word."""
    from gumbeltree.ops import memory
    from gumbeltree.ops.memory import kernels

    numbers = ("before", "last", "now", "n", "m_stride", "dm_stride")
    kinds = {"p_lengths": "*i64", **dict.fromkeys(numbers, "i32")}
    sizes = memory.sizes(D)
    warps = sizes.pop("num_warps")
    for first in (True, False):
        constants = {"K": 3 * D, "FIRST": first, **sizes}
        for kept in (True, False):
            compiled(kernels.word_kernel, constants | {"KEPT": kept}, warps, **kinds)
        compiled(kernels.word_backward_kernel, constants, warps, **kinds)


def main() -> None:
    """Compile all kernels, every compile-time branch and tile at least once."""
    for kind, words in (("*i64", True), ("*i32", False)):
        tables = {"out_start": "*i32", "out_lengths": "*i32", "out_previous": "*i32"}
        tables |= {"out_roots": "*i64", "out_ids": "*i64", "firsts": "*i64", "words": "*i32"}
        constants = {"BT": 64, "BLOCK": layout.BLOCK, "HAS_WORDS": words}
        compiled(layout.find_rows_kernel, constants, **tables, start=kind, lengths="*i64")
    compiled(forward.begin_kernel, {"BLOCK": fused_forward.BLOCK})
    for record in (True, False):
        BM, BD, warps = fused_forward.FIRST
        shape = {"D": D, "BM": BM, "BD": BD, "TILES": -(-D // BD), "RECORD": record}
        compiled(forward.first_layer_kernel, shape, warps)
    for precision in ("tf32", "bf16", "ieee"):
        dots = "ieee" if precision == "bf16" else precision
        operands = dict.fromkeys(OPERANDS, "*bf16") if precision == "bf16" else {}
        # in dense layouts and in others
        for width in (D, 0):
            BM, BN, BK, warps, stages = tile_on_gpu(fused_forward.PROJECT, precision, width)
            constants = {"D": D, "BM": BM, "BN": BN, "BK": BK, "PRECISION": dots}
            compiled(forward.project_kernel, constants, warps, stages, **operands)
        BM, BN, BK, warps, stages = tile_on_gpu(fused_backward.UNDO, precision, D)
        plain = estimator_constants(ST_GUMBEL, 16, False)
        variants = [(fused_backward.PARTS, 4096, True, True, plain)]
        if precision == "tf32":
            parts, rao = fused_backward.PARTS, ESTIMATORS[-1]
            variants += [(1, 16, False, False, plain), (2 * parts, 16, True, False, plain)]
            variants += [
                (parts, 32, True, False, estimator_constants(x, 32, True)) for x in ESTIMATORS
            ]
            # noise from a table, and more draws than fit into one tile
            variants += [(parts, 4096, True, True, estimator_constants(rao, 4096, False))]
        for parts, BT, sample, dscores, estimator in variants:
            constants = {"D": D, "BM": BM, "BN": BN, "BK": BK, "PARTS": parts, "PRECISION": dots}
            constants |= {"BT": BT, "PIECES": -(-D // fused_backward.UNITS["sparse"])}
            constants |= {"SPAN": fused_backward.SPAN, "SAMPLE": sample, "HAS_DSCORES": dscores}
            constants |= {"STATE": 2 * D, "GATES": 5 * D, "HAS_DIRECT": False, **estimator}
            kinds = operands | {"noise": "*i64" if estimator["FROM_KEYS"] else "*fp32"}
            compiled(backward.undo_kernel, constants, warps, stages, **kinds)
        BM, BD, BK, warps, stages = tile_on_gpu(fused_lstm.FORWARD, precision, D, columns=4)
        constants = {"D": D, "BACK": -1, "SAVE": True, "PRECISION": dots}
        constants |= {"BM": BM, "BD": BD, "BK": BK}
        compiled(lstm.lstm_fwd_kernel, constants, warps, stages, **operands)
        BM, BN, BK, warps, stages = tile_on_gpu(fused_lstm.BACKWARD, precision, D)
        constants = {"D": D, "BACK": -1, "PARTS": fused_lstm.PARTS, "PRECISION": dots}
        constants |= {"BM": BM, "BN": BN, "BK": BK}
        compiled(lstm.lstm_bwd_product_kernel, constants, warps, stages, **operands)
    for kernel in (features.features_kernel, features.features_backward_kernel):
        compiled(kernel, {"D": D, "BD": power_of_two(D)})
    BV, BE = adadelta.block(D)
    constants = {"RHO": 0.9, "LOG_RHO": -0.152, "EPS": 1e-6, "E": D, "BV": BV, "BE": BE}
    compiled(adadelta_kernels.update_kernel, constants, V="i32")
    constants = {"RHO": 0.9, "EPS": 1e-6, "B": adadelta.SMALL, "FIRSTS": (0, D, D + 1)}
    constants |= {"SIZES": (D * adadelta.SMALL, D), "DECAY": 0.01}
    four = dict.fromkeys(adadelta.Weights._fields, ("*fp32", "*fp32"))
    compiled(adadelta_kernels.update_weights_kernel, constants, **four)
    constants = {"WIDTH": 4 * D, "BW": power_of_two(4 * D), "BM": fused_lstm.CLEARED}
    compiled(lstm.clear_kernel, constants, N="i32")
    BM, BD, warps = fused_lstm.CELL
    constants = {"D": D, "BACK": -1, "GATHER": True, "PARTS": fused_lstm.PARTS, "BM": BM, "BD": BD}
    compiled(lstm.lstm_bwd_kernel, constants, warps)
    for begin, T, sample, keys, forced, scores in CHOICES:
        BT, BD, warps = fused_forward.step_block(T, D)
        constants = {"SLACK": 1e-6, "D": D, "BD": BD, "BT": BT, "BEGIN": begin}
        constants |= {"SAMPLE": sample, "FROM_KEYS": keys, "FORCED": forced, "RECORD": True}
        constants |= {"NOISE_SCALE": 0.4 if forced else 1.0, "SOFTMAX": not forced}
        noise = "*i64" if keys else "*fp32"
        compiled(forward.step_kernel, constants | {"KEEP_SCORES": scores}, warps, noise=noise)
    for kind, (BJ, warps) in fused_backward.SEND.items():
        BD = fused_backward.UNITS["dense" if kind == "dense" else "sparse"]
        variants = [(True, True, True)]
        if kind == "dense":
            variants += [(True, False, False), (False, False, True)]
        for scored, sample, dnodes in variants:
            constants = {"D": D, "BJ": BJ, "BD": BD, "PIECES": -(-D // BD), "SCORED": scored}
            constants |= {"PARTS": fused_backward.PARTS if scored else 1, "SAMPLE": sample}
            constants |= {"HAS_DNODES": dnodes}
            compiled(backward.send_kernel, constants, warps)
    BM, BD, warps = fused_backward.SHARES
    BD = min(BD, power_of_two(D))
    compiled(backward.score_backward_kernel, {"D": D, "BM": BM, "BD": BD}, warps)
    for has_droot in (True, False):
        constants = {"D": D, "STATE": 2 * D, "BD": power_of_two(D), "HAS_DROOT": has_droot}
        compiled(backward.roots_kernel, constants, 2, roots="*i64")
    width = -(-(2 * D + 1) // 4) * 4
    constants = {"D": D, "STATE": 2 * D, "WIDTH": width, "BW": power_of_two(width)}
    compiled(backward.children_kernel, constants, 2)


if __name__ == "__main__":
    with ExitStack() as stack:
        for folder in sys.argv[3:]:
            from triton.backends.nvidia.compiler import CUDABackend

            # apart from the usual cache, which must not contain empty kernels
            triton.knobs.cache.dir = folder
            stack.enter_context(mock.patch.object(CUDABackend, "make_cubin", return_value=b""))
        main()
        gated()
        beams()
        shift_reduce()
        charts()
        multiplicative()
        attention()
        memories()
