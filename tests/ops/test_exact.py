"""exact == reference: order, vector, every gradient, in every mode and precision."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gumbeltree import EncoderConfig, GumbelTreeEncoder
from gumbeltree.nn.cells.treelstm import TreeLSTMCell
from gumbeltree.ops.merge.exact import backward as exact_backward
from gumbeltree.ops.merge.exact import forward as exact_forward
from gumbeltree.ops.merge.exact.tape import Tape
from gumbeltree.ops.merge.problem import MergeGradients
from tests.ops.comparison import TEMPERATURES, Case, cases, errors, make_inputs, run

LONG = [
    Case(lengths=(130, 1, 77), hidden_dim=3, leaf="lstm", seed=1),
    Case(lengths=(130, 2, 77), hidden_dim=3, ledger=False, seed=2),
    Case(lengths=(90,), hidden_dim=4, attention=True, details=True, seed=3),
    Case(lengths=(64, 64, 65), hidden_dim=2, forced=True, temperature=0.3, seed=4),
    Case(lengths=(120,), hidden_dim=3, sample=False, details=True, seed=5),
]


@given(cases([t for t in TEMPERATURES if t >= 0.3]))
def test_exact_equals_reference_in_float64(case: Case) -> None:
    check_float64(case)


@pytest.mark.parametrize("case", LONG, ids=str)
def test_long_sentences(case: Case) -> None:
    check_float64(case)


@pytest.mark.parametrize("T", range(1, 17))
@pytest.mark.parametrize("ledger", [True, False])
def test_every_short_length(T: int, ledger: bool) -> None:
    check_float64(Case(lengths=(T, T), hidden_dim=3, ledger=ledger, details=True, seed=T))


def check_float64(case: Case) -> None:
    inputs = make_inputs(case)
    reference, found = run(case, inputs, "reference"), run(case, inputs, "exact")
    assert torch.equal(reference.order, found.order)
    worst = errors(reference, found)
    assert max(worst.values()) < 1e-10, worst


@given(cases([t for t in TEMPERATURES if t < 0.3]))
def test_low_temperature(case: Case) -> None:
    # plain autograd loses digits of the scores' gradients there, so the measure is absolute
    inputs = make_inputs(case)
    reference, found = run(case, inputs, "reference"), run(case, inputs, "exact")
    assert torch.equal(reference.order, found.order)
    for name, x in reference.values.items():
        if x.numel():
            assert float((x - found.values[name]).abs().max()) < 1e-10, name


@pytest.mark.parametrize("temperature", [0.3, 1.0, 20.0])
@pytest.mark.parametrize("leaf", ["affine", "lstm", "bilstm"])
def test_float32_is_as_exact_as_reference(leaf: str, temperature: float) -> None:
    for details, attention in ((False, False), (True, True)):
        case = Case(
            lengths=(23, 9, 2, 1),
            hidden_dim=10,
            leaf=leaf,
            temperature=temperature,
            details=details,
            attention=attention,
        )
        check_errors(largest_errors(case, range(4), torch.float32))


def check_errors(worst: dict[str, dict[str, float]]) -> None:
    reference = worst.pop("reference")
    assert len(worst) == 2
    for how, found in worst.items():
        assert found.keys() == reference.keys()
        for name, error in found.items():
            assert error <= 2 * reference[name] + 1e-6, f"{how}: {name}"


def largest_errors(
    case: Case, seeds: range, dtype: torch.dtype, autocast: bool = False
) -> dict[str, dict[str, float]]:
    """Return the largest error of each value over several draws, for all implementations.

    Rounding errors are random and now and then happen to vanish, so one draw says little. A near
    tie could flip, so the merges that float64 chooses are forced on all.
    """
    ways = {"reference": True, "exact, with a ledger": True, "exact, without": False}
    worst: dict[str, dict[str, float]] = {how: {} for how in ways}
    for seed in seeds:
        drawn = dataclasses.replace(case, seed=seed)
        inputs = make_inputs(drawn)
        truth = run(drawn, inputs, "reference")
        for how, ledger in ways.items():
            drawn = dataclasses.replace(drawn, ledger=ledger)
            narrow = run(drawn, inputs, how.split(",")[0], dtype, truth.order, autocast)
            for name, error in errors(truth, narrow).items():
                worst[how][name] = max(error, worst[how].get(name, 0.0))
    return worst


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    "case",
    [
        Case(lengths=(9, 1, 14, 2), hidden_dim=10, leaf="lstm"),
        Case(lengths=(6, 23, 12), hidden_dim=7),
        Case(lengths=(8, 30), hidden_dim=16, attention=True),
        Case(lengths=(10, 20), hidden_dim=16, sample=False),
    ],
    ids=str,
)
def test_bfloat16_within_twice_the_error_of_plain_torch(case: Case, autocast: bool) -> None:
    dtype = torch.float32 if autocast else torch.bfloat16
    worst = largest_errors(case, range(8), dtype, autocast)
    assert worst["reference"]["vector"] > 1e-3  # it really was narrow
    check_errors(worst)


def test_near_ties_follow_a_forced_order() -> None:
    # all words equal: every score of a layer is the same, and each implementation may round it
    # its own way; with a forced order the gradients must still agree
    case = Case(lengths=(9, 4), hidden_dim=4, forced=True)
    inputs = make_inputs(case)
    inputs.words[:] = inputs.words[0, 0]
    inputs.noise.zero_()
    reference, found = run(case, inputs, "reference"), run(case, inputs, "exact")
    assert torch.equal(found.order, reference.order)
    assert max(errors(reference, found).values()) < 1e-10


@pytest.mark.parametrize("impl", ["reference", "exact"])
def test_ties_go_to_the_left_whatever_the_batch(impl: str) -> None:
    encoder = GumbelTreeEncoder(EncoderConfig(300, 100, leaf="affine", impl=impl)).eval()
    torch.nn.init.normal_(encoder.query)
    word = torch.randn(300)
    for B in (1, 3, 7, 40):
        for T in (3, 4, 6, 13):
            words = word.expand(B, T, 300).contiguous()
            order = encoder(words, torch.full((B,), T)).order
            assert (order[:, 0] == 0).all(), (B, T)


class CountingCell(TreeLSTMCell):
    """Counts the compositions that `exact` makes."""

    composed = 0

    def activate(self, gates, c_left, c_right):
        self.composed += len(gates)
        return TreeLSTMCell.activate(gates, c_left, c_right)


@given(st.integers(3, 40), st.integers(0, 10**6))
def test_at_most_3T_minus_6_compositions(T: int, seed: int) -> None:
    case = Case(lengths=(T,), hidden_dim=2, seed=seed)
    inputs = make_inputs(case)
    encoder = GumbelTreeEncoder(case.config)
    encoder.load_state_dict(inputs.state)
    encoder.cell.__class__ = CountingCell
    encoder(inputs.words.float(), inputs.lengths, noise=inputs.noise, sample=True)
    assert 2 * T - 3 <= encoder.cell.composed <= 3 * T - 6


def test_no_composition_for_padding() -> None:
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4))
    encoder.cell.__class__ = CountingCell
    lengths = [40, *[2] * 50, *[1] * 50]
    encoder(torch.randn(101, 60, 3), torch.tensor(lengths), sample=False)
    assert encoder.cell.composed <= 3 * 40 - 6 + 50


def test_what_is_kept_for_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    # per layer at most 32 bytes * T^2 / 2 a sentence; vectors a bounded number of times T * D
    kept = {}

    def spy(tape: Tape, *rest: object) -> MergeGradients:
        kept.update(tape._asdict())
        return backward(tape, *rest)

    backward = exact_backward.backward
    monkeypatch.setattr(exact_backward, "backward", spy)
    T, D = 300, 8
    encoder = GumbelTreeEncoder(EncoderConfig(3, D))
    encoder(torch.randn(1, T, 3), torch.tensor([T])).vector.sum().backward()
    sizes = {name: x.numel() * x.element_size() for name, x in kept.items()}
    layered = sizes.pop("rows") + sizes.pop("logits")
    assert layered <= 32 * T * T / 2
    assert layered >= 4 * T * (T - 1) / 2  # logits really are among them
    vectors = sizes.pop("states") + sizes.pop("gates")
    assert vectors <= (4 * T * 2 * D + 3 * T * 5 * D) * 4
    assert sum(sizes.values()) <= 8 * T * 20


def test_backward_twice_through_one_graph() -> None:
    case = Case(lengths=(9, 5), leaf="lstm")
    inputs = make_inputs(case)
    encoder = GumbelTreeEncoder(case.config).double()
    vector = encoder(inputs.words, inputs.lengths, noise=inputs.noise, sample=True).vector
    first = torch.autograd.grad(vector.sum(), encoder.query, retain_graph=True)[0]
    second = torch.autograd.grad(vector.sum(), encoder.query)[0]
    assert torch.equal(first, second)


def test_second_derivative_by_the_cotangent_is_refused() -> None:
    case = Case(lengths=(6, 3))
    inputs = make_inputs(case)
    encoder = GumbelTreeEncoder(case.config).double()

    def vector(words: torch.Tensor) -> torch.Tensor:
        return encoder(words, inputs.lengths, noise=inputs.noise, sample=True).vector

    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.functional.jvp(vector, inputs.words, torch.ones_like(inputs.words))


def test_double_backward_is_refused_with_the_way_out() -> None:
    case = Case(lengths=(6, 3))
    inputs = make_inputs(case)
    for impl in ("exact", "reference"):
        encoder = GumbelTreeEncoder(dataclasses.replace(case.config, impl=impl)).double()
        words = inputs.words.clone().requires_grad_()
        vector = encoder(words, inputs.lengths, noise=inputs.noise, sample=True).vector
        (gradient,) = torch.autograd.grad(vector.sum(), words, create_graph=True)
        if impl == "reference":
            gradient.square().sum().backward()
            continue
        with pytest.raises(RuntimeError, match=r"second derivatives.*impl='reference'"):
            gradient.square().sum().backward()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_nothing_is_kept_without_gradients(mode: type, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4))
    words, lengths = torch.randn(2, 5, 3), torch.tensor([5, 3])
    expected = encoder(words, lengths, sample=False).vector
    monkeypatch.setattr(exact_forward, "Recorder", lambda *_: pytest.fail("a tape was made"))
    with mode():
        vector = encoder(words, lengths, sample=False).vector
    assert not vector.requires_grad
    assert torch.equal(vector, expected)


@pytest.mark.parametrize(
    ("lengths", "sample", "way"),
    [
        ([5] * 4, True, "Direct"),
        ([13] * 4, True, "Direct"),
        ([16] * 4, True, "Ledger"),
        ([300], True, "Ledger"),
        # most of the work is in the long sentence, or in the short ones
        ([40, *[2] * 10], True, "Ledger"),
        ([40, *[3] * 2000], True, "Direct"),
        ([300], False, None),
    ],
)
def test_way_is_chosen_by_length(
    lengths: list[int], sample: bool, way: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []
    for name in ("Direct", "Ledger"):
        real = getattr(exact_backward, name)
        monkeypatch.setattr(
            exact_backward, name, lambda s, name=name, real=real: used.append(name) or real(s)
        )
    encoder = GumbelTreeEncoder(EncoderConfig(2, 2))
    words = torch.randn(len(lengths), max(lengths), 2)
    encoder(words, torch.tensor(lengths), sample=sample).vector.sum().backward()
    assert used == ([] if way is None else [way])
