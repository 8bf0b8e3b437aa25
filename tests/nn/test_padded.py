"""Test the encoder on padded batches, exported and compiled."""

import pytest
import torch
from torch.export import Dim

from gumbeltree import PaddedEncoder
from tests.models import tiny_model

SETTINGS = [
    {},
    {"leaf": "bilstm", "attention": True},
    {"leaf": "affine", "pooling": "mean_max", "score": "scaled_dot"},
    {"leaf": "norm", "cell": "gated", "pooling": "max"},
    {"leaf": "affine", "add_words": True, "embedding_dim": 6},
    {"score": "pair"},
]


def batch(B, T, E=5):
    words, lengths = torch.randn(B, T, E), torch.randint(1, T + 1, (B,))
    lengths[-1] = T
    return words, lengths


def check(encoder, run, B, T):
    words, lengths = batch(B, T, encoder.config.embedding_dim)
    expected = encoder(words, lengths)
    garbage = words.clone()
    garbage[torch.arange(T) >= lengths[:, None]] = 1e3
    for given in (words, garbage):
        vector, order = run(given, lengths)
        assert torch.equal(order, expected.order)
        torch.testing.assert_close(vector, expected.vector)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_equals_the_encoder(settings):
    encoder = tiny_model("single", **settings).encoder
    padded = PaddedEncoder(encoder)
    for B, T in ((1, 1), (1, 2), (3, 2), (4, 9), (2, 40)):
        check(encoder, padded, B, T)
    assert set(padded.state_dict()) == {f"encoder.{name}" for name in encoder.state_dict()}


def test_ties_go_to_the_left():
    encoder = tiny_model("single", leaf="affine").encoder
    words = torch.randn(1, 1, 5).expand(2, 7, 5).contiguous()
    _, order = PaddedEncoder(encoder)(words, torch.tensor([7, 4]))
    assert order[:, 0].tolist() == [0, 0]
    assert torch.equal(order, encoder(words, torch.tensor([7, 4])).order)


def test_one_exported_program_reads_all_shapes(tmp_path):
    encoder = tiny_model("single", leaf="affine").encoder
    B, T = Dim("B"), Dim("T", min=3)
    program = torch.export.export(
        PaddedEncoder(encoder), batch(3, 6), dynamic_shapes=({0: B, 1: T}, {0: B})
    )
    torch.export.save(program, tmp_path / "encoder.pt2")
    run = torch.export.load(tmp_path / "encoder.pt2").module()
    for shape in ((3, 6), (1, 3), (5, 17)):
        check(encoder, run, *shape)


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_one_compilation_reads_all_shapes(backend):
    encoder = tiny_model("single", leaf="affine").encoder
    torch.compiler.reset()
    counted = torch._dynamo.utils.counters["stats"]
    before = counted["unique_graphs"]
    compiled = torch.compile(PaddedEncoder(encoder), fullgraph=True, backend=backend)

    def run(words, lengths):
        torch._dynamo.mark_dynamic(words, [0, 1])
        torch._dynamo.mark_dynamic(lengths, 0)
        return compiled(words, lengths)

    for shape in ((3, 6), (4, 11), (2, 30), (7, 3)):
        check(encoder, run, *shape)
    assert counted["unique_graphs"] == before + 1
    torch.compiler.reset()


def test_other_encoders_are_refused():
    with pytest.raises(TypeError, match="must be a GumbelTreeEncoder, got FixedTreeEncoder"):
        PaddedEncoder(tiny_model("single", trees="left").encoder)
    encoder = tiny_model("single").encoder
    encoder.leaf = torch.nn.Identity()
    with pytest.raises(ValueError, match="the leaf 'lstm' has no padded form"):
        PaddedEncoder(encoder)
