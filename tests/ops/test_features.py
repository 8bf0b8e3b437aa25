"""The kernels of a pair's features against plain operations, through Triton's interpreter."""

import pytest
import torch

from gumbeltree.heads.classes import pair_features
from gumbeltree.ops.features import PairFeatures

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(("B", "D"), [(1, 1), (3, 5), (4, 16)])
def test_features_and_gradients_equal_plain_operations(B: int, D: int) -> None:
    torch.manual_seed(0)
    vectors = torch.randn(2 * B, D, dtype=torch.float64, device=DEVICE)
    # equal numbers: |u-v| has no slope there, and torch takes zero
    vectors[B, 0] = vectors[0, 0]
    vectors.requires_grad_()
    outside = torch.randn(B, 4 * D, dtype=torch.float64, device=DEVICE)
    found, expected = PairFeatures.apply(vectors), pair_features(*vectors.chunk(2))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    (one,) = torch.autograd.grad((found * outside).sum(), vectors)
    (other,) = torch.autograd.grad((expected * outside).sum(), vectors)
    torch.testing.assert_close(one, other, rtol=1e-14, atol=1e-14)


def test_views_are_read_as_they_are() -> None:
    wide = torch.randn(4, 6, device=DEVICE)
    vectors = wide[:, ::2]
    torch.testing.assert_close(PairFeatures.apply(vectors), pair_features(*vectors.chunk(2)))


def test_a_second_derivative_is_refused() -> None:
    vectors = torch.randn(2, 3, device=DEVICE, requires_grad=True)
    (gradient,) = torch.autograd.grad(
        PairFeatures.apply(vectors).square().sum(), vectors, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
