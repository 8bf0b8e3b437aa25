"""Test the public encoder: shapes, padding, batches, seeds, forced trees, attention, errors."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gumbeltree import EncoderConfig, GumbelTreeEncoder, Tree
from gumbeltree.noise import gumbel_noise
from gumbeltree.parts import ENCODERS, LEAVES
from tests.models import IMPLS

CONFIG = EncoderConfig(embedding_dim=3, hidden_dim=4)
LENGTHS = torch.tensor([5, 1, 7, 2])


def encoder(**fields: object) -> GumbelTreeEncoder:
    made: GumbelTreeEncoder = ENCODERS["gumbel_tree"](dataclasses.replace(CONFIG, **fields))
    torch.nn.init.normal_(made.query)
    return made


def words(B: int = 4, T: int = 7) -> Tensor:
    return torch.randn(B, T, 3)


each_impl = pytest.mark.parametrize("impl", IMPLS)
each_leaf = pytest.mark.parametrize("leaf", LEAVES)


@each_impl
@pytest.mark.parametrize(("leaf", "attention"), [("affine", True), ("lstm", False)])
def test_shapes(impl: str, leaf: str, attention: bool) -> None:
    e = encoder(impl=impl, leaf=leaf, attention=attention)
    plain = e(words(), LENGTHS)
    vector, order = plain
    assert vector.shape == (4, 4)
    assert order.shape == (4, 6)
    assert order.dtype == torch.int64
    assert plain.nodes is None
    assert plain.scores is None
    full = e(words(), LENGTHS, details=True)
    assert full.nodes.h.shape == full.nodes.c.shape == (4, 13, 4)
    assert full.scores.shape == full.probabilities.shape == (4, 6, 6)
    assert (full.attention is not None) == attention


@each_impl
def test_order_is_a_tree_and_ends_with_minus_one(impl: str) -> None:
    order = encoder(impl=impl)(words(), LENGTHS).order
    for row, length in zip(order.tolist(), LENGTHS.tolist(), strict=True):
        assert row[length - 1 :] == [-1] * (7 - length)
        assert len(Tree([str(i) for i in range(length)], row[: length - 1]).spans) == length - 1


@each_impl
def test_details_are_consistent(impl: str) -> None:
    e = encoder(impl=impl)
    full = e(words(), LENGTHS, details=True, sample=False)
    for b, length in enumerate(LENGTHS.tolist()):
        made = 7 + length - 2 if length > 1 else 0
        assert torch.equal(full.nodes.h[b, made], full.vector[b])
        exists = [i < length or 7 <= i < 7 + length - 1 for i in range(13)]
        assert (full.nodes.h[b].abs().sum(1) > 0).tolist() == exists
        for t in range(6):
            candidates = max(length - 1 - t, 0)
            assert torch.isfinite(full.scores[b, t]).tolist() == [j < candidates for j in range(6)]
            if candidates:
                assert full.scores[b, t].argmax() == full.order[b, t]
                total = full.scores[b, t, :candidates].exp()
                expected = total / total.sum()  # Eq. 12
                torch.testing.assert_close(full.probabilities[b, t, :candidates], expected)
            assert not full.probabilities[b, t, candidates:].any()


@each_impl
@pytest.mark.parametrize("variant", ["paper", "reference"])
def test_greedy_choice_is_the_argmax_for_initial_weights(impl: str, variant: str) -> None:
    # the initial query is small, and so are the differences between scores
    config = EncoderConfig(50, 100, impl=impl).with_variant(variant)
    e = GumbelTreeEncoder(config).eval()
    full = e(torch.randn(100, 15, 50), torch.full((100,), 15), details=True)
    assert torch.equal(full.scores.argmax(-1), full.order)


@each_impl
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_noise_of_any_floating_type(impl: str, dtype: torch.dtype) -> None:
    e, x, noise = encoder(impl=impl), words(), gumbel_noise((4, 6, 6)).to(dtype)
    expected = e(x, LENGTHS, noise=noise.float(), details=True)
    result = e(x, LENGTHS, noise=noise, details=True)
    assert torch.equal(result.order, expected.order)
    assert result.scores.dtype == torch.float32
    result.vector.sum().backward()


@each_impl
def test_amount_of_padding_has_no_effect(impl: str) -> None:
    e, x = encoder(impl=impl, attention=True), words()
    results = []
    for more in (0, 5):
        wide = torch.nn.functional.pad(x, (0, 0, 0, more), value=math.nan)
        torch.manual_seed(2)
        results.append(e(wide, LENGTHS, details=True))
    narrow, wide = results
    assert torch.equal(narrow.vector, wide.vector)
    assert torch.equal(narrow.order, wide.order[:, :6])
    assert (wide.order[:, 6:] == -1).all()
    assert wide.nodes.h.shape == (4, 23, 4)
    assert torch.equal(narrow.nodes.h[:, :7], wide.nodes.h[:, :7])
    assert torch.equal(narrow.nodes.h[:, 7:], wide.nodes.h[:, 12:18])
    assert torch.equal(narrow.attention[:, 7:], wide.attention[:, 12:18])
    assert torch.equal(narrow.scores, wide.scores[:, :6, :6])
    assert torch.equal(narrow.probabilities, wide.probabilities[:, :6, :6])
    assert (wide.scores[:, 6:] == -math.inf).all()


@each_impl
def test_sampling_follows_the_mode_by_default(impl: str) -> None:
    e = encoder(impl=impl)
    x, noise = words(), 10 * gumbel_noise((4, 6, 6))
    sampled = e(x, LENGTHS, noise=noise, sample=True).order
    greedy = e(x, LENGTHS, sample=False).order
    assert not torch.equal(sampled, greedy)
    assert torch.equal(e.train()(x, LENGTHS, noise=noise).order, sampled)
    assert torch.equal(e.eval()(x, LENGTHS, noise=noise).order, greedy)
    assert torch.equal(e.eval()(x, LENGTHS, noise=noise, sample=True).order, sampled)


def gradients(e: GumbelTreeEncoder, x: Tensor, **arguments: object) -> list[Tensor]:
    x = x.clone().requires_grad_()
    e.zero_grad()
    result = e(x, LENGTHS, details=True, **arguments)
    weight = torch.linspace(-1, 1, result.nodes.h.numel()).view_as(result.nodes.h)
    # past the end of a sentence, nodes are zero and have no gradient
    ((result.vector**2).sum() + (result.nodes.h * weight).sum()).backward()
    parameters = [p.grad.clone() for p in e.parameters() if p.grad is not None]
    outputs = [result.vector, *result.nodes, result.scores, result.probabilities]
    return [*(y.detach() for y in outputs), result.order, x.grad, *parameters]


@each_impl
@pytest.mark.parametrize(
    ("leaf", "mode", "attention"),
    [("affine", "sampled", True), ("lstm", "greedy", False), ("bilstm", "forced", True)],
)
def test_padding_is_never_read(impl: str, leaf: str, mode: str, attention: bool) -> None:
    e = encoder(impl=impl, leaf=leaf, attention=attention)
    clean, noise = words(), gumbel_noise((4, 6, 6))
    order = torch.zeros(4, 6, dtype=torch.int64)
    step = torch.arange(6)
    outside_words = torch.arange(7) >= LENGTHS[:, None]
    outside_noise = step[:, None] + step >= (LENGTHS - 1)[:, None, None]
    outside_order = step >= (LENGTHS - 1)[:, None]
    results = []
    for garbage, number in [(0.0, 0), (math.nan, -7), (-math.inf, 2**62)]:
        x = clean.masked_fill(outside_words[..., None], garbage)
        arguments: dict[str, object] = {"sample": mode == "sampled"}
        if mode == "sampled":
            arguments["noise"] = noise.masked_fill(outside_noise, garbage)
        if mode == "forced":
            arguments["order"] = order.masked_fill(outside_order, number)
        results.append(gradients(e, x, **arguments))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)
    dx = results[0][6]
    assert not dx[outside_words].any()
    assert dx[~outside_words].abs().sum(1).min() > 0


@each_impl
@settings(max_examples=10)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(0, 1000))
def test_batch_equals_its_sentences_one_by_one(impl: str, lengths: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    e = encoder(impl=impl, leaf="bilstm").double()
    T = max(lengths) + 1
    x = torch.randn(len(lengths), T, 3, dtype=torch.float64)
    noise = gumbel_noise((len(lengths), T - 1, T - 1))
    for sample in (True, False):
        batch = e(x, torch.tensor(lengths), noise=noise, sample=sample)
        for b, L in enumerate(lengths):
            alone = e(
                x[b : b + 1, :L],
                torch.tensor([L]),
                noise=noise[b : b + 1, : L - 1, : L - 1],
                sample=sample,
            )
            assert batch.order[b, : L - 1].tolist() == alone.order[0].tolist()
            torch.testing.assert_close(batch.vector[b], alone.vector[0], rtol=0, atol=1e-12)


@each_impl
@settings(max_examples=10)
@given(st.permutations(range(6)))
def test_permuting_the_batch_permutes_the_result(impl: str, permutation: list[int]) -> None:
    torch.manual_seed(3)
    e = encoder(impl=impl).double()
    lengths = torch.tensor([4, 1, 4, 9, 2, 6])
    x, noise = torch.randn(6, 9, 3, dtype=torch.float64), gumbel_noise((6, 8, 8))
    straight = e(x, lengths, noise=noise)
    shuffled = e(x[permutation], lengths[permutation], noise=noise[permutation])
    assert torch.equal(straight.order[permutation], shuffled.order)
    torch.testing.assert_close(straight.vector[permutation], shuffled.vector, rtol=0, atol=1e-12)


@each_impl
def test_is_deterministic_given_a_seed(impl: str) -> None:
    x = words()
    runs = []
    for seed in (5, 5, 6):
        torch.manual_seed(1)
        e = encoder(impl=impl)
        generator = torch.Generator().manual_seed(seed)
        runs.append(gradients(e, x, sample=True, generator=generator))
    assert all(torch.equal(a, b) for a, b in zip(runs[0], runs[1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(runs[0], runs[2], strict=True))


@each_impl
def test_forced_trees(impl: str) -> None:
    e, x = encoder(impl=impl), words(1, 6)
    for make in (Tree.left_branching, Tree.right_branching, Tree.balanced):
        tree = make("a b c d e f")
        encoding = e(x, torch.tensor([6]), order=torch.tensor([tree.order]))
        assert Tree("a b c d e f", encoding.order[0].tolist()) == tree
    left = e(x, torch.tensor([6]), order=torch.zeros(1, 5, dtype=torch.int64)).vector
    right = e(x, torch.tensor([6]), order=torch.arange(4, -1, -1)[None]).vector
    assert not torch.allclose(left, right)


@each_impl
def test_attention_by_hand(impl: str) -> None:
    e = encoder(impl=impl, attention=True).eval()
    full = e(words(), LENGTHS, details=True)
    for b, L in enumerate(LENGTHS.tolist()):
        nodes = torch.cat([full.nodes.h[b, :L], full.nodes.h[b, 7 : 7 + L - 1]])
        assert len(nodes) == 2 * L - 1
        weights = torch.softmax(nodes @ nodes.mean(0), dim=0)
        torch.testing.assert_close(full.vector[b], weights @ nodes)
        assert full.attention[b].sum().item() == pytest.approx(1)
        assert (full.attention[b] > 0).sum() == 2 * L - 1


@each_impl
def test_words_are_added_to_the_vector(impl: str) -> None:
    e = encoder(impl=impl, hidden_dim=words().shape[-1], add_words=True).eval()
    plain = encoder(impl=impl, hidden_dim=words().shape[-1]).eval()
    plain.load_state_dict(e.state_dict())
    x = words().requires_grad_()
    added, alone = (each(x, LENGTHS).vector for each in (e, plain))
    means = torch.stack([x[b, :L].mean(0) for b, L in enumerate(LENGTHS.tolist())])
    expected = sum(v / v.norm(dim=-1, keepdim=True) for v in (alone, means))
    torch.testing.assert_close(added, expected)
    gradients = [torch.autograd.grad(v.sum(), x)[0] for v in (added, expected)]
    torch.testing.assert_close(*gradients)
    with pytest.raises(ValueError, match="`embedding_dim` is 5 and `hidden_dim` is 9"):
        encoder(impl=impl, embedding_dim=5, hidden_dim=9, add_words=True)


@each_impl
@pytest.mark.parametrize("pooling", ["max", "mean_max"])
def test_maximum_by_hand(impl: str, pooling: str) -> None:
    e = encoder(impl=impl, pooling=pooling).eval()
    full = e(words(), LENGTHS, details=True)
    for b, L in enumerate(LENGTHS.tolist()):
        nodes = torch.cat([full.nodes.h[b, :L], full.nodes.h[b, 7 : 7 + L - 1]])
        wanted = nodes.max(0).values
        if pooling == "mean_max":
            wanted = wanted + nodes.mean(0)
        torch.testing.assert_close(full.vector[b], wanted)
    assert full.attention is None
    with pytest.raises(ValueError, match=f"`attention` is true and `pooling` is '{pooling}'"):
        encoder(impl=impl, pooling=pooling, attention=True)


@each_leaf
def test_leaves_equal_those_of_torch(leaf: str) -> None:
    e = encoder(leaf=leaf).eval()
    x = words()
    h, c = e(x, LENGTHS, details=True).nodes
    for b, L in enumerate(LENGTHS.tolist()):
        if leaf == "affine":
            expected = torch.nn.functional.linear(x[b, :L], e.leaf.weight, e.leaf.bias)
        elif leaf == "lstm":
            expected = torch.cat(run_lstm_cell(e.leaf, x[b, :L]), dim=1)
        elif leaf == "norm":
            y = torch.nn.functional.linear(x[b, :L], e.leaf.linear.weight, e.leaf.linear.bias)
            deviation = (y.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
            y = (y - y.mean(1, keepdim=True)) / deviation
            expected = torch.cat([y, y], dim=1)
        else:
            ahead = run_lstm_cell(e.leaf.forwards, x[b, :L])
            back = [s.flip(0) for s in run_lstm_cell(e.leaf.backwards, x[b, :L].flip(0))]
            expected = torch.cat([ahead[0], back[0], ahead[1], back[1]], dim=1)
        torch.testing.assert_close(torch.cat([h[b, :L], c[b, :L]], dim=1), expected)


def run_lstm_cell(leaf: torch.nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Run `torch.nn.LSTMCell` with the weights of `leaf` over a sentence `[L, E]`."""
    cell = torch.nn.LSTMCell(leaf.weight_ih.shape[1], leaf.weight_hh.shape[1])
    cell.load_state_dict(leaf.state_dict())
    state = [torch.zeros(1, leaf.weight_hh.shape[1])] * 2
    states = []
    for word in x:
        state = cell(word[None], state)
        states.append(state)
    return torch.cat([h for h, _ in states]), torch.cat([c for _, c in states])


def test_initial_weights_of_leaves_and_query() -> None:
    E, D = 300, 200
    e = GumbelTreeEncoder(EncoderConfig(E, D))
    assert e.query.std().item() == pytest.approx(0.01, rel=0.15)
    assert e.leaf.weight_ih.std().item() == pytest.approx(math.sqrt(2 / E), rel=0.02)
    hh = e.leaf.weight_hh
    torch.testing.assert_close(hh.T @ hh, torch.eye(D), atol=1e-4, rtol=0)
    forget = torch.zeros(4 * D)
    forget[D : 2 * D] = 1
    assert torch.equal(e.leaf.bias_ih, forget)
    assert not e.leaf.bias_hh.any()
    printed = GumbelTreeEncoder(EncoderConfig(E, D, leaf={"init": "he"})).leaf
    assert printed.weight_hh.std().item() == pytest.approx(math.sqrt(2 / D), rel=0.02)
    assert not printed.bias_ih.any()
    affine = GumbelTreeEncoder(EncoderConfig(E, D, leaf="affine")).leaf
    assert affine.weight.std().item() == pytest.approx(math.sqrt(2 / E), rel=0.02)
    assert not affine.bias.any()


def test_variants_differ_in_scale_and_initial_weights_only() -> None:
    paper, reference = (EncoderConfig(4, 16).with_variant(v) for v in ("paper", "reference"))
    assert {f for f in vars(paper) if getattr(paper, f) != getattr(reference, f)} == {
        "score",
        "cell",
    }
    encoders = [GumbelTreeEncoder(c) for c in (paper, reference)]
    encoders[1].load_state_dict(encoders[0].state_dict())
    x = torch.randn(3, 8, 4)
    results = [e.eval()(x, torch.tensor([8, 5, 3]), details=True) for e in encoders]
    assert torch.equal(results[0].order, results[1].order)
    torch.testing.assert_close(results[0].scores, results[1].scores * 4)


@each_impl
@pytest.mark.parametrize(("leaf", "autocast"), [("affine", True), ("bilstm", False)])
def test_half_precision_works_end_to_end(impl: str, leaf: str, autocast: bool) -> None:
    e = encoder(impl=impl, leaf=leaf, attention=True)
    x = words()
    if not autocast:
        e, x = e.bfloat16(), x.bfloat16()
    with torch.autocast("cpu", enabled=autocast):
        result = e(x, LENGTHS, details=True)
    assert result.vector.dtype == (torch.float32 if autocast else torch.bfloat16)
    assert result.scores.dtype == torch.float32
    # states stay as wide as the weights: more than the 256 values of bf16 between 0.5 and 1
    assert result.nodes.c.dtype == e.query.dtype
    wide = torch.equal(result.nodes.c, result.nodes.c.bfloat16().to(e.query.dtype))
    assert wide != autocast
    result.vector.float().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in e.parameters())


# Errors


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([5, 0, 7, 2], r"`lengths`.* 0\.\.7 \(sentence 1\)"),
        ([5, 1, 8, 2], r"`lengths`.* 1\.\.8 \(sentence 2\)"),
        ([5, 1, -3, 2], r"`lengths`.* -3\.\.5 \(sentence 2\)"),
        ([5, 1, 7], r"`lengths`.* \[3\]"),
        ([[5, 1, 7, 2]], r"`lengths`.* \[1, 4\]"),
    ],
)
def test_rejects_bad_lengths(lengths: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encoder()(words(), torch.tensor(lengths))


@pytest.mark.parametrize("shape", [(4, 7), (4, 7, 2), (1, 4, 7, 3)])
def test_rejects_words_of_a_wrong_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"`embedded` .*E=3, got \["):
        encoder()(torch.randn(shape), LENGTHS)


@pytest.mark.parametrize("shape", [(0, 7, 3), (4, 0, 3)])
def test_rejects_empty_batches(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"at least one sentence"):
        encoder()(torch.randn(shape), LENGTHS[: shape[0]])


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"embedded": words().double()}, "`embedded` must be torch.float32"),
        ({"embedded": words().long()}, "`embedded` must be torch.float32"),
        ({"embedded": words().tolist()}, "`embedded` must be a tensor, got list"),
        ({"lengths": LENGTHS.float()}, "`lengths` must be int64, got torch.float32"),
        ({"lengths": LENGTHS.bool()}, "`lengths` must be int64, got torch.bool"),
        ({"lengths": [5, 1, 7, 2]}, "`lengths` must be a tensor, got list"),
        ({"order": torch.zeros(4, 6).int()}, "`order` must be int64, got torch.int32"),
    ],
)
def test_rejects_wrong_types(arguments: dict[str, object], message: str, autocast: bool) -> None:
    good = {"embedded": words(), "lengths": LENGTHS}
    with torch.autocast("cpu", enabled=autocast), pytest.raises(TypeError, match=message):
        encoder()(**{**good, **arguments})


@pytest.mark.parametrize("name", ["embedded", "lengths", "noise", "order"])
def test_rejects_tensors_on_another_device(name: str) -> None:
    order = torch.zeros(4, 6, dtype=torch.int64)
    good = {"embedded": words(), "lengths": LENGTHS, "noise": torch.zeros(4, 6, 6), "order": order}
    with pytest.raises(ValueError, match=rf"`{name}` must be on cpu .* meta"):
        encoder()(**{**good, name: good[name].to("meta")})


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_rejects_words_that_are_not_finite(value: float) -> None:
    x = words()
    x[2, 6, 1] = value
    x[0, 3, 0] = value
    with pytest.raises(ValueError, match=r"sentence 0 at position 3"):
        encoder()(x, LENGTHS)


def test_large_finite_words_are_accepted() -> None:
    x = torch.full((4, 7, 3), 3e38)
    assert torch.isfinite(encoder().eval()(x, LENGTHS).vector).all()


def test_rejects_bad_noise() -> None:
    e, x, noise = encoder(), words(), torch.zeros(4, 6, 6)

    def rejects(noise: Tensor, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            e(x, LENGTHS, noise=noise)

    rejects(torch.zeros(4, 7, 7), r"`noise` .*\[4, 6, 6\], got")
    rejects(noise.long(), r"`noise` must be keys .*\[4, 2\], got")
    rejects(noise.clone().requires_grad_(), r"`noise` must not require gradients")
    for value in (math.nan, math.inf):
        noise[0, 2, 1] = value
        rejects(noise, rf"got {value} at .*\[0, 2, 1\]")
    # finite in float64, but not in the softmax
    noise = noise.double()
    for large, e.temperature in ((1e300, 1.0), (3e38, 0.1)):
        noise[0, 2, 1] = large
        rejects(noise, r"temperature in torch.float32")
        noise[0, 2, 1] = 0.0
        noise[2, 3] = -large
        rejects(noise, r"all 3 candidates at .*\[2, 3\]")
        noise[2, 3] = 0.0


def test_noise_of_minus_infinity_forbids_a_merge() -> None:
    e, x, noise = encoder(), words(), torch.zeros(4, 6, 6)
    noise[0, 2, 1] = -math.inf
    assert int(e(x, LENGTHS, noise=noise).order[0, 2]) != 1
    noise[2, 3] = -math.inf
    with pytest.raises(ValueError, match=r"-inf for all 3 candidates at .*\[2, 3\]"):
        e(x, LENGTHS, noise=noise)
    # a single remaining candidate is chosen; layers past the end of a sentence do not matter
    noise[2, 3, 2] = 0.0
    noise[0, 4:] = noise[1] = -math.inf
    encoding = e(x, LENGTHS, noise=noise)
    assert int(encoding.order[2, 3]) == 2
    assert encoding.vector.isfinite().all()


@pytest.mark.parametrize("value", [3, -1])
def test_rejects_merges_out_of_range(value: int) -> None:
    order = torch.zeros(4, 6, dtype=torch.int64)
    order[0, 1] = value
    with pytest.raises(ValueError, match=rf"0\.\.2 for sentence 0 at step 1, got {value}"):
        encoder()(words(), LENGTHS, order=order)
    with pytest.raises(ValueError, match=r"`order` .*\[4, 6\], got \[4, 7\]"):
        encoder()(words(), LENGTHS, order=torch.zeros(4, 7, dtype=torch.int64))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"leaf": "bilstm", "hidden_dim": 5}, r"even `hidden_dim`.* got 5; use 6"),
        ({"leaf": "lsmt"}, r"unknown leaf 'lsmt'.*'lstm'"),
        ({"cell": "treelsm"}, r"unknown cell 'treelsm'.*'treelstm'"),
        ({"estimator": "reinforced"}, r"unknown estimator 'reinforced'.*'reinforce'"),
        ({"impl": "fast"}, r"unknown implementation 'fast'"),
        ({"hidden_dim": 0}, r"`hidden_dim` must be at least 1, got 0"),
    ],
)
def test_rejects_bad_settings(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encoder(**fields)


def test_rejects_an_implementation_that_does_not_apply() -> None:
    with pytest.raises(NotImplementedError, match=r"impl='exact'.*estimator"):
        encoder(estimator="soft", impl="exact")
