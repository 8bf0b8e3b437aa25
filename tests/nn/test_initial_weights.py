"""Test that initial weights depend on the seed and not on the machine."""

import pytest
import torch
from torch import nn

from gumbeltree.nn.initial_weights import orthogonal_

shapes = pytest.mark.parametrize("shape", [(40, 10), (600, 150), (5, 8), (7, 7)])


def drawn(fill, shape, seed=4):
    torch.manual_seed(seed)
    return fill(torch.empty(shape))


@shapes
def test_equals_torch_up_to_rounding(shape):
    torch.testing.assert_close(
        drawn(orthogonal_, shape), drawn(nn.init.orthogonal_, shape), rtol=0, atol=2**-16
    )


@shapes
def test_rows_or_columns_are_orthonormal(shape):
    weight = drawn(orthogonal_, shape).double()
    small = weight @ weight.t() if shape[0] < shape[1] else weight.t() @ weight
    torch.testing.assert_close(small, torch.eye(min(shape)).double(), rtol=0, atol=1e-4)


# for these, float32 and rounded float64 results of one and two threads differ
@pytest.mark.parametrize(
    ("shape", "seed"), [((1200, 300), 15), pytest.param((1500, 600), 2, marks=pytest.mark.slow)]
)
def test_number_of_threads_has_no_effect(shape, seed):
    before = torch.get_num_threads()
    weights = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            weights.append(drawn(orthogonal_, shape, seed))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*weights)


def test_advances_the_generator_as_torch_does():
    drawn(orthogonal_, (6, 4))
    state = torch.get_rng_state()
    drawn(nn.init.orthogonal_, (6, 4))
    assert torch.equal(torch.get_rng_state(), state)
