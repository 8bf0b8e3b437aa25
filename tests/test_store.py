import dataclasses
import json
import pickle
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import gumbeltree.model
from gumbeltree import __version__, load, save
from tests.models import TEXTS, WORDS, tiny_config, tiny_model

PAIRS = list(zip(TEXTS, reversed(TEXTS), strict=True))
FILES = ["config.json", "model.safetensors", "tokenizer.json"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    save(tiny_model(), folder, {"corpus": "none, drawn at random"})
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of a saved model, to be damaged."""
    return shutil.copytree(saved, tmp_path / "model")


def edit(path, change):
    """Change a JSON file in place."""
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def edit_weights(folder, change):
    weights = {name: x.clone() for name, x in load_file(folder / "model.safetensors").items()}
    change(weights)
    save_file(weights, folder / "model.safetensors")


def assert_same(one, other):
    """Both give the same vectors, trees and predictions, to the last bit."""
    assert np.array_equal(one.encode(TEXTS), other.encode(TEXTS))
    assert one.parse_many(TEXTS) == other.parse_many(TEXTS)
    texts = PAIRS if one.config.head.kind == "pair" else TEXTS
    assert one.predict(texts) == other.predict(texts)


# saving and loading


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("pair", {}),
        ("single", {"leaf": "affine", "score": "scaled_dot"}),
        ("pair", {"leaf": "bilstm", "attention": True, "cell": {"forget_offset": 0.0}}),
        ("single", {"estimator": "soft", "impl": "reference", "temperature": 0.5}),
    ],
)
def test_a_loaded_model_is_the_saved_one(tmp_path, kind, settings):
    model = tiny_model(kind, **settings)
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert loaded.config == model.config
    assert not any(module.training for module in loaded.modules())
    assert_same(loaded, model)
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_lower_case_survives(tmp_path):
    save(tiny_model(lower=True), tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert np.array_equal(loaded.encode(["THE DOG"]), loaded.encode(["the dog"]))


def test_a_model_in_training_is_saved_as_it_is(tmp_path):
    model = tiny_model().train()
    save(model, tmp_path / "model")
    assert model.training
    assert_same(load(tmp_path / "model"), model)


def test_a_folder_holds_three_files(saved):
    assert sorted(path.name for path in saved.iterdir()) == FILES
    config = json.loads((saved / "config.json").read_text(encoding="utf-8"))
    assert config == {
        "format": "gumbeltree",
        "format_version": 2,
        "gumbeltree_version": __version__,
        "model": json.loads(json.dumps(dataclasses.asdict(tiny_config()))),
        "provenance": {"corpus": "none, drawn at random"},
    }
    tokenizer = json.loads((saved / "tokenizer.json").read_text(encoding="utf-8"))
    assert tokenizer["model"]["vocab"] == {w: i for i, w in enumerate([*WORDS, "<pad>", "<unk>"])}
    assert "encoder.query" in load_file(saved / "model.safetensors")


def test_paths_may_be_strings_and_parents_absent(tmp_path):
    save(tiny_model(), str(tmp_path / "a" / "b" / "model"))
    assert_same(load(str(tmp_path / "a" / "b" / "model")), tiny_model())


def test_an_empty_folder_is_used(tmp_path):
    save(tiny_model(), tmp_path)
    assert_same(load(tmp_path), tiny_model())


def test_a_saved_model_is_replaced_and_other_files_stay(folder):
    (folder / "README.md").write_text("mine", encoding="utf-8")
    model = tiny_model("single", leaf="affine")
    save(model, folder)
    assert_same(load(folder), model)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", *FILES]


# refusals of save


def test_a_folder_with_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(FileExistsError, match=f"{tmp_path.name} exists and is no model folder"):
        save(tiny_model(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("config", ['{"model_type": "bert"}', "[]", "not JSON", ""])
def test_a_model_of_another_library_is_refused(tmp_path, config):
    # other libraries use the same three file names
    for name in FILES:
        (tmp_path / name).write_text(config, encoding="utf-8")
    with pytest.raises(FileExistsError, match="is no model folder"):
        save(tiny_model(), tmp_path)
    assert {path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {config}


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("years of work", encoding="utf-8")
    with pytest.raises(FileExistsError, match="file exists and is no model folder"):
        save(tiny_model(), tmp_path / "file")
    assert (tmp_path / "file").read_text(encoding="utf-8") == "years of work"


def test_provenance_that_json_cannot_hold_is_refused_before_anything_is_written(folder, tmp_path):
    with pytest.raises(TypeError, match="JSON"):
        save(tiny_model("single"), folder, {"when": object()})
    assert_same(load(folder), tiny_model())
    with pytest.raises(TypeError, match="JSON"):
        save(tiny_model(), tmp_path / "new", {"when": object()})
    assert not (tmp_path / "new").exists()


def test_a_failed_write_leaves_the_old_model(folder, monkeypatch):
    def fill_disk(weights, path):
        path.write_bytes(b"half of it")
        raise OSError("no space left on device")

    monkeypatch.setattr(gumbeltree.model, "save_file", fill_disk)
    with pytest.raises(OSError, match="no space left"):
        save(tiny_model("single"), folder)
    assert_same(load(folder), tiny_model())


# refusals of load


def test_what_is_no_model_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    for name in ("nowhere", "file", "."):
        with pytest.raises(OSError, match="is no model folder"):
            load(tmp_path / name)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"is incomplete: it has no {name}"):
        load(folder)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"format": "gumbeltree",}', b"\xff\xfe", b"[" * 100_000],
    ids=["empty", "cut", "comma", "binary", "deep"],
)
def test_damaged_json_is_refused(folder, content):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.json is not JSON"):
        load(folder)


@pytest.mark.parametrize("content", ["[]", "3", "null", "{}", '{"format": "onnx"}'])
def test_json_of_something_else_is_refused(folder, content):
    (folder / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.json is not a gumbeltree model"):
        load(folder)


@pytest.mark.parametrize("version", [0, 3, "1", True, None])
def test_another_format_version_is_refused(folder, version):
    edit(folder / "config.json", lambda config: config.update(format_version=version))
    with pytest.raises(ValueError, match=f"has format version {version!r}, .* reads 1 to 2;"):
        load(folder)


def test_a_config_without_a_model_is_refused(folder):
    edit(folder / "config.json", lambda config: config.pop("model"))
    with pytest.raises(ValueError, match=r"config\.json.*`model`|config\.json.*lacks model"):
        load(folder)


@pytest.mark.parametrize(
    ("change", "dotted", "nearest"),
    [
        (lambda c: c.update(provenence={}), "provenence", "provenance"),
        (lambda c: c["model"].update(heads={}), "model.heads", "head"),
        (
            lambda c: c["model"]["encoder"].update(hiden_dim=3),
            "model.encoder.hiden_dim",
            "hidden_dim",
        ),
        (lambda c: c["model"]["head"].update(dropuot=0), "model.head.dropuot", "dropout"),
    ],
)
def test_unknown_settings_are_refused(folder, change, dotted, nearest):
    edit(folder / "config.json", change)
    with pytest.raises(
        ValueError, match=rf"config\.json.*unknown key '{dotted}'.*Did you mean '{nearest}'"
    ):
        load(folder)


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("encoder", "hidden_dim", "six"),
        ("encoder", "hidden_dim", -6),
        ("encoder", "leaf", "lsmt"),
        ("encoder", "cell", "tree"),
        ("encoder", "temperature", 0),
        ("encoder", "cell", {"forget_offset": float("nan")}),
        ("head", "labels", ["a", "a", "b"]),
        ("head", "dropout", 2),
    ],
)
def test_settings_that_make_no_sense_are_refused(folder, table, key, value):
    edit(folder / "config.json", lambda config: config["model"][table].update({key: value}))
    with pytest.raises(ValueError, match=rf"config\.json.*{key}"):
        load(folder)


@pytest.mark.parametrize("width", [10**15, 10**30])
def test_a_width_that_no_machine_can_hold_is_refused(folder, width):
    edit(folder / "config.json", lambda config: config["model"]["encoder"].update(hidden_dim=width))
    with pytest.raises(ValueError, match=r"config\.json"):
        load(folder)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda w: w.pop("encoder.query"), r"encoder\.query: expected \[6\], found nothing"),
        (lambda w: w.update(more=torch.ones(2)), r"more: expected nothing, found \[2\]"),
        (
            lambda w: w.update({"encoder.query": torch.ones(1, 6)}),
            r"encoder\.query: expected \[6\], found \[1, 6\]",
        ),
        (
            lambda w: w.update({"embedding.weight": torch.ones(12, 5)}),
            r"embedding\.weight: expected \[13, 5\], found \[12, 5\]",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(folder, change, expected):
    edit_weights(folder, change)
    with pytest.raises(ValueError, match=rf"model\.safetensors do not fit the model: {expected}"):
        load(folder)


def test_settings_of_another_model_do_not_fit_the_weights(folder):
    edit(folder / "config.json", lambda config: config["model"]["head"].update(hidden_layers=3))
    with pytest.raises(ValueError, match=r"head\.hidden\.2\.weight: expected \[7, 7\], found noth"):
        load(folder)


@pytest.mark.parametrize("size", [0, 5, 100, -1], ids=["empty", "length", "header", "weights"])
def test_weights_cut_short_are_refused(folder, size):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged or cut short"):
        load(folder)


def test_a_pickle_in_place_of_the_weights_is_refused(folder, tmp_path):
    torch.save({"encoder.query": Bomb(tmp_path / "went-off")}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged or cut short"):
        load(folder)
    assert not (tmp_path / "went-off").exists()


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"{", b"\xff\xfe", b'{"model": {"type": "x"}}']
)
def test_a_damaged_tokenizer_is_refused(folder, content):
    (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer"):
        load(folder)


def test_a_tokenizer_with_ids_beyond_the_word_vectors_is_refused(folder):
    # as many words as there are vectors, but one of them points past the end
    edit(folder / "tokenizer.json", lambda data: data["model"]["vocab"].update(dog=99))
    with pytest.raises(ValueError, match=r"tokenizer\.json.*99"):
        load(folder)


def test_a_tokenizer_that_lacks_its_unknown_word_is_refused(folder):
    # it would fail at the first text with a new word
    def rename(data):
        words = data["model"]["vocab"]
        words["snark"] = words.pop("<unk>")

    edit(folder / "tokenizer.json", rename)
    with pytest.raises(ValueError, match=r"tokenizer\.json.*<unk>"):
        load(folder)


class Bomb:
    """Unpickling this creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_loading_runs_no_code_from_the_folder(folder, tmp_path):
    target = tmp_path / "went-off"
    bomb = pickle.dumps(Bomb(target))
    for name in ("model.pkl", "pytorch_model.bin", "model.pt", "config.pkl"):
        (folder / name).write_bytes(bomb)
    for name in ("modeling.py", "tokenizer.py", "config.py", "__init__.py", "gumbeltree.py"):
        (folder / name).write_text(f"open({str(target)!r}, 'w')", encoding="utf-8")
    assert_same(load(folder), tiny_model())
    assert not target.exists()
    # the bomb is live
    pickle.loads(bomb).close()
    assert target.exists()
