"""Test functions of the NumPy cells."""

import math

import numpy as np
import pytest

from gumbeltree.light.cells import gelu


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gelu(dtype):
    x = np.concatenate([np.linspace(-9, 9, 2001), [-1e4, 1e4, 0.0]]).astype(dtype)
    wanted = [v * 0.5 * math.erfc(-v * math.sqrt(0.5)) for v in x.tolist()]
    found = gelu(x)
    assert found.dtype == dtype
    limit = 1e-6 if dtype == np.float32 else 1e-8
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=limit)
