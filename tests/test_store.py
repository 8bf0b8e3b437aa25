"""Model folders: saving, loading, and what they reject."""

import dataclasses
import json
import math
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
    """Return a copy of a saved model, to be damaged."""
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
    """Check that vectors, trees and predictions are identical."""
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
    save(model, tmp_path / "new" / "model")
    loaded = load(tmp_path / "new" / "model")
    assert loaded.config == model.config
    assert not any(module.training for module in loaded.modules())
    assert_same(loaded, model)
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_a_model_in_training_is_saved_unchanged(tmp_path):
    model = tiny_model(lower=True).train()
    # an empty folder is used
    save(model, str(tmp_path))
    assert model.training
    loaded = load(str(tmp_path))
    assert_same(loaded, model)
    assert np.array_equal(loaded.encode(["THE DOG"]), loaded.encode(["the dog"]))


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


def test_a_saved_model_is_replaced_and_other_files_stay(folder):
    (folder / "README.md").write_text("mine", encoding="utf-8")
    model = tiny_model("single", leaf="affine")
    save(model, folder)
    assert_same(load(folder), model)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", *FILES]


# errors of save


@pytest.mark.parametrize("config", ['{"model_type": "bert"}', "[]", "not JSON", ""])
def test_save_keeps_models_of_other_libraries(tmp_path, config):
    # other libraries use the same three file names
    for name in FILES:
        (tmp_path / name).write_text(config, encoding="utf-8")
    for path in (tmp_path, tmp_path / FILES[0]):
        with pytest.raises(FileExistsError, match=path.name):
            save(tiny_model(), path)
    assert {path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {config}


def test_save_rejects_provenance_that_is_not_json_before_writing(folder, tmp_path):
    with pytest.raises(TypeError, match="JSON"):
        save(tiny_model("single"), folder, {"when": object()})
    assert_same(load(folder), tiny_model())
    with pytest.raises(TypeError, match="JSON"):
        save(tiny_model(), tmp_path / "new", {"when": object()})
    assert not (tmp_path / "new").exists()


def test_a_failed_write_keeps_the_old_model(folder, monkeypatch):
    def fill_disk(weights, path):
        path.write_bytes(b"half of it")
        raise OSError("no space left on device")

    monkeypatch.setattr(gumbeltree.model, "save_file", fill_disk)
    with pytest.raises(OSError, match="no space left"):
        save(tiny_model("single"), folder)
    assert_same(load(folder), tiny_model())


# errors of load


def test_load_rejects_other_folders(tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    for name in ("nowhere", "file", "."):
        with pytest.raises(OSError, match="model folder"):
            load(tmp_path / name)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_load_names_missing_files(folder, name):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"incomplete.*{name}"):
        load(folder)


@pytest.mark.parametrize(
    "content",
    [b"", b'{"format": "gumbeltree",}', b"\xff\xfe", b"[" * 100_000, b"[]", b'{"format": "onnx"}'],
    ids=["empty", "comma", "binary", "deep", "list", "other"],
)
def test_load_rejects_other_config_files(folder, content):
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"config\.json is not"):
        load(folder)


@pytest.mark.parametrize("version", [0, 3, "1", True, None])
def test_load_rejects_other_format_versions(folder, version):
    edit(folder / "config.json", lambda config: config.update(format_version=version))
    with pytest.raises(ValueError, match=f"format version {version!r}.*1 to 2"):
        load(folder)


def test_load_rejects_a_config_without_a_model(folder):
    edit(folder / "config.json", lambda config: config.pop("model"))
    with pytest.raises(ValueError, match=r"config\.json.*`model`|config\.json.*is missing model"):
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
def test_load_rejects_unknown_settings(folder, change, dotted, nearest):
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
def test_load_rejects_invalid_settings(folder, table, key, value):
    edit(folder / "config.json", lambda config: config["model"][table].update({key: value}))
    with pytest.raises(ValueError, match=rf"config\.json.*{key}"):
        load(folder)


@pytest.mark.parametrize("width", [10**15, 10**30])
def test_load_rejects_excessive_widths(folder, width):
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
def test_load_names_weights_that_do_not_fit(folder, change, expected):
    edit_weights(folder, change)
    with pytest.raises(ValueError, match=rf"model\.safetensors do not match the model: {expected}"):
        load(folder)


def test_load_rejects_settings_that_do_not_fit_the_weights(folder):
    edit(folder / "config.json", lambda config: config["model"]["head"].update(hidden_layers=3))
    with pytest.raises(ValueError, match=r"head\.hidden\.2\.weight: expected \[7, 7\], found noth"):
        load(folder)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["encoder.query", "embedding.weight", "head.output.bias"])
def test_load_rejects_weights_that_are_not_finite(folder, name, value):
    edit_weights(folder, lambda weights: weights[name].view(-1)[-1].fill_(value))
    with pytest.raises(ValueError, match=rf"model\.safetensors: {name} contains NaN"):
        load(folder)


def test_load_accepts_large_finite_weights(folder):
    # their sum overflows
    edit_weights(folder, lambda weights: weights["encoder.query"].fill_(3e38))
    load(folder)


@pytest.mark.parametrize("size", [0, 5, 100, -1], ids=["empty", "length", "header", "weights"])
def test_load_rejects_truncated_weights(folder, size):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged or truncated"):
        load(folder)


def test_load_rejects_pickled_weights(folder, tmp_path):
    torch.save({"encoder.query": Bomb(tmp_path / "went-off")}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged or truncated"):
        load(folder)
    assert not (tmp_path / "went-off").exists()


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"{", b"\xff\xfe", b'{"model": {"type": "x"}}']
)
def test_load_rejects_damaged_tokenizers(folder, content):
    (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json is (not a tokenizer|refused: .* 'x',)"):
        load(folder)


def test_tokenizers_that_could_exhaust_the_memory_are_neither_saved_nor_loaded(folder, tmp_path):
    model = load(folder)
    model.tokenizer.enable_padding(length=2_000_000_000)
    with pytest.raises(ValueError, match=r"cannot save the model: .*padding must be null"):
        save(model, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (folder / "tokenizer.json").write_text(model.tokenizer.to_str(), encoding="utf-8")
    for runtime in ("torch", "numpy"):
        with pytest.raises(ValueError, match=r"tokenizer\.json is refused: .*padding"):
            gumbeltree.load(folder, runtime=runtime)


def test_load_refuses_huge_tokenizers(folder, monkeypatch):
    monkeypatch.setattr("gumbeltree.store.MOST_BYTES", 100)
    with pytest.raises(ValueError, match=r"tokenizer\.json has .* bytes; the limit is 100"):
        load(folder)


def test_load_rejects_ids_beyond_the_word_vectors(folder):
    # as many words as vectors, but one id is out of range
    edit(folder / "tokenizer.json", lambda data: data["model"]["vocab"].update(dog=99))
    with pytest.raises(ValueError, match=r"tokenizer\.json.*99"):
        load(folder)
    edit(folder / "tokenizer.json", lambda data: data["model"]["vocab"].update({"x" * 9999: 9999}))
    with pytest.raises(ValueError, match=r"tokenizer\.json.*9999 to 'x{60}'\.\.\.$"):
        load(folder)


def test_load_rejects_a_tokenizer_without_its_unknown_word(folder):
    # it would fail at the first text with an unknown word
    def rename(data):
        words = data["model"]["vocab"]
        words["snark"] = words.pop("<unk>")

    edit(folder / "tokenizer.json", rename)
    with pytest.raises(ValueError, match=r"tokenizer\.json.*<unk>"):
        load(folder)


class Bomb:
    """Creates a file when unpickled."""

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
