"""Test that `exact` equals `reference`: order, vector and gradients in all modes and precisions."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gumbeltree import EncoderConfig, GumbelTreeEncoder
from gumbeltree.nn.cells.treelstm import TreeLSTMCell
from gumbeltree.ops.merge.exact import backward as exact_backward
from gumbeltree.ops.merge.exact import forward as exact_forward
from gumbeltree.ops.merge.exact.tape import Tape
from gumbeltree.ops.merge.problem import MergeGradients
from tests.ops.comparison import TEMPERATURES, Case, cases, errors, make_inputs, run


def slow(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.slow)


@settings(max_examples=25)
@given(cases([t for t in TEMPERATURES if t >= 0.3]))
def test_equals_reference(case: Case) -> None:
    check_float64(case)


@pytest.mark.parametrize(
    "case",
    [
        Case(lengths=(50, 1, 37), hidden_dim=3, leaf="lstm", seed=1),
        Case(lengths=(40,), hidden_dim=4, attention=True, details=True, seed=3),
        slow(Case(lengths=(130, 2, 77), hidden_dim=3, ledger=False, seed=2)),
        slow(Case(lengths=(64, 64, 65), hidden_dim=2, forced=True, temperature=0.3, seed=4)),
        slow(Case(lengths=(120,), hidden_dim=3, sample=False, details=True, seed=5)),
    ],
    ids=str,
)
def test_long_sentences(case: Case) -> None:
    check_float64(case)


@pytest.mark.parametrize("ledger", [True, False])
def test_every_short_length(ledger: bool) -> None:
    for T in range(1, 13):
        check_float64(Case(lengths=(T, T), hidden_dim=3, ledger=ledger, details=True, seed=T))


def check_float64(case: Case) -> None:
    inputs = make_inputs(case)
    reference, result = run(case, inputs, "reference"), run(case, inputs, "exact")
    assert torch.equal(reference.order, result.order)
    worst = errors(reference, result)
    assert max(worst.values()) < 1e-10, worst


@pytest.mark.parametrize("impl", ["reference", "exact"])
def test_gradients_of_scores_outside_a_sentence_are_ignored(impl: str) -> None:
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4, impl=impl)).eval()
    encoding = encoder(torch.randn(2, 6, 3), torch.tensor([6, 3]), details=True)
    # a softmax over padded scores sends NaN to the entries of -inf
    gradient = torch.where(encoding.scores > -torch.inf, 1.0, torch.nan)
    encoding.scores.backward(gradient)
    assert all(p.grad.isfinite().all() for p in encoder.parameters())
    assert encoder.query.grad.abs().max() > 0


@settings(max_examples=15)
@given(cases([t for t in TEMPERATURES if t < 0.3]))
def test_low_temperature(case: Case) -> None:
    # absolute errors, since plain autograd is inexact for the gradients of the scores
    inputs = make_inputs(case)
    reference, result = run(case, inputs, "reference"), run(case, inputs, "exact")
    assert torch.equal(reference.order, result.order)
    for name, x in reference.values.items():
        if x.numel():
            assert float((x - result.values[name]).abs().max()) < 1e-10, name


@pytest.mark.parametrize(
    ("leaf", "temperature", "details"),
    [
        ("affine", 0.3, True),
        ("lstm", 1.0, False),
        ("bilstm", 20.0, True),
        slow("lstm", 0.3, True),
        slow("bilstm", 1.0, False),
        slow("affine", 20.0, False),
    ],
)
def test_float32_is_as_exact_as_reference(leaf: str, temperature: float, details: bool) -> None:
    case = Case(
        lengths=(14, 9, 2, 1),
        hidden_dim=10,
        leaf=leaf,
        temperature=temperature,
        details=details,
        attention=details,
    )
    check_errors(largest_errors(case, range(3), torch.float32))


def check_errors(worst: dict[str, dict[str, float]]) -> None:
    reference = worst.pop("reference")
    assert len(worst) == 2
    for how, largest in worst.items():
        assert largest.keys() == reference.keys()
        for name, error in largest.items():
            assert error <= 2 * reference[name] + 1e-6, f"{how}: {name}"


def largest_errors(
    case: Case, seeds: range, dtype: torch.dtype, autocast: bool = False
) -> dict[str, dict[str, float]]:
    """Return the largest error of each value over several seeds, for each implementation.

    Several seeds, because rounding errors sometimes cancel. All implementations follow the merges
    of float64, because near ties could be resolved differently.
    """
    methods = {"reference": True, "exact, with a ledger": True, "exact, without": False}
    worst: dict[str, dict[str, float]] = {how: {} for how in methods}
    for seed in seeds:
        drawn = dataclasses.replace(case, seed=seed)
        inputs = make_inputs(drawn)
        truth = run(drawn, inputs, "reference")
        for how, ledger in methods.items():
            drawn = dataclasses.replace(drawn, ledger=ledger)
            narrow = run(drawn, inputs, how.split(",")[0], dtype, truth.order, autocast)
            for name, error in errors(truth, narrow).items():
                worst[how][name] = max(error, worst[how].get(name, 0.0))
    return worst


@pytest.mark.parametrize(
    ("case", "autocast"),
    [
        (Case(lengths=(9, 1, 14, 2), hidden_dim=10, leaf="lstm"), False),
        (Case(lengths=(8, 17), hidden_dim=16, attention=True), True),
        (Case(lengths=(10, 15), hidden_dim=16, sample=False), False),
        slow(Case(lengths=(9, 1, 14, 2), hidden_dim=10, leaf="lstm"), True),
        slow(Case(lengths=(6, 23, 12), hidden_dim=7), False),
        slow(Case(lengths=(8, 30), hidden_dim=16, attention=True), False),
        slow(Case(lengths=(10, 20), hidden_dim=16, sample=False), True),
    ],
    ids=str,
)
def test_bfloat16_within_twice_the_error_of_plain_torch(case: Case, autocast: bool) -> None:
    dtype = torch.float32 if autocast else torch.bfloat16
    worst = largest_errors(case, range(5), dtype, autocast)
    assert worst["reference"]["vector"] > 1e-3, "the products were not narrow"
    check_errors(worst)


def test_near_ties_follow_a_forced_order() -> None:
    # with equal words all scores of a layer tie, and implementations round them differently; with
    # a forced order the gradients must still agree
    case = Case(lengths=(9, 4), hidden_dim=4, forced=True)
    inputs = make_inputs(case)
    inputs.words[:] = inputs.words[0, 0]
    inputs.noise.zero_()
    reference, result = run(case, inputs, "reference"), run(case, inputs, "exact")
    assert torch.equal(result.order, reference.order)
    assert max(errors(reference, result).values()) < 1e-10


@pytest.mark.parametrize("impl", ["reference", "exact"])
def test_ties_go_to_the_left_whatever_the_batch(impl: str) -> None:
    encoder = GumbelTreeEncoder(EncoderConfig(300, 100, leaf="affine", impl=impl)).eval()
    torch.nn.init.normal_(encoder.query)
    word = torch.randn(300)
    for B in (1, 7, 40):
        for T in (3, 6, 13):
            words = word.expand(B, T, 300).contiguous()
            order = encoder(words, torch.full((B,), T)).order
            assert (order[:, 0] == 0).all(), (B, T)


class CountingCell(TreeLSTMCell):
    """Counts compositions."""

    composed = 0

    def activate(self, gates, c_left, c_right):
        self.composed += len(gates)
        return TreeLSTMCell.activate(gates, c_left, c_right)


@settings(max_examples=20)
@given(st.integers(3, 40), st.integers(0, 10**6))
def test_at_most_3T_minus_6_compositions(T: int, seed: int) -> None:
    case = Case(lengths=(T,), hidden_dim=2, seed=seed)
    inputs = make_inputs(case)
    encoder = GumbelTreeEncoder(case.config)
    encoder.load_state_dict(inputs.state)
    encoder.cell.__class__ = CountingCell
    encoder(inputs.words.float(), inputs.lengths, noise=inputs.noise, sample=True)
    assert 2 * T - 3 <= encoder.cell.composed <= 3 * T - 6


def test_padding_is_not_composed() -> None:
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4))
    encoder.cell.__class__ = CountingCell
    lengths = [40, *[2] * 50, *[1] * 50]
    encoder(torch.randn(101, 60, 3), torch.tensor(lengths), sample=False)
    assert encoder.cell.composed <= 3 * 40 - 6 + 50


def test_memory_of_the_tape(monkeypatch: pytest.MonkeyPatch) -> None:
    # O(T^2) scalars and O(T) vectors per sentence
    tapes = []

    def spy(tape: Tape, *rest: object) -> MergeGradients:
        tapes.append(tape)
        return backward(tape, *rest)

    backward = exact_backward.backward
    monkeypatch.setattr(exact_backward, "backward", spy)
    T, D = 100, 8
    encoder = GumbelTreeEncoder(EncoderConfig(3, D))
    encoder(torch.randn(1, T, 3), torch.tensor([T])).vector.sum().backward()
    sizes = {name: x.numel() * x.element_size() for name, x in tapes[0]._asdict().items()}
    layered = sizes.pop("rows") + sizes.pop("logits")
    assert layered <= 32 * T * T / 2
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


def test_double_backward_is_rejected() -> None:
    case = Case(lengths=(6, 3))
    inputs = make_inputs(case)

    def gradient(impl: str) -> torch.Tensor:
        encoder = GumbelTreeEncoder(dataclasses.replace(case.config, impl=impl)).double()
        words = inputs.words.clone().requires_grad_()
        vector = encoder(words, inputs.lengths, noise=inputs.noise, sample=True).vector
        return torch.autograd.grad(vector.sum(), words, create_graph=True)[0]

    gradient("reference").square().sum().backward()
    with pytest.raises(RuntimeError, match=r"second derivatives.*impl='reference'"):
        gradient("exact").square().sum().backward()


def test_double_backward_by_the_cotangent_is_rejected() -> None:
    case = Case(lengths=(6, 3))
    inputs = make_inputs(case)
    encoder = GumbelTreeEncoder(case.config).double()

    def vector(words: torch.Tensor) -> torch.Tensor:
        return encoder(words, inputs.lengths, noise=inputs.noise, sample=True).vector

    with pytest.raises(RuntimeError, match="second derivatives"):
        torch.autograd.functional.jvp(vector, inputs.words, torch.ones_like(inputs.words))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_records_no_tape_without_gradients(mode: type, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = GumbelTreeEncoder(EncoderConfig(3, 4))
    words, lengths = torch.randn(2, 5, 3), torch.tensor([5, 3])
    expected = encoder(words, lengths, sample=False).vector
    monkeypatch.setattr(exact_forward, "Recorder", lambda *_: pytest.fail("a tape was recorded"))
    with mode():
        vector = encoder(words, lengths, sample=False).vector
    assert not vector.requires_grad
    assert torch.equal(vector, expected)


@pytest.mark.parametrize(
    ("lengths", "sample", "method"),
    [
        ([5] * 4, True, "Direct"),
        ([13] * 4, True, "Direct"),
        ([16] * 16, True, "Ledger"),
        # the mean over all layers decides
        ([40, *[2] * 10, *[39] * 5], True, "Ledger"),
        ([40, *[3] * 500], True, "Direct"),
        # few candidates per layer: the number of operations decides
        ([16] * 4, True, "Direct"),
        ([64], True, "Direct"),
        ([256], True, "Ledger"),
        ([60], False, None),
        ([16] * 16, "reinforce", "Deferred"),
    ],
)
def test_method_is_chosen_by_size(
    lengths: list[int], sample: bool | str, method: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []
    for name in ("Direct", "Ledger", "Deferred"):
        real = getattr(exact_backward, name)
        monkeypatch.setattr(
            exact_backward, name, lambda s, name=name, real=real: used.append(name) or real(s)
        )
    estimator = sample if isinstance(sample, str) else "st_gumbel"
    encoder = GumbelTreeEncoder(EncoderConfig(2, 2, estimator=estimator))
    words = torch.randn(len(lengths), max(lengths), 2)
    found = encoder(words, torch.tensor(lengths), sample=bool(sample))
    (found.vector.sum() if found.log_prob is None else found.log_prob.sum()).backward()
    assert used == ([] if method is None else [method])
