"""The parser draws the tree, and the composer follows it."""

import pytest
import torch

from gumbeltree import Draw, EncoderConfig, GumbelTreeEncoder, Sentences
from gumbeltree.config import ParserComposerConfig, ParserConfig, load_recipe, with_settings
from gumbeltree.nn.encoders.parser_composer import ParserComposerEncoder

LENGTHS = torch.tensor([6, 1, 4, 2])


def made(impl="exact", **parser):
    """Return an encoder whose parts all differ: a narrow parser and a wide composer."""
    torch.manual_seed(2)
    sizes = {"hidden_dim": 4, "leaf": "lstm", **parser}
    config = ParserComposerConfig(
        3, 5, "affine", "gated", impl=impl, estimator="ppo", parser=ParserConfig(**sizes)
    )
    encoder = ParserComposerEncoder(config).double().eval()
    for p in encoder.parameters():
        torch.nn.init.normal_(p, std=0.8)
    return encoder


def words():
    torch.manual_seed(3)
    return torch.randn(4, 6, 3, dtype=torch.float64)


@pytest.mark.parametrize("impl", ["exact", "reference"])
@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
def test_trees_of_the_parser_and_vectors_of_the_composer(impl, sample):
    encoder = made(impl)
    noise = torch.arange(8).view(4, 2)
    found = encoder(words(), LENGTHS, sample=sample, noise=noise, details=True)
    parser = GumbelTreeEncoder(EncoderConfig(3, 4, estimator="ppo", impl=impl)).double()
    parser.load_state_dict(encoder.parser.state_dict())
    parsed = parser(words(), LENGTHS, sample=sample, noise=noise, details=True)
    assert torch.equal(found.order, parsed.order)
    assert torch.equal(found.scores, parsed.scores)
    composer = GumbelTreeEncoder(EncoderConfig(3, 5, "affine", "gated", impl=impl)).double()
    composer.load_state_dict(encoder.state_dict(), strict=False)
    composed = composer(words(), LENGTHS, sample=False, order=parsed.order, details=True)
    assert found.vector.shape == (4, 5)
    assert torch.equal(found.vector, composed.vector)
    assert torch.equal(found.nodes.h, composed.nodes.h)
    if sample:
        assert torch.equal(found.log_prob, parsed.log_prob)
        assert torch.equal(found.entropy, parsed.entropy)
    else:
        assert found.log_prob is None


def test_score_equals_encode_on_given_trees():
    encoder = made()
    sentences, draw = Sentences.padded(words(), LENGTHS), Draw(torch.arange(8).view(4, 2))
    found = encoder(sentences, draw=draw)
    forced = sentences.with_order(found.order)
    scored = encoder.score(forced, Draw(torch.arange(8, 16).view(4, 2)))
    torch.testing.assert_close(scored.log_prob, found.log_prob)
    torch.testing.assert_close(scored.entropy, found.entropy)


@pytest.mark.parametrize("tunes", [False, True])
def test_gradients_of_the_parser_reach_the_words_if_wanted(tunes):
    encoder = made(tunes_words=tunes)
    x = words().requires_grad_()
    found = encoder(x, LENGTHS, sample=True)
    reached = torch.autograd.grad(
        found.log_prob.sum(), x, allow_unused=True, materialize_grads=True, retain_graph=True
    )[0]
    assert bool(reached.any()) == tunes
    assert torch.autograd.grad(found.vector.sum(), x)[0].any()


def test_settings():
    recipe = with_settings(
        load_recipe("demo"),
        ["encoder.kind=parser_composer", "estimator=ppo", "parser.leaf=bilstm", "parser.cell=gated",
         "encoder.leaf=affine", "encoder.hidden_dim=12", "embedding_dim=7"],
    )  # fmt: skip
    encoder = recipe.model.encoder
    assert (encoder.leaf.kind, encoder.parser.leaf.kind) == ("affine", "bilstm")
    assert encoder.of_parser.hidden_dim == 12
    assert encoder.of_parser.cell.kind == "gated"
    with pytest.raises(ValueError, match=r"leaf is ambiguous: write .*encoder\.leaf.* or .*parser"):
        with_settings(recipe, ["leaf=norm"])


def test_both_implementations_are_explained():
    encoder = made(impl="auto")
    assert encoder.explain().name == encoder.parser.explain().name == "exact"
    assert "'exact'" in encoder.why_not_captured(sample=True)
