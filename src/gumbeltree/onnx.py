"""Export models to ONNX: word ids -> vectors, greedy trees and class probabilities.

The graphs compute what `gumbeltree.light` computes, on padded batches. Legend: B sentences, T words
in the longest, D state width, E width of the word vectors, C classes.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gumbeltree import __version__
from gumbeltree.atomic import replace_file
from gumbeltree.config import POOLINGS, QUERY_SCORES, ModelConfig
from gumbeltree.extras import needs
from gumbeltree.fixed_orders import order_table
from gumbeltree.light.arrays import Array, within
from gumbeltree.parts import HEADS
from gumbeltree.store import WORD_VECTORS
from gumbeltree.text_model import TextModel

OPSET = 21
"""Version of the ONNX operators; onnxruntime supports it since version 1.20."""
MOST_BYTES = 2_000_000_000
"""Largest size of the weights: an ONNX file holds at most 2 GiB."""
MOST_FIXED = 2048
"""Largest `max_words` of fixed trees, whose merges are stored for every length."""

SUPPORTED = {
    "encoder": ("gumbel_tree", "fixed_tree", "bag", "lstm"),
    "leaf": ("affine", "lstm", "bilstm"),
    "cell": ("treelstm",),
    "score": QUERY_SCORES,
    "trees": ("left", "right", "balanced", "random"),
    "pooling": POOLINGS,
    "head": ("single", "pair", "similarity"),
}
"""Parts and settings that can be exported."""


def export(model: TextModel, path: str | Path) -> None:
    """Write a model to an ONNX file, which other programs run without gumbeltree.

    The inputs are `ids`, int64 `[B, T]`, padded with any valid id, and `lengths`, int64 `[B]`, each
    in 1..T. The outputs are `vector`, float32 `[B, D]`; `order`, int64 `[B, T-1]`, the merges of
    the greedy tree, -1 past the end of a sentence, if the encoder builds trees; and, for
    classifiers, `logits` and `probabilities`, float32 `[B, C]`. Classifiers of sentence pairs also
    have the inputs `ids2` and `lengths2` and the outputs `vector2` and `order2`.

    The metadata of the file hold the entries `labels`, `max_words` and `provenance` in JSON,
    `tokenizer.json`, which the package `tokenizers` reads, `name` and `gumbeltree_version`. Weights
    are converted to float32, except for word vectors in float16.

    Args:
        model: a model of either runtime, as `gumbeltree.load` returns it.
        path: the file to write, which usually ends in .onnx.

    Raises:
        ImportError: If the package `onnx` is not installed.
        ValueError: If a part of the model cannot be exported, or the model is too large.
    """
    check_exportable(model.config)
    with needs("ONNX export", "onnx", "onnx", "onnx"):
        import onnx

    weights = {name: x if x.dtype == np.float16 else np.asarray(x, np.float32)
               for name, x in _arrays(model).items()}  # fmt: skip
    if (size := sum(x.nbytes for x in weights.values())) > MOST_BYTES:
        raise ValueError(
            f"an ONNX file holds at most {MOST_BYTES:,} bytes, and this model has {size:,}; use "
            "fewer words, or save it with half_embeddings=True and export it with the NumPy runtime"
        )
    graph = _Graph()
    inputs, outputs = _emit(graph, model.config, weights)
    built = onnx.helper.make_model(
        onnx.helper.make_graph(
            graph.nodes, "gumbeltree", inputs, outputs, [*graph.shared.initializers]
        ),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=onnx.helper.OP_SET_ID_VERSION_MAP[("ai.onnx", OPSET)],
        producer_name="gumbeltree",
        producer_version=__version__,
    )
    onnx.helper.set_model_props(
        built,
        {
            "gumbeltree_version": __version__,
            "labels": json.dumps(model.labels),
            "max_words": json.dumps(model.config.max_words),
            "name": str(model.provenance.get("recipe_name") or "gumbeltree"),
            "provenance": json.dumps(model.provenance),
            "tokenizer.json": model.tokenizer.to_str(),
        },
    )
    onnx.checker.check_model(built, full_check=True)
    replace_file(Path(path), lambda temporary: onnx.save(built, temporary))


def check_exportable(config: ModelConfig) -> None:
    """Raise a ValueError that names the first part or setting that cannot be exported."""
    encoder = config.encoder
    found = {"encoder": encoder.kind, "head": config.head.kind}
    for name in ("leaf", "cell", "score", "trees", "pooling"):
        value = getattr(encoder, name, None)
        if value is not None:
            found[name] = getattr(value, "kind", value)
    for part, name in found.items():
        if name not in SUPPORTED[part]:
            raise ValueError(
                f"the {part} {name!r} cannot be exported to ONNX; supported: "
                f"{', '.join(SUPPORTED[part])}"
            )
    if encoder.kind == "fixed_tree" and config.max_words > MOST_FIXED:
        raise ValueError(
            f"fixed trees can be exported to ONNX for `max_words` up to {MOST_FIXED}, got "
            f"{config.max_words}; lower it in config.json"
        )


def _arrays(model: TextModel) -> Mapping[str, Array]:
    """Return the weights of a model of either runtime, by name."""
    network = getattr(model, "network", None)
    if network is not None:
        found: Mapping[str, Array] = network.weights
        return found
    state: Mapping[str, Any] = model.state_dict()  # type: ignore[attr-defined]
    return {name: x.detach().cpu().float().numpy() for name, x in state.items()}


class _Shared:
    """What a graph shares with the bodies of its loops: constants and the next free name."""

    def __init__(self) -> None:
        self.initializers: list[Any] = []
        self.known: dict[Any, str] = {}
        self.count = 0


class _Graph:
    """Nodes of a graph or of the body of a loop. Calling it adds a node.

    Args:
        shared: what the body of a loop shares with its graph.
    """

    def __init__(self, shared: _Shared | None = None) -> None:
        self.nodes: list[Any] = []
        self.shared = shared or _Shared()

    def __call__(
        self, op: str, *inputs: "str | NDArray[Any] | np.float32", **attributes: Any
    ) -> str:
        """Add a node with one output; return its name. Arrays become constants."""
        return self.several(op, 1, *inputs, **attributes)[0]

    def several(
        self, op: str, outputs: int, *inputs: "str | NDArray[Any] | np.float32", **attributes: Any
    ) -> list[str]:
        """Add a node; return the names of its outputs."""
        from onnx import helper

        names = [self.name(op) for _ in range(outputs)]
        given = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        self.nodes.append(helper.make_node(op, given, names, **attributes))
        return names

    def rename(self, name: str, output: str) -> None:
        """Give a result the name of an output."""
        from onnx import helper

        self.nodes.append(helper.make_node("Identity", [name], [output]))

    def name(self, stem: str) -> str:
        """Return a new name."""
        self.shared.count += 1
        return f"{stem.lower()}_{self.shared.count}"

    def constant(self, array: "NDArray[Any] | np.float32") -> str:
        """Return the name of a constant, stored once."""
        from onnx import numpy_helper

        key = array.dtype.str, array.shape, array.tobytes()
        if key not in self.shared.known:
            name = self.shared.known[key] = self.name("constant")
            in_order = np.asarray(array, order="C")
            self.shared.initializers.append(numpy_helper.from_array(in_order, name))
        return self.shared.known[key]

    def split(self, x: str, sizes: Sequence[int]) -> list[str]:
        """Split the last axis."""
        return self.several("Split", len(sizes), x, _ints(*sizes), axis=-1)

    def size(self, x: str, axis: int) -> str:
        """Return the size of an axis, `[1]`."""
        return self("Shape", x, start=axis, end=axis + 1)

    def count_to(self, size: str) -> str:
        """Return 0, 1, ..., size - 1."""
        return self("Range", _int(0), self("Squeeze", size), _int(1))

    def linear(self, x: str, weight: Array, bias: Array) -> str:
        """Return W x + b, as `torch.nn.functional.linear` does."""
        return self("Add", self("MatMul", x, weight.T), bias)


def _int(value: int) -> NDArray[np.int64]:
    """Return a scalar constant."""
    return np.array(value, np.int64)


def _ints(*values: int) -> NDArray[np.int64]:
    """Return a constant vector."""
    return np.array(values, np.int64)


def _emit(
    g: _Graph, config: ModelConfig, weights: Mapping[str, Array]
) -> tuple[list[Any], list[Any]]:
    """Add the nodes of a model; return descriptions of its inputs and outputs."""
    kind, D = config.encoder.kind, config.encoder.hidden_dim
    inputs, outputs, vectors = [], [], []
    for suffix in ("", "2") if config.head.kind == "pair" else ("",):
        ids, lengths = f"ids{suffix}", f"lengths{suffix}"
        words = f"words{suffix}"
        inputs += [_described(ids, "int64", "batch", words), _described(lengths, "int64", "batch")]
        embedded = g("Gather", weights[WORD_VECTORS], ids)  # [B, T, E]
        if weights[WORD_VECTORS].dtype == np.float16:
            embedded = g("Cast", embedded, to=_type("float32"))
        own = within(weights, "encoder")
        if kind == "bag":
            vector, order = _bag(g, embedded, lengths, own), None
        elif kind == "lstm":
            vector, order = _last_state(g, embedded, lengths, within(own, "leaf")), None
        else:
            vector, order = _tree(g, config, embedded, lengths, own)
        vectors.append(vector)
        g.rename(vector, f"vector{suffix}")
        outputs.append(_described(f"vector{suffix}", "float32", "batch", D))
        if order is not None:
            g.rename(order, f"order{suffix}")
            outputs.append(_described(f"order{suffix}", "int64", "batch", f"merges{suffix}"))
    if config.head.kind == "similarity":
        # the cosine of two vectors needs no graph
        return inputs, outputs
    logits = _head(g, config, vectors, within(weights, "head"))
    g.rename(logits, "logits")
    g.rename(g("Softmax", logits, axis=-1), "probabilities")
    classes = "batch", len(config.head.labels)
    outputs += [_described(name, "float32", *classes) for name in ("logits", "probabilities")]
    return inputs, outputs


def _type(name: str) -> int:
    """Return the number of a dtype in ONNX."""
    from onnx import helper

    number: int = helper.np_dtype_to_tensor_dtype(np.dtype(name))
    return number


def _described(name: str, dtype: str, *shape: int | str | None) -> Any:
    """Return the description of an input or output."""
    from onnx import helper

    return helper.make_tensor_value_info(name, _type(dtype), shape)


# Encoders without a tree.


def _mask(g: _Graph, words: str, lengths: str) -> str:
    """Return which entries of words `[B, T, ...]` lie in a sentence, bool `[B, T]`."""
    return g("Less", g.count_to(g.size(words, 1)), g("Unsqueeze", lengths, _ints(1)))


def _sum(g: _Graph, words: str, lengths: str) -> str:
    """Return the sum of the words `[B, T, E]` of each sentence, `[B, E]`."""
    inside = g("Unsqueeze", _mask(g, words, lengths), _ints(2))
    return g("ReduceSum", g("Where", inside, words, np.float32(0)), _ints(1), keepdims=0)


def _unit(g: _Graph, x: str) -> str:
    """Return vectors `[B, D]` scaled to length 1."""
    return g("Div", x, g("Max", g("ReduceL2", x, _ints(-1)), np.float32(1e-12)))


def _bag(g: _Graph, words: str, lengths: str, weights: Mapping[str, Array]) -> str:
    """Return W x + b of the mean of the words `[B, T, E]`."""
    total = _sum(g, words, lengths)
    count = g("Cast", g("Unsqueeze", lengths, _ints(1)), to=_type("float32"))
    return g.linear(g("Div", total, count), weights["word.weight"], weights["word.bias"])


def _last_state(g: _Graph, words: str, lengths: str, weights: Mapping[str, Array]) -> str:
    """Return the last state of an LSTM over the words `[B, T, E]`."""

    def gates(name: str) -> Array:
        # the order i, f, g, o becomes i, o, f, g
        i, f, c, o = np.split(weights[name], 4)
        return np.concatenate([i, o, f, c])[None]

    first = gates("bias_ih")
    second = gates("bias_hh") if "bias_hh" in weights else np.zeros_like(first)
    bias = np.concatenate([first, second], axis=1)
    by_position = g("Transpose", words, perm=[1, 0, 2])
    short = g("Cast", lengths, to=_type("int32"))
    matrices = gates("weight_ih"), gates("weight_hh")
    D = weights["weight_hh"].shape[1]
    _, last = g.several("LSTM", 2, by_position, *matrices, bias, short, hidden_size=D)
    return g("Squeeze", last, _ints(0))


# Encoders that merge words into a tree.


def _leaf(
    g: _Graph, kind: str, words: str, lengths: str, weights: Mapping[str, Array]
) -> tuple[str, str]:
    """Return h and c of the words `[B, T, E]`, each `[B, T, D]`."""
    if kind == "affine":
        states = g.linear(words, weights["weight"], weights["bias"])
        h, c = g.several("Split", 2, states, axis=-1, num_outputs=2)
        return h, c
    if kind == "lstm":
        return _lstm(g, words, weights)
    inside = g("Cast", _mask(g, words, lengths), to=_type("float32"))
    there = _lstm(g, words, within(weights, "forwards"))
    back = _lstm(g, words, within(weights, "backwards"), g("Unsqueeze", inside, _ints(2)))
    h, c = (g("Concat", *pair, axis=-1) for pair in zip(there, back, strict=True))
    return h, c


def _lstm(
    g: _Graph, words: str, weights: Mapping[str, Array], inside: str | None = None
) -> tuple[str, str]:
    """Return h and c of an LSTM at every word; the operator `LSTM` returns only the last c.

    Args:
        g: the graph.
        words: `[B, T, E]`.
        weights: those of `torch.nn.LSTMCell`.
        inside: 1 for words and 0 for padding, `[B, T, 1]`, to read from the last word to the first.
    """
    from onnx import helper

    D = weights["weight_hh"].shape[1]
    inputs = g.linear(words, weights["weight_ih"], weights["bias_ih"] + weights.get("bias_hh", 0))
    zero = g("ConstantOfShape", g("Concat", g.size(words, 0), _ints(D), axis=0))
    body = _Graph(g.shared)
    h, c, x = body.name("h"), body.name("c"), body.name("x")
    given = [_described(name, "float32", None, D) for name in (h, c)]
    given.append(_described(x, "float32", None, 4 * D))
    gates = body("Add", x, body("MatMul", h, weights["weight_hh"].T))
    i, f, new, o = body.split(gates, [D] * 4)
    kept = body("Mul", body("Sigmoid", f), c)
    new_c = body("Add", kept, body("Mul", body("Sigmoid", i), body("Tanh", new)))
    new_h = body("Mul", body("Sigmoid", o), body("Tanh", new_c))
    scanned = [inputs]
    if inside is not None:
        # the state stays zero until the last word of a sentence
        word = body.name("inside")
        given.append(_described(word, "float32", None, 1))
        new_h, new_c = body("Mul", new_h, word), body("Mul", new_c, word)
        scanned.append(inside)
    results = [body("Identity", state) for state in (new_h, new_c, new_h, new_c)]
    described = [_described(name, "float32", None, D) for name in results]
    direction = int(inside is not None)
    _, _, *states = g.several(
        "Scan",
        4,
        *(zero, zero, *scanned),
        body=helper.make_graph(body.nodes, body.name("lstm"), given, described),
        num_scan_inputs=len(scanned),
        scan_input_axes=[1] * len(scanned),
        scan_output_axes=[1, 1],
        scan_input_directions=[direction] * len(scanned),
        scan_output_directions=[direction] * 2,
    )
    return states[0], states[1]


def _compose(
    g: _Graph, h: str, c_left: str, c_right: str, weights: Mapping[str, Array], offset: float
) -> tuple[str, str]:
    """Return h and c of candidates (Eqs. 1-3), each `[..., D]`.

    Args:
        g: the graph.
        h: hidden states of both children, `[..., 2D]`.
        c_left: cell states of the left children, `[..., D]`.
        c_right: cell states of the right children, `[..., D]`.
        weights: those of the Tree-LSTM cell.
        offset: added to the forget gates.
    """
    D = weights["weight"].shape[1] // 2
    # the order i, f_l, f_r, g, o becomes i, f_l, f_r, o, g
    i, f_l, f_r, new, o = np.split(weights["weight"], 5)
    weight = np.concatenate([i, f_l, f_r, o, new])
    i, f_l, f_r, new, o = np.split(weights["bias"], 5)
    bias = np.concatenate([i, f_l + np.float32(offset), f_r + np.float32(offset), o, new])
    sigmoids, tanh = g.split(g.linear(h, weight, bias), [4 * D, D])
    i_, l_, r_, o_ = g.split(g("Sigmoid", sigmoids), [D] * 4)
    parts = g("Mul", l_, c_left), g("Mul", r_, c_right), g("Mul", i_, g("Tanh", tanh))
    c = g("Sum", *parts)
    return g("Mul", o_, g("Tanh", c)), c


def _tree(
    g: _Graph, config: ModelConfig, words: str, lengths: str, weights: Mapping[str, Array]
) -> tuple[str, str]:
    """Return vectors `[B, D]` and merges `[B, T-1]` of words `[B, T, E]`.

    Each sentence gets a placeholder before its first word and another one at its end, so that every
    node has two neighbours. A position has two rows of `table`: that of its node, and that of the
    candidate which joins the node with the next one. Rows hold h and c.
    """
    encoder = config.encoder
    D, cell, offset = encoder.hidden_dim, within(weights, "cell"), encoder.cell.forget_offset
    query, order = np.zeros(D, np.float32), None
    if encoder.kind == "fixed_tree":
        # int16 keeps the table of all lengths small
        stored = order_table(encoder.trees, config.max_words + 1).astype(np.int16)
        order = g("Cast", g("Gather", stored, lengths), to=_type("int64"))
    else:
        scale = 1 / math.sqrt(D) if encoder.score == "scaled_dot" else 1.0
        query = weights["query"] * np.float32(scale)
    B, T = g.size(words, 0), g.size(words, 1)
    width = g("Add", T, _int(2))
    h, c = _leaf(g, encoder.leaf.kind, words, lengths, within(weights, "leaf"))  # [B, T, D]
    nodes = g("Pad", g("Concat", h, c, axis=-1), _ints(1, 1), "", _ints(1))  # [B, T+2, 2D]
    h_l, c_l = g.split(g("Slice", nodes, _ints(0), _ints(-1), _ints(1)), [D, D])  # [B, T+1, D]
    h_r, c_r = g.split(g("Slice", nodes, _ints(1), _ints(2**31), _ints(1)), [D, D])
    made_h, made_c = _compose(g, g("Concat", h_l, h_r, axis=-1), c_l, c_r, cell, offset)
    made = g("Pad", g("Concat", made_h, made_c, axis=-1), _ints(0, 1), "", _ints(1))
    table = g("Reshape", g("Concat", nodes, made, axis=-1), _ints(-1, 2 * D))  # [2B(T+2), 2D]
    rows = g("Mul", g.count_to(g("Mul", B, width)), _int(2))
    alive = g("Reshape", rows, g("Concat", B, width, axis=0))  # [B, T+2]
    place = g.count_to(width)
    valid = g(
        "And", g("Greater", place, _int(0)), g("Less", place, g("Unsqueeze", lengths, _ints(1)))
    )
    scored = g("MatMul", g("Pad", made_h, _ints(0, 1), "", _ints(1)), query[:, None])
    scores = g("Where", valid, g("Squeeze", scored, _ints(2)), np.float32(-np.inf))
    # single words have no merge; one step, whose results are dropped, avoids empty outputs
    merges = g("Sub", T, _int(1))
    steps = g("Max", merges, _ints(1))
    body = _merge_step(
        g,
        query,
        cell,
        offset,
        order,
        place,
        g("Min", g("Add", place, _int(1)), g("Add", T, _int(1))),
    )
    *_, choices, parents = g.several(
        "Loop", 5, g("Squeeze", steps), "", table, alive, scores, body=body
    )
    last = g("Unsqueeze", g("Sub", lengths, _int(1)), _ints(1))
    exists = g("Less", g.count_to(steps), last)  # [B, steps]
    choices = g("Sub", g("Transpose", g("Squeeze", choices, _ints(2)), perm=[1, 0]), _int(1))
    choices = g("Where", exists, choices, _int(-1))
    parents = g("Transpose", g("Squeeze", parents, _ints(2)), perm=[1, 0, 2])
    h = g("Concat", h, parents, axis=1)  # [B, T + steps, D]
    mask = g("Concat", _mask(g, words, lengths), exists, axis=1)
    vector = _pooled(g, encoder, h, mask, lengths, T)
    if encoder.add_words:
        total = _sum(g, words, lengths)
        vector = g("Add", _unit(g, vector), _unit(g, total))
    return vector, g("Slice", choices, _ints(0), merges, _ints(1))


def _merge_step(
    g: _Graph,
    query: Array,
    cell: Mapping[str, Array],
    offset: float,
    order: str | None,
    place: str,
    after: str,
) -> Any:
    """Return the body of the loop over the merges.

    It carries the table; the rows of the nodes that are left, from left to right, `[B, T+2]`; and
    the scores of the candidates that join them with the next node, -inf if there is none. A merge
    replaces three rows: the candidate becomes the node of its position, which gets new candidates
    on both sides. Sentences that are finished merge placeholders. The body also returns the
    position of each merge among the nodes, counted from 1, `[B, 1]`, and the new node `[B, 1, D]`.

    Args:
        g: the graph around the loop.
        query: scaled query vector `[D]`.
        cell: weights of the cell.
        offset: added to the forget gates.
        order: merges to follow, `[B, T-1]`; None to take the highest score.
        place: 0, 1, ..., T+1.
        after: 1, 2, ..., T+1, T+1.
    """
    from onnx import helper

    D, body = len(query), _Graph(g.shared)
    step, go_on, table, alive, scores = map(
        body.name, ("step", "go_on", "table", "alive", "scores")
    )
    given = [
        _described(step, "int64"),
        _described(go_on, "bool"),
        _described(table, "float32", None, 2 * D),
        _described(alive, "int64", None, None),
        _described(scores, "float32", None, None),
    ]
    if order is None:
        # the leftmost maximum up to rounding; see `ops.merge.argmax`
        epsilons = np.float32(16 * np.finfo(np.float32).eps)
        size = np.float32(epsilons * math.hypot(*query.tolist()))
        best = body("ReduceMax", scores, _ints(1))
        slack = body("Max", body("Mul", body("Abs", best), epsilons), size)
        close = body("GreaterOrEqual", scores, body("Sub", best, slack))
        choice = body("ArgMax", body("Cast", close, to=_type("int32")), axis=1)  # [B, 1]
    else:
        index = body("Unsqueeze", step, _ints(0))
        choice = body("Add", body("Gather", order, index, axis=1), _int(1))
    # both children of both new candidates, then the rows to replace
    near = body("GatherElements", alive, body("Add", choice, _ints(-1, 0, 0, 2, -1, 0, 0)), axis=1)
    near = body("Add", near, _ints(0, 1, 1, 0, 1, 1, 0))
    old, new = body.split(near, [4, 3])
    states = body("Gather", table, old)  # [B, 4, 2D]
    h, c = body.split(states, [D, D])
    h = body("Reshape", h, _ints(0, 2, 2 * D))
    c_l, c_r = body.split(body("Reshape", c, _ints(0, 2, 2 * D)), [D, D])
    new_h, new_c = _compose(body, h, c_l, c_r, cell, offset)  # [B, 2, D]
    parent = body("Slice", states, _ints(1), _ints(2), _ints(1))  # [B, 1, 2D]
    rows = body("Concat", body("Concat", new_h, new_c, axis=-1), parent, axis=1)  # [B, 3, 2D]
    new_table = body("ScatterND", table, body("Unsqueeze", new, _ints(2)), rows)
    # the right child leaves; a candidate next to a placeholder stays impossible
    shift = body("Where", body("Greater", place, choice), after, place)
    beside = body("GatherElements", scores, body("Add", choice, _ints(-1, 1)), axis=1)
    fresh = body("Squeeze", body("MatMul", new_h, query[:, None]), _ints(2))
    fresh = body("Where", body("IsInf", beside), beside, fresh)  # [B, 2]
    new_scores = body("GatherElements", scores, shift, axis=1)
    both = body("Add", choice, _ints(-1, 0))
    new_scores = body("ScatterElements", new_scores, both, fresh, axis=1)
    results = [
        _described(body("Identity", go_on), "bool"),
        _described(new_table, "float32", None, 2 * D),
        _described(body("GatherElements", alive, shift, axis=1), "int64", None, None),
        _described(new_scores, "float32", None, None),
        _described(body("Identity", choice), "int64", None, 1),
        _described(body.split(parent, [D, D])[0], "float32", None, 1, D),
    ]
    return helper.make_graph(body.nodes, body.name("merge"), given, results)


def _pooled(g: _Graph, encoder: Any, h: str, mask: str, lengths: str, T: str) -> str:
    """Return the vectors of trees `[B, D]`.

    Args:
        g: the graph.
        encoder: settings of the encoder.
        h: words and then merged nodes, `[B, T + steps, D]`.
        mask: which nodes exist, bool `[B, T + steps]`.
        lengths: words per sentence `[B]`.
        T: number of words `[1]`.
    """
    if not encoder.attention and encoder.pooling == "root":
        root = g("Add", lengths, g("Sub", T, _int(2)))
        root = g("Where", g("Equal", lengths, _int(1)), _int(0), root)
        return g("GatherND", h, g("Unsqueeze", root, _ints(1)), batch_dims=1)
    real = g("Unsqueeze", mask, _ints(2))
    clean = g("Where", real, h, np.float32(0))
    count = g("Sub", g("Mul", g("Unsqueeze", lengths, _ints(1)), _int(2)), _int(1))
    total = g("ReduceSum", clean, _ints(1), keepdims=0)
    mean = g("Div", total, g("Cast", count, to=_type("float32")))
    if encoder.attention:
        scores = g("MatMul", clean, g("Unsqueeze", mean, _ints(2)))  # [B, T + steps, 1]
        scores = g("Where", real, scores, np.float32(-np.inf))
        weighted = g("Mul", g("Softmax", scores, axis=1), clean)
        return g("ReduceSum", weighted, _ints(1), keepdims=0)
    highest = g("ReduceMax", g("Where", real, h, np.float32(-np.inf)), _ints(1), keepdims=0)
    return highest if encoder.pooling == "max" else g("Add", mean, highest)


def _head(
    g: _Graph, config: ModelConfig, vectors: Sequence[str], weights: Mapping[str, Array]
) -> str:
    """Return the scores of the classes `[B, C]` from vectors `[B, D]`, one per sentence."""
    head = HEADS.light_version(config.head.kind)(config.head, config.encoder.hidden_dim, weights)
    x = vectors[0]
    if len(vectors) == 2:
        u, v = vectors
        apart = g("Sub", u, v)
        apart = {
            "abs": lambda: g("Abs", apart),
            "signed": lambda: apart,
            "squared": lambda: g("Mul", apart, apart),
        }[config.head.difference]()
        x = g("Concat", u, v, apart, g("Mul", u, v), axis=-1)

    def normalized(x: str, name: str) -> str:
        if name not in head.norms:
            return x
        factor, offset = head.norms[name]
        return g("Add", g("Mul", x, factor), offset)

    x = features = normalized(x, "batch_norm_in")
    for i, (weight, bias) in enumerate(head.hidden):
        if i and config.head.skip:
            x = g("Concat", x, features, axis=-1)
        x = normalized(g("Relu", g.linear(x, weight.T, bias)), f"batch_norm_between.{i}")
    weight, bias = head.last
    return g.linear(normalized(x, "batch_norm_out"), weight.T, bias)
