"""Plugins: parts that the command line finds, and models that name the plugin they need."""

import dataclasses
import importlib
import importlib.metadata
import json
import logging
import sys

import pytest

import gumbeltree
from gumbeltree import plugins
from gumbeltree.parts import CELLS, ENCODERS, ESTIMATORS, HEADS, LEAVES
from gumbeltree.plugins import load_plugin
from gumbeltree.settings import settings_of
from gumbeltree.tasks import TASKS
from gumbeltree.text.tokenizer import whitespace_tokenizer
from tests.commands import run
from tests.models import WORDS, tiny_config, tiny_model
from tests.runs import SMALL, table

PLUGIN = '''
"""An encoder that takes the maximum over the words."""
import torch
from torch import nn
from gumbeltree import Encoding
from gumbeltree.nn.encoders.encoder import Encoder
from gumbeltree.parts import ENCODERS

class MaxEncoder(Encoder):
    def __init__(self, config):
        super().__init__(config)
        self.word = nn.Linear(config.embedding_dim, config.hidden_dim)

    def encode(self, sentences, draw, keep):
        padded = sentences.layout.unpack(self.word(sentences.words))
        lengths = sentences.layout.own_lengths()
        outside = torch.arange(padded.shape[1]) >= lengths[:, None]
        return Encoding(padded.masked_fill(outside[..., None], -torch.inf).amax(1))

def register():
    ENCODERS.table["max"] = "{name}:MaxEncoder"
'''


@pytest.fixture(autouse=True)
def _isolated(monkeypatch):
    """Forget the plugins of a test."""
    for registry in (CELLS, ENCODERS, ESTIMATORS, HEADS, LEAVES, TASKS):
        for place in ("table", "settings"):
            monkeypatch.setattr(registry, place, dict(getattr(registry, place)))
    registries = (CELLS, ENCODERS, ESTIMATORS, HEADS, LEAVES, TASKS)
    monkeypatch.setattr(plugins, "_tables", [(r.kind, r.table) for r in registries])
    monkeypatch.setattr(plugins, "_sources", {})
    monkeypatch.setattr(plugins, "_searched", set())
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("own_"):
            del sys.modules[name]


@pytest.fixture
def forget(monkeypatch):
    """Return a function that unloads the plugin, as in a new process."""

    def unload(name):
        ENCODERS.table.pop("max", None)
        plugins._sources.clear()
        plugins._searched.clear()
        sys.modules.pop(name, None)

    return unload


def write(folder, name="own_parts", registers=True):
    text = PLUGIN.replace("{name}", name) + ("\nregister()\n" if registers else "")
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    return path


def install(monkeypatch, *points):
    """Let installed packages declare these entry points: (package, name, value)."""

    class Distribution(importlib.metadata.Distribution):
        def __init__(self, package):
            self.package = package

        def read_text(self, filename):
            return f"Name: {self.package}\nVersion: 1.0\n" if filename == "METADATA" else None

        def locate_file(self, path):
            raise NotImplementedError

    made = [
        importlib.metadata.EntryPoint(name, value, plugins.GROUP)._for(Distribution(package))
        for package, name, value in points
    ]
    monkeypatch.setattr(plugins, "_entry_points", lambda: made)


def train(folder, *options):
    path = table(folder / "table.csv", lambda text: "yes" if "w1" in text else "no", rows=60)
    sets = [word for setting in (*SMALL, "epochs=1") for word in ("--set", setting)]
    columns = ("--data", path, "--text", "body", "--label", "class", "--out", folder / "run")
    return run("train", "text", *columns, *sets, "--device", "cpu", "-q", *options)


@pytest.mark.parametrize("by", ["module", "file"])
def test_the_command_line_finds_a_plugin(by, tmp_path, monkeypatch, forget):
    path = write(tmp_path)
    if by == "module":
        monkeypatch.chdir(tmp_path)
    name = "own_parts" if by == "module" else path
    result = train(tmp_path, "--set", "encoder.kind=max", "--plugin", name)
    assert result.code == 0, result.err
    config = json.loads((tmp_path / "run/model/config.json").read_text(encoding="utf-8"))
    assert list(config)[3:] == ["model", "plugins", "provenance"]
    assert config["plugins"] == [{"module": "own_parts"}]
    forget("own_parts")
    message = run("predict", tmp_path / "run", "w1 w2").refused()
    assert "unknown encoder 'max'; the model was made with the plugin own_parts" in message
    assert "--plugin own_parts" in message
    assert "own_parts" not in sys.modules
    result = run("predict", tmp_path / "run", "w1 w2", "--plugin", name)
    assert result.code == 0, result.err
    assert result.out.endswith("\tw1 w2\n")


def test_installed_plugins_are_found_when_a_name_is_unknown(tmp_path, monkeypatch, forget):
    write(tmp_path, registers=False)
    monkeypatch.syspath_prepend(tmp_path)
    install(monkeypatch, ("own-package", "mine", "own_parts:register"))
    assert ENCODERS["bag"].__name__ == "BagEncoder"
    assert "own_parts" not in sys.modules
    result = train(tmp_path, "--set", "encoder.kind=max")
    assert result.code == 0, result.err
    config = json.loads((tmp_path / "run/model/config.json").read_text(encoding="utf-8"))
    assert config["plugins"] == [{"module": "own_parts", "package": "own-package"}]
    forget("own_parts")
    assert gumbeltree.load(tmp_path / "run").encoder.word.in_features == 8
    forget("own_parts")
    install(monkeypatch)
    message = run("parse", tmp_path / "run", "w1 w2").refused()
    assert "install own-package, or pass --plugin own_parts" in message


def test_settings_of_installed_plugins_need_no_torch(tmp_path, monkeypatch):
    text = (
        "from gumbeltree.parts import ENCODERS\n"
        # a module that cannot be imported, as without torch
        'ENCODERS.table["max"] = "own_missing:MaxEncoder"\n'
        'ENCODERS.settings["max"] = "gumbeltree.config:BagConfig"\n'
    )
    (tmp_path / "own_parts.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    install(monkeypatch, ("own-package", "mine", "own_parts"))
    assert settings_of(ENCODERS, "max").__name__ == "BagConfig"


def test_a_broken_installed_plugin_does_not_hide_others(tmp_path, monkeypatch, caplog):
    write(tmp_path)
    (tmp_path / "own_broken.py").write_text("1 / 0", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    install(monkeypatch, ("bad", "broken", "own_broken"), ("own-package", "mine", "own_parts"))
    with caplog.at_level(logging.WARNING):
        assert ENCODERS["max"].__name__ == "MaxEncoder"
    assert "cannot import the plugin broken of bad: division by zero" in caplog.text


def test_parts_of_a_program_are_recorded_by_their_module(tmp_path, monkeypatch, forget):
    write(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("own_parts")
    encoder = {"kind": "max", "embedding_dim": 5, "hidden_dim": 6}
    config = dataclasses.replace(tiny_config("single"), encoder=encoder)
    model = gumbeltree.SentenceModel(config, whitespace_tokenizer(WORDS))
    gumbeltree.save(model, tmp_path / "model")
    forget("own_parts")
    with pytest.raises(ValueError, match="plugin own_parts, which is not loaded"):
        gumbeltree.load(tmp_path / "model")
    importlib.import_module("own_parts")
    assert gumbeltree.load(tmp_path / "model").predict(["the dog"])


def test_folders_without_plugins_have_no_such_key(tmp_path):
    gumbeltree.save(tiny_model("single"), tmp_path / "model")
    config = json.loads((tmp_path / "model/config.json").read_text(encoding="utf-8"))
    assert list(config) == ["format", "format_version", "gumbeltree_version", "model", "provenance"]


@pytest.mark.parametrize("value", [[{"module": "own_trap"}], ["own_trap"], "own_trap", {}, [7]])
def test_loading_never_imports_what_a_folder_names(value, tmp_path, monkeypatch):
    (tmp_path / "own_trap.py").write_text("raise SystemExit('executed')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    gumbeltree.save(tiny_model("single"), tmp_path / "model")
    path = tmp_path / "model/config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["plugins"] = value
    path.write_text(json.dumps(config), encoding="utf-8")
    gumbeltree.load(tmp_path / "model")
    config["model"]["encoder"]["kind"] = "own_trap"
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match="unknown encoder 'own_trap'"):
        gumbeltree.load(tmp_path / "model")
    assert "own_trap" not in sys.modules


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_missing", r"cannot import the plugin own_missing .*No module.*path of a \.py file"),
        ("missing/own_file.py", r"the plugin missing/own_file\.py does not exist"),
        ("own_wrong.py", r"cannot import the plugin own_wrong\.py \(ZeroDivisionError"),
        ("json.py", r"another module is named 'json'; rename the file"),
    ],
)
def test_plugins_that_cannot_be_imported(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for file in ("own_wrong.py", "json.py"):
        (tmp_path / file).write_text("1 / 0", encoding="utf-8")
    with pytest.raises((ImportError, OSError), match=message):
        load_plugin(name)
    assert "own_wrong" not in sys.modules
    assert name in run("info", "demo", "--plugin", name).refused()


def test_a_file_can_import_its_neighbours_and_be_loaded_twice(tmp_path):
    write(tmp_path, "own_max")
    entry = 'from gumbeltree.parts import ENCODERS\nENCODERS.table["max"] = "own_max:MaxEncoder"\n'
    (tmp_path / "own_entry.py").write_text(entry, encoding="utf-8")
    load_plugin(str(tmp_path / "own_entry.py"))
    load_plugin(str(tmp_path / "own_entry.py"))
    assert ENCODERS["max"].__name__ == "MaxEncoder"
    assert plugins.plugin_of("encoder", "max", "own_max:MaxEncoder") == {"module": "own_entry"}


def test_each_process_of_a_server_loads_the_plugins(tmp_path):
    pytest.importorskip("fastapi")
    from gumbeltree.web.server import ServerPlan

    plan = ServerPlan(("sst2-100d",), plugins=(str(write(tmp_path)),))
    assert "max" not in ENCODERS
    plan.app()
    assert "max" in ENCODERS
