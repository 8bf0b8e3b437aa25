"""Test the kernels of the pair features against PyTorch operations."""

import pytest
import torch

from gumbeltree.ops.pair_features import PairFeatures, pair_features

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def plain(u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.cat([u, v, (u - v).abs(), u * v], dim=-1)


@pytest.mark.parametrize(("B", "D"), [(1, 1), (3, 5), (4, 16)])
def test_features_and_gradients_equal_plain_operations(B: int, D: int) -> None:
    torch.manual_seed(0)
    vectors = torch.randn(2 * B, D, dtype=torch.float64, device=DEVICE)
    # where u = v, the gradient of |u-v| is zero, as in PyTorch
    vectors[B, 0] = vectors[0, 0]
    vectors.requires_grad_()
    outside = torch.randn(B, 4 * D, dtype=torch.float64, device=DEVICE)
    found, expected = PairFeatures.apply(*vectors.chunk(2)), plain(*vectors.chunk(2))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    (one,) = torch.autograd.grad((found * outside).sum(), vectors)
    (other,) = torch.autograd.grad((expected * outside).sum(), vectors)
    torch.testing.assert_close(one, other, rtol=1e-14, atol=1e-14)


def test_accepts_non_contiguous_vectors() -> None:
    wide = torch.randn(4, 6, device=DEVICE)
    vectors = wide[:, ::2].chunk(2)
    torch.testing.assert_close(PairFeatures.apply(*vectors), plain(*vectors))


def test_second_derivatives() -> None:
    vectors = [torch.randn(2, 3, device=DEVICE, requires_grad=True) for _ in range(2)]
    found = []
    for function in (PairFeatures.apply, plain):
        gradients = torch.autograd.grad(
            function(*vectors).square().sum(), vectors, create_graph=True
        )
        found.append(torch.autograd.grad(sum(x.square().sum() for x in gradients), vectors))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")
def test_uses_pytorch_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PairFeatures, "apply", None)
    u, v = torch.randn(2, 3, 4)
    assert torch.equal(pair_features(u, v), plain(u, v))
