import contextlib
import io
import json
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
    """A random state dict under the names of the authors' code."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(*shape, generator=generator) * 0.7

    state = OrderedDict({"word_embedding.weight": draw(words, E)})
    if leaf == "lstm":
        state["encoder.leaf_rnn_cell.weight_ih"] = draw(4 * D, E)
        state["encoder.leaf_rnn_cell.weight_hh"] = draw(4 * D, D)
        state["encoder.leaf_rnn_cell.bias_ih"] = draw(4 * D)
        state["encoder.leaf_rnn_cell.bias_hh"] = draw(4 * D)
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
    """The authors' forward pass in evaluation, one sentence at a time, in plain torch."""

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


@pytest.fixture
def place(tmp_path):
    """Where a checkpoint, its vocabulary and the model folder go."""
    return Place(tmp_path)


class Place:
    def __init__(self, folder):
        self.checkpoint, self.vocabulary = folder / "snli.pkl", folder / "vocab.txt"
        self.out = folder / "model"
        self.folder = folder
        self.write_words(WORDS)

    def write_words(self, words):
        self.vocabulary.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")

    def convert(self, state=None, **options):
        if state is not None:
            torch.save(state, self.checkpoint)
        return import_reference(self.checkpoint, self.vocabulary, self.out, **options)

    def refuse(self, pattern, state=None, error=ValueError, **options):
        """Assert that nothing is imported, and why; return the message."""
        with pytest.raises(error, match=pattern) as caught:
            self.convert(state, **options)
        assert not self.out.exists()
        return str(caught.value)


# the authors' results


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("leaf", ["lstm", "affine"])
@pytest.mark.parametrize("variant", ["reference", "paper"])
def test_results_are_the_authors(place, leaf, batch_norm, layers, variant):
    state = state_dict(leaf, batch_norm, layers)
    place.convert(state, variant=variant)
    model, authors = load(place.out), Authors(state)
    assert model.labels == ("neutral", "entailment", "contradiction")
    expected = [authors.encode(text) for text in TEXTS]
    assert model.parse_many(TEXTS) == [tree for _, tree in expected]
    vectors = torch.stack([vector for vector, _ in expected])
    np.testing.assert_allclose(model.encode(TEXTS), vectors.numpy(), rtol=0, atol=1e-5)
    for pair, prediction in zip(PAIRS, model.predict(PAIRS), strict=True):
        scores = authors.classify(*pair)
        np.testing.assert_allclose(prediction.logits, scores.numpy(), rtol=0, atol=1e-5)
        assert prediction.label == model.labels[int(scores.argmax())]


def test_the_check_itself_can_fail(place):
    state = state_dict()
    model = place.convert(state)
    authors = Authors({**state, "encoder.comp_query": -state["encoder.comp_query"]})
    assert model.parse(TEXTS[1]) != authors.encode(TEXTS[1])[1]


def test_ties_go_to_the_left(place):
    state = state_dict()
    state["encoder.comp_query"].zero_()
    tree = place.convert(state).parse(TEXTS[1])
    assert tree == Tree.left_branching(TEXTS[1]) == Authors(state).encode(TEXTS[1])[1]


def test_variants_set_the_score_and_share_the_trees(place):
    state = state_dict()
    paper = place.convert(state, variant="paper")
    reference = place.convert(state)
    assert paper.config.encoder.score == "dot"
    assert reference.config.encoder.score == "scaled_dot"
    assert paper.parse_many(TEXTS) == reference.parse_many(TEXTS)
    assert np.array_equal(paper.encode(TEXTS), reference.encode(TEXTS))


def test_the_model_returned_is_the_model_saved(place):
    model, loaded = place.convert(state_dict(batch_norm=True)), load(place.out)
    assert loaded.config == model.config
    assert not model.training
    assert np.array_equal(model.encode(TEXTS), loaded.encode(TEXTS))
    assert model.predict(PAIRS) == loaded.predict(PAIRS)
    provenance = json.loads((place.out / "config.json").read_text(encoding="utf-8"))["provenance"]
    assert provenance == {"imported": "snli.pkl", "variant": "reference", "lower": False}


@pytest.mark.parametrize("leaf", ["lstm", "affine"])
def test_settings_follow_from_the_shapes(place, leaf):
    config = place.convert(state_dict(leaf, True, 3)).config
    encoder, head = config.encoder, config.head
    assert (encoder.embedding_dim, encoder.hidden_dim, encoder.leaf.kind) == (E, D, leaf)
    assert (head.kind, head.hidden_dim, head.hidden_layers, head.batch_norm) == ("pair", H, 3, True)
    assert encoder.cell.forget_offset == 1


# file formats


def test_files_of_older_torch_read(place):
    state = state_dict(batch_norm=True)
    torch.save(state, place.checkpoint, _use_new_zipfile_serialization=False)
    assert not zipfile.is_zipfile(place.checkpoint)
    vector = Authors(state).encode(TEXTS[1])[0]
    np.testing.assert_allclose(place.convert().encode(TEXTS[1:2])[0], vector, rtol=0, atol=1e-5)


def test_files_without_the_counter_of_batches_read(place):
    state = state_dict(batch_norm=True)
    expected = place.convert(state).predict(PAIRS)
    older = {k: x for k, x in state.items() if not k.endswith("num_batches_tracked")}
    assert len(older) == len(state) - 2
    assert place.convert(older).predict(PAIRS) == expected


def test_a_query_with_one_row_reads(place):
    state = state_dict()
    expected = place.convert(state).parse_many(TEXTS)
    state["encoder.comp_query"] = state["encoder.comp_query"][None]
    assert place.convert(state).parse_many(TEXTS) == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_other_precisions_become_float32(place, dtype):
    model = place.convert({key: x.to(dtype) for key, x in state_dict().items()})
    assert {x.dtype for x in model.state_dict().values()} == {torch.float32}


# vocabulary


@pytest.mark.parametrize(
    ("form", "newline"),
    [("{}", "\n"), ("{}\t0.1 0.2", "\n"), ("{} 17", "\n"), ("  {}", "\n"), ("{}", "\r\n")],
)
def test_words_are_the_first_field_of_each_line(place, form, newline):
    lines = [form.format(word) for word in WORDS]
    place.vocabulary.write_text(newline.join(lines), encoding="utf-8", newline="")
    state = state_dict()
    model = place.convert(state)
    rows = [model.tokenizer.token_to_id(word) for word in [*WORDS, "<pad>", "<unk>"]]
    assert rows == list(range(len(WORDS) + 2))
    assert torch.equal(model.embedding.weight.detach(), state["word_embedding.weight"])


def test_words_of_any_alphabet(place):
    words = ["喜欢", "été", "İ", "👩‍👩‍👧", "(", "<unk>", "<pad>", "the", "The"]
    place.write_words(words)
    model = place.convert(state_dict())
    assert model.tokenizer.encode("The the İ 喜欢 zebra").ids == [8, 7, 2, 0, 10]
    assert model.tokenizer.encode("<pad> <unk>").ids == [9, 10]


def test_text_is_lower_cased_if_asked(place):
    as_is, lower = place.convert(state_dict()), place.convert(state_dict(), lower=True)
    assert np.array_equal(lower.encode(["The DOG"]), as_is.encode(["the dog"]))
    assert not np.array_equal(as_is.encode(["The DOG"]), as_is.encode(["the dog"]))


def test_a_byte_order_mark_is_no_part_of_the_first_word(place):
    place.vocabulary.write_text("\n".join(WORDS), encoding="utf-8-sig")
    assert place.convert(state_dict()).tokenizer.token_to_id("the") == 0


@pytest.mark.parametrize("blank", ["", "  ", "\t", "\u00a0"])
def test_a_blank_line_is_refused_by_its_number(place, blank):
    place.write_words([*WORDS[:3], blank, *WORDS[3:]])
    place.refuse(r"vocab\.txt, line 4: expected a word, got a blank line", state_dict(words=12))


def test_a_repeated_word_is_refused_by_both_line_numbers(place):
    place.write_words([*WORDS, "dog 0.5"])
    place.refuse(r"vocab\.txt, line 10: 'dog' stands at line 2 already", state_dict(words=12))


@pytest.mark.parametrize("rows", [9, 10, 12])
def test_another_number_of_word_vectors_is_refused(place, rows):
    place.refuse(
        f"{rows} word vectors, but .*vocab.txt has 9 lines, .*<pad> and <unk> makes 11",
        state_dict(words=rows),
    )


def test_an_empty_vocabulary_is_refused(place):
    place.write_words([])
    place.refuse("11 word vectors, but .*vocab.txt has 0 lines", state_dict())


def test_a_vocabulary_in_another_encoding_is_refused_by_its_name(place):
    place.vocabulary.write_bytes("\n".join([*WORDS[:-1], "été"]).encode("latin-1"))
    place.refuse(r"vocab\.txt.*(UTF|utf)-8", state_dict())


def test_missing_files_are_named(place):
    place.refuse(r"snli\.pkl: no such file", error=FileNotFoundError)
    place.vocabulary.unlink()
    place.refuse(r"vocab\.txt", state_dict(), error=FileNotFoundError)


def test_folders_in_place_of_files_are_refused(place):
    place.checkpoint.mkdir()
    place.refuse(r"snli\.pkl", error=OSError)
    place.checkpoint.rmdir()
    place.vocabulary.unlink()
    place.vocabulary.mkdir()
    place.refuse(r"vocab\.txt", state_dict(), error=OSError)


# other models


def test_a_single_sentence_model_is_refused(place):
    place.refuse(
        f"single-sentence model: its classifier takes {D} features, a pair model's takes 4 x {D}",
        state_dict(features=D),
    )


def test_a_classifier_of_any_other_width_is_refused(place):
    place.refuse(r"expected \[7, 24\], found \[7, 11\]", state_dict(features=11))


def test_an_unknown_variant_is_refused(place):
    place.refuse("unknown variant 'papr'.*Did you mean 'paper'", state_dict(), variant="papr")


@pytest.mark.parametrize(
    "key",
    [
        "encoder.leaf_rnn_cell_bw.weight_ih",
        "encoder.comp_query_2",
        "classifier.mlp.0.1.weight",
        "classifier.mlp.0.weight",
        "classifier.mlp.1.0.weight",
        "module.word_embedding.weight",
        "optimizer",
        "",
    ],
)
def test_unknown_keys_are_refused(place, key):
    place.refuse(r"snli\.pkl", {**state_dict(), key: torch.zeros(3)})


def test_an_unknown_key_is_named(place):
    place.refuse(
        r"snli\.pkl has the key 'encoder\.gate', which no pair model",
        {**state_dict(), "encoder.gate": torch.zeros(3)},
    )


def test_keys_that_are_no_strings_are_refused(place):
    place.refuse("has the key 5, which no pair model", {**state_dict(), 5: torch.zeros(3)})


@pytest.mark.parametrize("key", state_dict(batch_norm=True))
def test_a_missing_key_is_refused(place, key):
    state = state_dict(batch_norm=True)
    del state[key]
    if not key.endswith("num_batches_tracked"):
        name = key.rpartition(".")[2]
        place.refuse(rf"snli\.pkl.*{name}|has no leaf: expected {key}", state)


@pytest.mark.parametrize("key", ["word_embedding.weight", "classifier.mlp.0.0.weight"])
def test_a_missing_key_is_called_as_the_file_would_call_it(place, key):
    state = state_dict()
    del state[key]
    place.refuse(f"snli.pkl lacks {key}: not a pair model", state)


@pytest.mark.parametrize("key", state_dict(batch_norm=True))
def test_misshapen_weights_are_refused(place, key):
    state = state_dict(batch_norm=True)
    for shape in [(), (0,), (4,), (0, 3), (3, 3), (2, 2, 2)]:
        if shape != state[key].shape:
            place.refuse(r"snli\.pkl", {**state, key: torch.ones(shape)})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("key", ["word_embedding.weight", "classifier.bn_mlp_input.running_mean"])
def test_weights_that_are_no_numbers_are_refused(place, key, value):
    state = state_dict(batch_norm=True)
    state[key].view(-1)[-1] = value
    place.refuse(f"snli.pkl: {key} holds NaN or infinity", state)


def test_weights_beyond_float32_are_refused(place):
    state = state_dict()
    state["encoder.comp_query"] = state["encoder.comp_query"].double() * 1e300
    place.refuse(r"encoder\.comp_query holds NaN or infinity", state)


@pytest.mark.parametrize(
    "convert",
    [lambda x: x.long(), lambda x: x.to(torch.complex64), lambda x: x.to_sparse(), lambda x: x > 0],
    ids=["integers", "complex", "sparse", "booleans"],
)
def test_weights_of_another_kind_are_refused(place, convert):
    state = state_dict()
    state["encoder.comp_query"] = convert(state["encoder.comp_query"])
    place.refuse(r"encoder\.comp_query", state)


# other files


class Bomb:
    """Unpickling this creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def bombs(path):
    """Pickles with code: both formats of torch.save, and plain ones."""
    for options in ({}, {"_use_new_zipfile_serialization": False}):
        for content in (Bomb(path), {**state_dict(), "encoder.comp_query": Bomb(path)}):
            file = io.BytesIO()
            torch.save(content, file, **options)
            yield file.getvalue()
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        yield pickle.dumps({"word_embedding.weight": Bomb(path)}, protocol)


def test_code_in_a_pickle_does_not_run(place):
    target = place.folder / "went-off"
    for bomb in bombs(target):
        place.checkpoint.write_bytes(bomb)
        place.refuse(r"snli\.pkl is not a state dict that can be read safely")
        assert not target.exists()
    # the last bomb is live
    pickle.loads(bomb)["word_embedding.weight"].close()
    assert target.exists()


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)


@pytest.mark.parametrize("module", [nn.Linear(2, 2), Network()], ids=["torch's", "own"])
def test_a_whole_pickled_module_is_refused(place, module):
    torch.save(module, place.checkpoint)
    message = place.refuse(r"not a state dict that can be read safely.*model\.state_dict\(\)")
    # torch's own advice is to switch the protection off
    assert "options" not in message
    assert "weights_only" not in message
    assert "\x1b" not in message
    assert type(module).__name__ in message


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({"model": state_dict(), "epoch": 3}, "model"),
        ({**state_dict(), "epoch": 3}, "epoch"),
        ([1, 2], "list"),
        (torch.zeros(3), "Tensor"),
        (None, "NoneType"),
    ],
)
def test_a_file_with_more_or_less_than_a_state_dict_is_refused(place, content, found):
    torch.save(content, place.checkpoint)
    place.refuse(f"{found}.*expected a state dict of tensors")


def test_an_empty_state_dict_is_refused(place):
    place.refuse(r"lacks word_embedding\.weight, ", {})


def zip_file():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", "text")
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello world\n",
        b"the 0.1 0.2\ndog 0.3 0.4\n",
        b"\x80",
        b"\x00" * 100,
        b"\xff" * 100,
        b"PK\x03\x04",
        b"\x1f\x8b\x08\x00",
        b'{"a": 1}',
        zip_file(),
        pickle.dumps({"a": 1}, 2),
        pickle.dumps({"a": 1}),
    ],
)
def test_a_file_that_torch_did_not_write_is_refused(place, content):
    place.checkpoint.write_bytes(content)
    place.refuse(r"snli\.pkl is not a state dict that can be read safely")


def written(**options):
    file = io.BytesIO()
    torch.save(state_dict(), file, **options)
    return file.getvalue()


FILES = [written(), written(_use_new_zipfile_serialization=False)]


@given(
    st.sampled_from(FILES),
    st.one_of(st.none(), st.floats(0, 1)),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=8),
)
def test_a_damaged_file_is_refused_or_read(tmp_path_factory, content, cut, changes):
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


def test_an_occupied_folder_is_refused(place):
    place.out.mkdir()
    (place.out / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(FileExistsError, match="is no model folder"):
        place.convert(state_dict())
    assert [path.name for path in place.out.iterdir()] == ["thesis.txt"]
