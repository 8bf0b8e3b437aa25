"""Checkpoints of the authors' code become models with the same results; other files are errors."""

import contextlib
import io
import pickle
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gumbeltree import Tree, load
from gumbeltree.import_reference import import_reference

E, D, H = 5, 6, 7
WORDS = ["the", "dog", "that", "barked", "all", "night", "sleeps", "now", "."]
ROWS = len(WORDS) + 2
TEXTS = ["now", "the dog that barked all night sleeps .", "the zebra sleeps", "the dog"]
PAIRS = list(zip(TEXTS, reversed(TEXTS), strict=True))


def state_dict(leaf="lstm", batch_norm=False, layers=1, words=ROWS, features=4 * D):
    """Return a random state dict with the names of the authors' code."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(*shape, generator=generator) * 0.7

    state = OrderedDict({"word_embedding.weight": draw(words, E)})
    if leaf == "lstm":
        prefix = "encoder.leaf_rnn_cell."
        state |= {f"{prefix}weight_ih": draw(4 * D, E), f"{prefix}weight_hh": draw(4 * D, D)}
        state |= {f"{prefix}bias_ih": draw(4 * D), f"{prefix}bias_hh": draw(4 * D)}
    else:
        state["encoder.word_linear.weight"] = draw(2 * D, E)
        state["encoder.word_linear.bias"] = draw(2 * D)
    state["encoder.treelstm_layer.comp_linear.weight"] = draw(5 * D, 2 * D)
    state["encoder.treelstm_layer.comp_linear.bias"] = draw(5 * D)
    state["encoder.comp_query"] = draw(D)
    for layer in range(layers):
        state[f"classifier.mlp.{layer}.0.weight"] = draw(H, H if layer else features)
        state[f"classifier.mlp.{layer}.0.bias"] = draw(H)
    state["classifier.clf_linear.weight"] = draw(3, H)
    state["classifier.clf_linear.bias"] = draw(3)
    if batch_norm:
        for name, width in (("bn_mlp_input", features), ("bn_mlp_output", H)):
            state[f"classifier.{name}.weight"] = draw(width)
            state[f"classifier.{name}.bias"] = draw(width)
            state[f"classifier.{name}.running_mean"] = draw(width)
            state[f"classifier.{name}.running_var"] = draw(width).square() + 0.1
            state[f"classifier.{name}.num_batches_tracked"] = torch.tensor(1234)
    return state


class Authors:
    """The authors' forward pass in evaluation mode, one sentence at a time, in plain torch."""

    def __init__(self, state, words=WORDS):
        self.state = state
        self.words = words

    def leaves(self, words):
        if "encoder.word_linear.weight" in self.state:
            weight = self.state["encoder.word_linear.weight"]
            states = words @ weight.T + self.state["encoder.word_linear.bias"]
            return [(state[:D], state[D:]) for state in states]
        cell = nn.LSTMCell(E, D)
        prefix = "encoder.leaf_rnn_cell."
        cell.load_state_dict(
            {k.removeprefix(prefix): x for k, x in self.state.items() if k.startswith(prefix)}
        )
        h, c, states = torch.zeros(1, D), torch.zeros(1, D), []
        for word in words:
            h, c = cell(word[None], (h, c))
            states.append((h[0], c[0]))
        return states

    def compose(self, left, right):
        prefix = "encoder.treelstm_layer.comp_linear."
        children = torch.cat([left[0], right[0]])
        gates = self.state[prefix + "weight"] @ children + self.state[prefix + "bias"]
        i, f_left, f_right, g, o = gates.chunk(5)
        c = left[1] * torch.sigmoid(f_left + 1) + right[1] * torch.sigmoid(f_right + 1)
        c = c + torch.tanh(g) * torch.sigmoid(i)
        return torch.sigmoid(o) * torch.tanh(c), c

    @torch.no_grad()
    def encode(self, text):
        """Return vector and tree."""
        unknown = len(self.words) + 1
        ids = [self.words.index(w) if w in self.words else unknown for w in text.split()]
        nodes = self.leaves(self.state["word_embedding.weight"][ids])
        order = []
        while len(nodes) > 1:
            parents = [self.compose(*nodes[i : i + 2]) for i in range(len(nodes) - 1)]
            scores = [float(self.state["encoder.comp_query"] @ h) / D**0.5 for h, _ in parents]
            # index finds the first of equals
            best = scores.index(max(scores))
            nodes[best : best + 2] = [parents[best]]
            order.append(best)
        return nodes[0][0], Tree(text, order)

    def normalize(self, x, name):
        prefix = f"classifier.{name}."
        if prefix + "weight" not in self.state:
            return x
        mean, variance = self.state[prefix + "running_mean"], self.state[prefix + "running_var"]
        x = (x - mean) / torch.sqrt(variance + 1e-5)
        return x * self.state[prefix + "weight"] + self.state[prefix + "bias"]

    @torch.no_grad()
    def classify(self, first, second):
        u, v = self.encode(first)[0], self.encode(second)[0]
        x = self.normalize(torch.cat([u, v, (u - v).abs(), u * v]), "bn_mlp_input")
        layer = 0
        while f"classifier.mlp.{layer}.0.weight" in self.state:
            prefix = f"classifier.mlp.{layer}.0."
            x = torch.relu(self.state[prefix + "weight"] @ x + self.state[prefix + "bias"])
            layer += 1
        x = self.normalize(x, "bn_mlp_output")
        prefix = "classifier.clf_linear."
        return self.state[prefix + "weight"] @ x + self.state[prefix + "bias"]


class Place:
    """A folder with a checkpoint, its vocabulary and the model folder to write."""

    def __init__(self, folder):
        self.checkpoint, self.vocabulary = folder / "snli.pkl", folder / "vocab.txt"
        self.out = folder / "model"
        self.write_words(WORDS)

    def write_words(self, words):
        self.vocabulary.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")

    def convert(self, state=None, **options):
        if state is not None:
            torch.save(state, self.checkpoint)
        return import_reference(self.checkpoint, self.vocabulary, self.out, **options)

    def refuse(self, pattern, state=None, error=ValueError, **options):
        """Assert that the import fails and writes nothing; return the message."""
        with pytest.raises(error, match=pattern) as caught:
            self.convert(state, **options)
        assert not self.out.exists()
        return str(caught.value)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


# results


@pytest.mark.parametrize("variant", ["reference", "paper"])
@pytest.mark.parametrize(
    ("leaf", "batch_norm", "layers"),
    [("lstm", False, 1), ("lstm", True, 3), ("affine", True, 1), ("affine", False, 3)],
)
def test_imported_model_reproduces_the_authors_results(place, leaf, batch_norm, layers, variant):
    state = state_dict(leaf, batch_norm, layers)
    place.convert(state, variant=variant)
    model, authors = load(place.out), Authors(state)
    encoder, head = model.config.encoder, model.config.head
    assert (encoder.embedding_dim, encoder.hidden_dim, encoder.leaf.kind) == (E, D, leaf)
    assert encoder.score == ("dot" if variant == "paper" else "scaled_dot")
    assert encoder.cell.forget_offset == 1
    assert (head.hidden_dim, head.hidden_layers, head.batch_norm) == (H, layers, batch_norm)
    assert model.labels == ("neutral", "entailment", "contradiction")
    expected = [authors.encode(text) for text in TEXTS]
    assert model.parse_many(TEXTS) == [tree for _, tree in expected]
    vectors = torch.stack([vector for vector, _ in expected])
    np.testing.assert_allclose(model.encode(TEXTS), vectors.numpy(), rtol=0, atol=1e-5)
    for pair, prediction in zip(PAIRS, model.predict(PAIRS), strict=True):
        scores = authors.classify(*pair)
        np.testing.assert_allclose(prediction.logits, scores.numpy(), rtol=0, atol=1e-5)
        assert prediction.label == model.labels[int(scores.argmax())]


def test_ties_go_to_the_left(place):
    state = state_dict()
    state["encoder.comp_query"].zero_()
    tree = place.convert(state).parse(TEXTS[1])
    assert tree == Tree.left_branching(TEXTS[1]) == Authors(state).encode(TEXTS[1])[1]


def test_returns_the_model_that_it_saves(place):
    model, loaded = place.convert(state_dict(batch_norm=True)), load(place.out)
    assert loaded.config == model.config
    assert not model.training
    assert model.predict(PAIRS) == loaded.predict(PAIRS)
    expected = {"imported": "snli.pkl", "variant": "reference", "lower": False}
    assert loaded.provenance == expected


# file formats


def test_reads_files_of_old_torch_versions(place):
    state = state_dict(batch_norm=True)
    expected = place.convert(state).predict(PAIRS)
    torch.save(state, place.checkpoint, _use_new_zipfile_serialization=False)
    assert not zipfile.is_zipfile(place.checkpoint)
    assert place.convert().predict(PAIRS) == expected
    older = {k: x for k, x in state.items() if not k.endswith("num_batches_tracked")}
    assert len(older) == len(state) - 2
    assert place.convert(older).predict(PAIRS) == expected


def test_reads_a_query_with_one_row(place):
    state = state_dict()
    expected = place.convert(state).parse_many(TEXTS)
    state["encoder.comp_query"] = state["encoder.comp_query"][None]
    assert place.convert(state).parse_many(TEXTS) == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_converts_other_precisions_to_float32(place, dtype):
    model = place.convert({key: x.to(dtype) for key, x in state_dict().items()})
    assert {x.dtype for x in model.state_dict().values()} == {torch.float32}


# storage


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("key", ["word_embedding.weight", "encoder.comp_query", "unknown"])
def test_rejects_tensors_larger_than_their_storage(place, key, zipped):
    # checking its values would take terabytes
    state = {**state_dict(), key: torch.zeros(1).expand(10**9, 10**3)}
    torch.save(state, place.checkpoint, _use_new_zipfile_serialization=zipped)
    place.refuse(rf"snli\.pkl: {key} has shape \[1000000000, 1000\].*too few values")


def test_rejects_many_tensors_in_one_storage(place):
    shared = torch.zeros(10**4)
    state = {**state_dict(), **{f"x{number}": shared for number in range(9)}}
    place.refuse(r"snli\.pkl: x1 has shape \[10000\].*share no memory", state)


def test_rejects_compressed_checkpoints(place):
    torch.save(state_dict(), place.checkpoint)
    with zipfile.ZipFile(place.checkpoint) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(place.checkpoint, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    place.refuse(r"snli\.pkl is not a state dict that can be read safely")


# vocabulary


@pytest.mark.parametrize(
    ("form", "newline", "encoding"),
    [
        ("{}", "\n", "utf-8"),
        ("{}\t0.1 0.2", "\n", "utf-8"),
        ("  {} 17", "\r\n", "utf-8"),
        # with a byte order mark
        ("{}", "\n", "utf-8-sig"),
    ],
)
def test_words_are_the_first_field_of_each_line(place, form, newline, encoding):
    lines = [form.format(word) for word in WORDS]
    place.vocabulary.write_text(newline.join(lines), encoding=encoding, newline="")
    state = state_dict()
    model = place.convert(state)
    ids = [model.tokenizer.token_to_id(word) for word in [*WORDS, "<pad>", "<unk>"]]
    assert ids == list(range(len(WORDS) + 2))
    assert torch.equal(model.embedding.weight.detach(), state["word_embedding.weight"])


def test_words_of_any_alphabet(place):
    place.write_words(["喜欢", "été", "İ", "👩‍👩‍👧", "(", "<unk>", "<pad>", "the", "The"])
    model = place.convert(state_dict())
    assert model.tokenizer.encode("The the İ 喜欢 zebra").ids == [8, 7, 2, 0, 10]
    assert model.tokenizer.encode("<pad> <unk>").ids == [9, 10]


def test_lower_cases_text_on_request(place):
    cased, lower = place.convert(state_dict()), place.convert(state_dict(), lower=True)
    assert np.array_equal(lower.encode(["The DOG"]), cased.encode(["the dog"]))
    assert not np.array_equal(cased.encode(["The DOG"]), cased.encode(["the dog"]))


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        ([*WORDS[:3], "", *WORDS[3:]], r"vocab\.txt, line 4: blank"),
        ([*WORDS[:3], "\u00a0", *WORDS[3:]], r"vocab\.txt, line 4: blank"),
        ([*WORDS, "dog 0.5"], r"vocab\.txt, line 10: 'dog' repeats line 2"),
        (WORDS[:-1], r"11 word vectors, but the 8 words of .*vocab\.txt"),
        ([], "11 word vectors, but the 0 words"),
    ],
)
def test_rejects_vocabularies(place, words, pattern):
    place.write_words(words)
    place.refuse(pattern, state_dict())


def test_rejects_files_that_cannot_be_read(place):
    place.refuse(r"snli\.pkl", error=FileNotFoundError)
    place.checkpoint.mkdir()
    place.refuse(r"snli\.pkl", error=OSError)
    place.checkpoint.rmdir()
    place.vocabulary.write_bytes("été".encode("latin-1"))
    place.refuse(r"vocab\.txt, line 1: .*UTF-8", state_dict())
    place.vocabulary.unlink()
    place.refuse(r"vocab\.txt", state_dict(), error=FileNotFoundError)


# other models


def test_rejects_single_sentence_models_and_other_widths(place):
    place.refuse(f"single-sentence model: .* {D} features", state_dict(features=D))
    place.refuse(r"expected \[7, 24\], found \[7, 11\]", state_dict(features=11))


def test_rejects_unknown_variants(place):
    place.refuse("'papr'.*Did you mean 'paper'", state_dict(), variant="papr")


@pytest.mark.parametrize(
    "key",
    [
        "encoder.comp_query_2",
        "classifier.mlp.0.1.weight",
        "classifier.mlp.0.weight",
        "classifier.mlp.1.0.weight",
        "module.word_embedding.weight",
        "optimizer",
        "",
        5,
    ],
)
def test_rejects_unknown_keys(place, key):
    place.refuse(r"snli\.pkl do not match", {**state_dict(), key: torch.zeros(3)})


@pytest.mark.parametrize("key", [k for k in state_dict(batch_norm=True) if "tracked" not in k])
def test_rejects_missing_and_misshapen_weights(place, key):
    state = state_dict(batch_norm=True)
    for shape in [(), (0,), (4,), (0, 3), (3, 3), (2, 2, 2)]:
        place.refuse(r"snli\.pkl", {**state, key: torch.ones(shape)})
    del state[key]
    place.refuse(rf"snli\.pkl.*{key.rpartition('.')[2]}", state)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
@pytest.mark.parametrize("key", ["word_embedding.weight", "classifier.bn_mlp_input.running_mean"])
def test_rejects_weights_that_are_not_finite(place, key, value):
    state = state_dict(batch_norm=True)
    state[key] = state[key].double()
    state[key].view(-1)[-1] = value
    place.refuse(rf"snli\.pkl: {key} contains NaN or infinity", state)


@pytest.mark.parametrize(
    "convert",
    [lambda x: x.long(), lambda x: x.to(torch.complex64), lambda x: x.to_sparse(), lambda x: x > 0],
    ids=["integers", "complex", "sparse", "booleans"],
)
def test_rejects_weights_of_another_type(place, convert):
    state = state_dict()
    state["encoder.comp_query"] = convert(state["encoder.comp_query"])
    place.refuse(r"snli\.pkl.*query", state)


# other files


class Bomb:
    """Unpickling this creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def saved(content, **options):
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


def bombs(path):
    """Yield pickles with code: both formats of torch.save, and plain ones."""
    for options in ({}, {"_use_new_zipfile_serialization": False}):
        for content in (Bomb(path), {**state_dict(), "encoder.comp_query": Bomb(path)}):
            yield saved(content, **options)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        yield pickle.dumps({"word_embedding.weight": Bomb(path)}, protocol)


def test_never_runs_code_from_a_pickle(place, tmp_path):
    target = tmp_path / "went-off"
    for bomb in bombs(target):
        place.checkpoint.write_bytes(bomb)
        place.refuse(r"snli\.pkl is not a state dict that can be read safely")
        assert not target.exists()
    # the last bomb is live
    pickle.loads(bomb)["word_embedding.weight"].close()
    assert target.exists()


class Network(nn.Module):
    pass


@pytest.mark.parametrize("module", [nn.Linear(2, 2), Network()], ids=["torch", "own"])
def test_rejects_a_pickled_module(place, module):
    message = place.refuse(r"read safely.*model\.state_dict\(\)", module)
    assert type(module).__name__ in message
    # torch advises to disable the protection
    assert "weights_only" not in message


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({"model": state_dict(), "epoch": 3}, "model"),
        ({**state_dict(), "epoch": 3}, "epoch"),
        ([1, 2], "list"),
        (torch.zeros(3), "Tensor"),
        ({}, "word_embedding"),
    ],
)
def test_rejects_a_file_that_is_not_a_state_dict(place, content, found):
    place.refuse(rf"snli\.pkl.*{found}", content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"the 0.1 0.2\n",
        b"\x80",
        b"\x00" * 100,
        b"PK\x03\x04",
        b'{"a": 1}',
        pickle.dumps({"a": 1}),
    ],
)
def test_rejects_a_file_that_torch_did_not_write(place, content):
    place.checkpoint.write_bytes(content)
    place.refuse(r"snli\.pkl is not a state dict that can be read safely")


FILES = [saved(state_dict()), saved(state_dict(), _use_new_zipfile_serialization=False)]


@given(
    st.sampled_from(FILES),
    st.one_of(st.none(), st.floats(0, 1)),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=8),
)
def test_reads_or_rejects_a_damaged_file(tmp_path_factory, content, cut, changes):
    place = Place(tmp_path_factory.mktemp("damaged"))
    damaged = bytearray(content if cut is None else content[: int(cut * len(content))])
    for position, byte in changes:
        if position < len(damaged):
            damaged[position] = byte
    place.checkpoint.write_bytes(damaged)
    with contextlib.suppress(ValueError):
        place.convert()
        return
    place.refuse(r"snli\.pkl")


def test_keeps_a_folder_that_is_not_a_model(place):
    place.out.mkdir()
    (place.out / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(FileExistsError, match="model"):
        place.convert(state_dict())
    assert [path.name for path in place.out.iterdir()] == ["thesis.txt"]
