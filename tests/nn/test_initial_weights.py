"""Starting weights depend on the seed, not on the machine."""

import pytest
import torch
from torch import nn

from gumbeltree.nn.initial_weights import orthogonal_

shapes = pytest.mark.parametrize("shape", [(40, 10), (1200, 300), (5, 8), (7, 7)])


def drawn(fill, shape, seed=4):
    torch.manual_seed(seed)
    return fill(torch.empty(shape))


@shapes
def test_it_is_torchs_own_draw_to_rounding(shape):
    torch.testing.assert_close(
        drawn(orthogonal_, shape), drawn(nn.init.orthogonal_, shape), rtol=0, atol=2**-16
    )


@shapes
def test_rows_or_columns_are_orthonormal(shape):
    weight = drawn(orthogonal_, shape).double()
    small = weight @ weight.t() if shape[0] < shape[1] else weight.t() @ weight
    torch.testing.assert_close(small, torch.eye(min(shape)).double(), rtol=0, atol=1e-4)


# with these, results of one and two threads differ in float32, and in float64 rounded to float32
@pytest.mark.parametrize(
    ("shape", "seed"), [((1200, 300), 15), ((1200, 300), 34), ((1500, 600), 2), ((1500, 600), 3)]
)
def test_the_number_of_threads_changes_no_bit(shape, seed):
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(drawn(orthogonal_, shape, seed))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_the_generator_goes_on_as_with_torchs_own():
    drawn(orthogonal_, (6, 4))
    state = torch.get_rng_state()
    drawn(nn.init.orthogonal_, (6, 4))
    assert torch.equal(torch.get_rng_state(), state)
