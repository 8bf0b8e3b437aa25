"""Test the classifier with maxout layers."""

import pytest
import torch
from torch import nn

from gumbeltree import Encoding
from gumbeltree.config import ModelConfig
from gumbeltree.describe import count_parameters
from gumbeltree.nn.heads.maxout import SingleMaxoutHead
from gumbeltree.peers import MaxoutConfig
from gumbeltree.settings import from_dict

FIVE = ("0", "1", "2", "3", "4")


def made(**settings):
    settings = {"hidden_dims": (3, 2), "dropouts": (0.0, 0.0, 0.0), **settings}
    head = SingleMaxoutHead(MaxoutConfig(labels=FIVE, **settings), 4).double()
    for p in head.parameters():
        nn.init.normal_(p)
    return head


def test_counts_parameters():
    head = SingleMaxoutHead(MaxoutConfig(labels=FIVE), 2400)
    assert sum(p.numel() for p in head.parameters()) == 14_419_220
    # also without torch
    small = MaxoutConfig(labels=FIVE, hidden_dims=(3, 2), batch_norm=True)
    config = ModelConfig({"kind": "bag", "embedding_dim": 5, "hidden_dim": 4}, small)
    expected = 5 * 4 + 4 + 2 * (4 + 3 + 2) + 12 * 5 + 8 * 4 + 20 * 3
    assert count_parameters(config)["total"] == expected


@pytest.mark.parametrize("batch_norm", [False, True])
def test_equals_its_equations(batch_norm):
    torch.manual_seed(1)
    head = made(batch_norm=batch_norm)
    vectors = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    x = vectors
    for i, (layer, width) in enumerate(zip(head.layers, (3, 2, 5), strict=True)):
        if batch_norm:
            norm = head.batch_norms[i]
            x = (x - x.mean(0)) / torch.sqrt(x.var(0, correction=0) + 1e-5)
            x = x * norm.weight + norm.bias
        rows = []
        for row in x:
            # the maps of a unit are adjacent
            maps = [w @ row + b for w, b in zip(layer.weight, layer.bias, strict=True)]
            rows.append(torch.stack([max(maps[4 * j : 4 * j + 4]) for j in range(width)]))
        x = torch.stack(rows)
    scores = head(Encoding(vectors))
    torch.testing.assert_close(scores, x, rtol=1e-11, atol=1e-11)
    weights, leaves = torch.randn_like(scores), [vectors, *head.parameters()]
    found = torch.autograd.grad((scores * weights).sum(), leaves, retain_graph=True)
    wanted = torch.autograd.grad((x * weights).sum(), leaves)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_dropout_of_each_layer(place):
    shares = [0.0, 0.0, 0.0]
    shares[place] = 0.9
    head = made(hidden_dims=(200, 200), dropouts=shares)
    seen = []
    for layer in head.layers:
        layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    torch.manual_seed(0)
    head(Encoding(torch.ones(50, 4, dtype=torch.float64)))
    assert [bool((x == 0).any()) for x in seen] == [i == place for i in range(3)]
    seen.clear()
    head.eval()(Encoding(torch.ones(2, 4, dtype=torch.float64)))
    assert not any((x == 0).any() for x in seen)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dropouts": [0.1]}, r"`head.dropouts` must have one value for each of the 3 layers"),
        ({"dropouts": [0.1, 0.2, 1.5]}, r"`head.dropouts\[2\]` must be in 0..1, got 1.5"),
        ({"hidden_dims": [0, 2]}, r"`head.hidden_dims\[0\]` must be at least 1, got 0"),
        ({"hidden_dims": 3}, r"`head.hidden_dims` must be a list of numbers, got 3"),
        ({"hidden_dims": ["a"]}, r"`head.hidden_dims\[0\]` must be a whole number, got 'a'"),
    ],
)
def test_rejects_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        from_dict(MaxoutConfig, settings, "head")
