"""Test the language model over bytes against its equations, sentence by sentence."""

from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gumbeltree
from gumbeltree import Sentences
from gumbeltree.data.compile import needs_vectors
from gumbeltree.data.device_split import DeviceSplit
from gumbeltree.data.split import Split
from gumbeltree.describe import count_parameters
from gumbeltree.evaluation import evaluate
from gumbeltree.model import SentenceModel
from gumbeltree.nn.encoders.byte_mlstm import ByteMLSTMEncoder
from gumbeltree.ops.mlstm import mlstm
from gumbeltree.peers import ByteMLSTMConfig
from gumbeltree.states import VECTORS, Draw
from gumbeltree.text.spelling import byte_table
from gumbeltree.text.tokenizer import whitespace_tokenizer
from tests.models import TEXTS, WORDS, tiny_model
from tests.nn.equations import check_same, roomy
from tests.runs import small


def model_of(probe: bool = False) -> SentenceModel:
    model = tiny_model("single", encoder="byte_mlstm", byte_dim=3, probe=probe, embedding_dim=1)
    return model.double()


def matrix(normed: nn.Module) -> Tensor:
    rows = [g * v / (v @ v).sqrt() for g, v in zip(normed.length, normed.direction, strict=True)]
    return torch.stack(rows)


def by_hand(e: ByteMLSTMEncoder, text: bytes) -> tuple[Tensor, Tensor]:
    """Return the last cell state and the mean cross-entropy of one text."""
    W_mx, W_mh, W_x, W_h = map(matrix, (e.input_factor, e.state_factor, e.inputs, e.states))
    h = c = W_mh.new_zeros(len(W_mh))
    losses = []
    for position, symbol in enumerate(text):
        if position:
            logits = e.next_byte.weight @ h + e.next_byte.bias
            losses.append(logits.exp().sum().log() - logits[symbol])
        x = e.symbols.weight[symbol]
        m = (W_mx @ x) * (W_mh @ h)
        i, f, o, u = (W_x @ x + W_h @ m + e.bias).chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(u)
        h = torch.sigmoid(o) * torch.tanh(c)
    return c, sum(losses) / len(losses)


def bytes_of(text: str) -> bytes:
    # spelling of words out of vocabulary is lost
    known = ["" if word in ("cat", "zebra") else word for word in text.split()]
    return b"\n " + " ".join(known).encode() + b" "


def batch_of(model: SentenceModel, texts: list[str] = TEXTS) -> Sentences:
    return Sentences.of([model.tokenizer.encode(text).ids for text in texts])


def test_values_losses_and_gradients_follow_the_equations() -> None:
    model = model_of().train()
    e, expected = model.encoder, [by_hand(model.encoder, bytes_of(text)) for text in TEXTS]
    found = e(model.embed(batch_of(model)))
    assert found.order is None
    vectors, losses = (torch.stack(x) for x in zip(*expected, strict=True))
    check_same([found.vector, found.losses["bytes"]], [vectors, losses], dict(e.named_parameters()))


def test_a_probe_sends_no_gradient_to_the_language_model() -> None:
    joint, probe = (model_of(probe).train() for probe in (False, True))
    found, other = (model.encoder(model.embed(batch_of(model))) for model in (joint, probe))
    torch.testing.assert_close(found.vector, other.vector)
    assert found.vector.requires_grad
    assert not other.vector.requires_grad
    other.losses["bytes"].sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in probe.encoder.parameters())


def test_company_has_no_effect() -> None:
    model = model_of()
    vectors = model.encode_batch(batch_of(model)).vector
    for text, vector in zip(TEXTS, vectors, strict=True):
        torch.testing.assert_close(model.encode_batch(batch_of(model, [text])).vector[0], vector)
    # bounds above the longest sentence and the number of words
    batch = roomy(batch_of(model), torch.tensor([3, 1, 2]))
    ids = batch.words
    sentences = batch.with_words(torch.randn(len(ids), 1).double(), bytes=model.spelling[ids])
    torch.testing.assert_close(model.encoder.encode(sentences, Draw(), VECTORS).vector, vectors)


@pytest.mark.parametrize("way", ["rounded", "exact", "texts"])
def test_captured_batches_run_up_to_a_bound_on_the_bytes(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of().eval()
    ids = [model.tokenizer.encode(text).ids for text in TEXTS]
    lengths = [len(bytes_of(text)) - 2 for text in TEXTS]
    # `<unk>` has a space only
    assert [int(model.word_symbols()[each].sum()) for each in ids] == lengths
    most = max(lengths) if way == "exact" else -(-max(lengths) // 16) * 16
    expected = model.encode_batch(batch_of(model)).vector
    with mock.patch("gumbeltree.nn.encoders.byte_mlstm.mlstm", side_effect=mlstm) as spy:
        if way == "texts":
            monkeypatch.setattr(SentenceModel, "_is_captured", lambda model: True)
            found = model.encode_ids(ids).vector
        else:
            starts, rows = np.cumsum([0, *map(len, ids)]), np.arange(len(ids))
            split = Split(np.concatenate(ids), starts, rows[:, None], np.zeros_like(rows))
            data = DeviceSplit(split, torch.device("cpu"), model.word_symbols())
            bounds, numbers = data.place(rows, rounded=way == "rounded")
            batch = data.read(torch.from_numpy(numbers), bounds).sentences
            found = model.encode_batch(batch, Draw()).vector
    # a newline and a space before the words
    assert spy.call_args.args[-1].steps == most + 2
    torch.testing.assert_close(found, expected)


def gradients(model: SentenceModel, ids: list[list[int]]) -> dict[str, Tensor]:
    model.zero_grad()
    losses = model.encoder(model.embed(Sentences.of(ids))).losses["bytes"]
    losses.float().sum().backward()
    return {name: p.grad.clone() for name, p in model.encoder.named_parameters()}


@pytest.fixture
def wide() -> tuple[SentenceModel, list[list[int]]]:
    """Return a model and a batch whose gradients are sums of many terms."""
    rng = np.random.default_rng(0)
    model = tiny_model("single", encoder="byte_mlstm", byte_dim=8, hidden_dim=64, embedding_dim=1)
    return model.train(), rng.integers(0, len(model.spelling), (32, 30)).tolist()


def test_gradients_have_the_same_bits_with_two_threads(wide) -> None:
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(2)
    try:
        first, *others = (gradients(*wide) for _ in range(8))
    finally:
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
    assert all(torch.equal(x[name], first[name]) for x in others for name in first)


def test_autocast_sums_gradients_in_float32(wide) -> None:
    expected = gradients(*wide)
    with torch.autocast("cpu"):
        found = gradients(*wide)
    for name, x in expected.items():
        assert float((found[name] - x).norm() / x.norm()) < 0.03, name


def test_count_of_the_preset() -> None:
    with torch.device("meta"):
        e = ByteMLSTMEncoder(ByteMLSTMConfig())
        assert sum(p.numel() for p in e.parameters()) == 5_863_680
        large = ByteMLSTMEncoder(ByteMLSTMConfig(hidden_dim=4096))
        assert sum(p.numel() for p in large.parameters()) == 86_319_360


def test_table_of_bytes() -> None:
    tokenizer = whitespace_tokenizer(["a", "né", "x" * 70, "\0"])
    table = byte_table(tokenizer)
    assert table.shape == (tokenizer.get_vocab_size(), 65)

    def row(word: str) -> bytes:
        return bytes(table[tokenizer.token_to_id(word)]).rstrip(b"\0")

    assert row("a") == b"a "
    assert row("né") == b"n\xc3\xa9 "
    assert row("x" * 70) == b"x" * 64 + b" "
    assert row("<unk>") == row("\0") == b" "


def test_needs_a_model_that_knows_the_bytes() -> None:
    with pytest.raises(ValueError, match="reads the bytes of every word"):
        model_of().encoder(torch.randn(1, 2, 1).double(), torch.tensor([2]))


def test_is_saved_and_loaded(tmp_path) -> None:
    model = model_of().float()
    vectors = model.encode(TEXTS)
    gumbeltree.save(model, tmp_path, {})
    loaded = gumbeltree.load(tmp_path)
    np.testing.assert_array_equal(loaded.encode(TEXTS), vectors)
    own = sum(p.numel() for p in model.parameters()) - model.embedding.weight.numel()
    assert count_parameters(model.config)["total"] == own


def test_language_model_learns_the_bytes_of_its_texts() -> None:
    torch.manual_seed(4)
    model = SentenceModel(model_of(probe=True).config, whitespace_tokenizer(WORDS)).train()
    optimizer = torch.optim.Adam(model.encoder.parameters(), 0.05)
    losses = []
    for _ in range(20):
        loss = model(batch_of(model, TEXTS[3:5])).losses["bytes"].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    # 5.5 is that of a uniform guess
    assert losses[0] > 5
    assert losses[-1] < 3


def test_is_trained_from_settings(tmp_path) -> None:
    recipe = small(
        "encoder.kind=byte_mlstm", "encoder.byte_dim=4", "average=0.9", "epochs=1",
        "evaluations=1", "data.generate=100", "training.losses.bytes=0.5",
    )  # fmt: skip
    data = gumbeltree.prepare(recipe)
    result = gumbeltree.train(recipe, data, tmp_path, quiet=True)
    model = gumbeltree.load(tmp_path)
    assert evaluate(model, data.splits["test"]).value == pytest.approx(result["test_accuracy"])
    wrong = gumbeltree.with_settings(recipe, ["training.losses.byte=0.5"])
    with pytest.raises(ValueError, match=r"`training.losses.byte` .*; it has bytes;"):
        gumbeltree.train(wrong, data, tmp_path / "wrong", quiet=True)


def test_needs_no_word_vectors() -> None:
    recipe = gumbeltree.load_recipe("byte-mlstm-small-sst5")
    assert not recipe.model.embedding.tuned
    assert not needs_vectors(recipe)
    assert needs_vectors(gumbeltree.load_recipe("bcn-sst5"))
