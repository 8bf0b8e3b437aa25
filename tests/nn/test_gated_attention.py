"""Test attention by input gates against plain loops over one sentence."""

import numpy as np
import pytest
import torch
from torch import Tensor

from gumbeltree import Sentences
from gumbeltree.config import HeadConfig, ModelConfig
from gumbeltree.describe import count_parameters
from gumbeltree.nn.character_cnn import CharacterCNN
from gumbeltree.nn.encoders.gated_attention import GatedAttentionEncoder
from gumbeltree.peers import GatedAttentionConfig
from gumbeltree.states import VECTORS, Draw
from gumbeltree.text.spelling import MOST_CHARACTERS, character_table
from gumbeltree.text.tokenizer import whitespace_tokenizer
from tests.models import TEXTS, tiny_model
from tests.nn.equations import (
    bilstm,
    check_autocast,
    check_company,
    check_sentences,
    encoder_of,
    words_of,
)

layers = pytest.mark.parametrize("layers", [1, 3])


def gated(**settings: object) -> GatedAttentionEncoder:
    return encoder_of("gated_attention", **settings)


def plain(encoder: GatedAttentionEncoder, words: Tensor) -> Tensor:
    """Return the vector of one sentence `[T, E]`."""
    inputs = words
    for layer in encoder.layers:
        top, read = bilstm(layer, inputs), inputs
        inputs = torch.cat([top, words], dim=1)
    D = top.shape[1] // 2
    norms = []
    for t, word in enumerate(read):
        nothing = torch.zeros_like(top[0, :D])
        before = top[t - 1, :D] if t else nothing
        after = top[t + 1, D:] if t + 1 < len(read) else nothing
        gates = [
            torch.sigmoid(x.weight_ih[:D] @ word + x.weight_hh[:D] @ state + x.bias[:D])
            for x, state in zip(layer.children(), (before, after), strict=True)
        ]
        norms.append(torch.cat(gates).square().sum().sqrt())
    mixed = sum((a * h for a, h in zip(norms, top, strict=True)), torch.zeros_like(top[0]))
    return torch.cat([top.mean(0), top.max(0).values, mixed / sum(norms)])


@layers
def test_equals_plain_loops(layers: int) -> None:
    encoder = gated(layers=layers)
    check_sentences(encoder, lambda words: plain(encoder, words))


@layers
def test_company_and_padding_have_no_effect(layers: int) -> None:
    check_company(gated(layers=layers))
    check_autocast(gated(layers=layers))


def test_constant_gates_give_the_mean() -> None:
    encoder = gated()
    with torch.no_grad():
        for lstm in encoder.layers[-1].children():
            for weight in (lstm.weight_ih, lstm.weight_hh):
                weight[:3] = 0
    mean, _, mixed = encoder(*words_of()).vector.chunk(3, dim=1)
    torch.testing.assert_close(mixed, mean)


def test_batches_of_single_words() -> None:
    encoder, words = gated(), torch.randn(2, 1, 5, dtype=torch.float64)
    parts = encoder(words, torch.tensor([1, 1])).vector.chunk(3, dim=1)
    for part in parts[1:]:
        torch.testing.assert_close(part, parts[0])


def test_initial_weights() -> None:
    encoder = GatedAttentionEncoder(GatedAttentionConfig(40, 40))
    for lstm in (x for layer in encoder.layers for x in layer.children()):
        for gate in lstm.weight_hh.chunk(4):
            torch.testing.assert_close(gate @ gate.t(), torch.eye(20), rtol=0, atol=1e-3)
        assert lstm.weight_ih.std().item() == pytest.approx(0.01, rel=0.1)
        assert not lstm.bias.any()


@pytest.mark.parametrize(
    ("character_dim", "total"),
    [
        (300, 11_633_658),
        # no character CNN, and every layer reads 300D words
        (0, 11_633_658 - 14_955 - 3 * 2 * 1200 * 300),
    ],
)
def test_counts_parameters(character_dim: int, total: int) -> None:
    encoder = GatedAttentionConfig(300, 600, character_dim=character_dim)
    head = HeadConfig(hidden_dim=300, hidden_layers=2)
    assert count_parameters(ModelConfig(encoder, head))["total"] == total


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_dim": 7}, "even `hidden_dim`.* got 7; use 8"),
        ({"character_dim": 10}, "`character_dim` must be a multiple of 3.* got 10"),
    ],
)
def test_rejects_impossible_widths(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gated(**settings)


# characters


def test_character_table() -> None:
    tokenizer = whitespace_tokenizer(["a", "Zoë", "~", "x" * 99])
    table = character_table(tokenizer)
    assert table.shape == (6, MOST_CHARACTERS)
    found = {word: table[i] for word, i in tokenizer.get_vocab().items()}
    assert {word: row[row > 0].tolist() for word, row in found.items()} == {
        "a": [67],
        "Zoë": [60, 81, 1],
        "~": [96],
        "x" * 99: [90] * MOST_CHARACTERS,
        "<pad>": [],
        "<unk>": [],
    }
    # the characters of a word come first
    assert found["Zoë"][:4].tolist() == [60, 81, 1, 0]


def test_character_vectors_equal_plain_loops() -> None:
    cnn = CharacterCNN(6).double()
    words = [[5], [7, 2], [], [9, 8, 7, 6, 5, 4]]
    characters = torch.tensor([word + [0] * (7 - len(word)) for word in words])
    found = cnn(characters)
    for word, vector in zip(words, found, strict=True):
        expected = torch.zeros(3, 2, dtype=torch.float64)
        embedded = [cnn.embedding.weight[x] for x in word]
        for k, (width, layer) in enumerate(zip((1, 3, 5), cnn.convolutions, strict=True)):
            for centre in range(len(word)):
                total = torch.zeros(2, dtype=torch.float64)
                for offset in range(width):
                    place = centre + offset - width // 2
                    if 0 <= place < len(word):
                        total = total + layer.weight[:, :, offset] @ embedded[place]
                expected[k] = torch.maximum(expected[k], total)
        torch.testing.assert_close(vector, expected.flatten())
    wide = torch.nn.functional.pad(characters, (0, 5))
    torch.testing.assert_close(cnn(wide), found)
    # the row for padding is never used
    found.sum().backward()
    assert not cnn.embedding.weight.grad[0].any()


def test_words_are_extended_by_their_characters() -> None:
    encoder, simple = gated(character_dim=6), gated(embedding_dim=11)
    simple.load_state_dict(
        {k: x for k, x in encoder.state_dict().items() if not k.startswith("characters")}
    )
    words, lengths = words_of()
    sentences = Sentences.padded(words, lengths)
    spelled = torch.randint(0, 97, (len(sentences.words), 4))
    found = encoder(sentences.with_words(sentences.words, characters=spelled)).vector
    assert encoder.characters is not None
    both = torch.cat([sentences.words, encoder.characters(spelled)], dim=1)
    expected = simple.encode(sentences.with_words(both), Draw(), VECTORS).vector
    torch.testing.assert_close(found, expected)
    with pytest.raises(ValueError, match=r"reads the characters of every word.* character_dim = 0"):
        encoder(words, lengths)


def test_dropout_applies_to_words_and_characters() -> None:
    encoder = gated(character_dim=6, dropout=1.0).train()
    sentences = Sentences.padded(*words_of())
    vectors = [
        encoder(
            sentences.with_words(
                torch.randn_like(sentences.words),
                characters=torch.randint(0, 97, (len(sentences.words), 4)),
            )
        ).vector
        for _ in range(2)
    ]
    assert torch.equal(*vectors)


def test_models_know_the_characters_of_their_words() -> None:
    model = tiny_model("single", encoder="gated_attention", character_dim=6)
    spelled = model.embed(Sentences.of([[1, 2], [0]])).extras["characters"]
    # first words, longest sentence first, then second words
    assert spelled.tolist() == character_table(model.tokenizer)[[1, 0, 2]].tolist()
    vectors = model.encode(TEXTS)
    with torch.no_grad():
        for layer in model.encoder.characters.convolutions:
            layer.weight.zero_()
    # only "zebra" has no characters
    same = np.isclose(vectors, model.encode(TEXTS)).all(axis=1)
    assert same.tolist() == [text == "zebra" for text in TEXTS]
