"""Sharing models, against a small Hub of our own on this machine; no test needs a network."""

import base64
import dataclasses
import hashlib
import json
import pickle
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard, constants
from safetensors.torch import load_file, save_file

from gumbeltree import SentenceModel, load, save
from gumbeltree.card import code, generated, model_card
from gumbeltree.cli import main
from gumbeltree.describe import describe
from gumbeltree.hub import check_id, fetch
from tests.models import TEXTS, encoder_settings, tiny_config, tiny_model

FILES = ["config.json", "model.safetensors", "tokenizer.json"]
PAIRS = list(zip(TEXTS, reversed(TEXTS), strict=True))
PROVENANCE = {
    "recipe_name": "snli-300d",
    "recipe": {
        "description": "SNLI, 300D",
        "data": {"task": "snli", "lower": True},
        "training": {"learning_rate": 0.001, "epochs": 15},
    },
    "seed": 7,
    "versions": {"torch": "2.13.0"},
    "metrics": {"dev_accuracy": 0.8561, "test_accuracy": 0.851, "epoch": 4, "step": 1200},
    "data": {"train": 549367},
}


class Hub(ThreadingHTTPServer):
    """As much of the Hub as pushing and loading need. Every commit holds all files."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.repos = {}
        self.asked = []
        self.down = False

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server_port}"

    def commit(self, name, files, message="", private=False):
        """Add a commit on main; return its hash."""
        repo = self.repos.setdefault(name, {"private": private, "commits": [], "messages": []})
        earlier = repo["commits"][-1][1] if repo["commits"] else {}
        sha = hashlib.sha1(f"{name} {len(repo['commits'])}".encode()).hexdigest()
        repo["commits"].append((sha, {**earlier, **files}))
        repo["messages"].append(message)
        return sha

    def fetched(self):
        """Names of the files whose content or headers were asked for."""
        return {path.rpartition("/")[2] for _, path in self.asked if "/resolve/" in path}


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def send(self, status, content=b"", **headers):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append((self.command, path))
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length)
        self.allowed = self.headers.get("Authorization") == "Bearer good"
        if self.server.down:
            return self.send(500, {"error": "Internal error"})
        if path == "/api/validate-yaml":
            return self.send(200, {"errors": [], "warnings": []})
        if path == "/api/repos/create":
            return self.create(json.loads(self.body))
        match = re.fullmatch(r"(?:/api/models)?/([^/]+/[^/]+)(?:/(\w+)/([^/]+))?(?:/(.*))?", path)
        name, verb, revision, file = match.groups() if match else (None,) * 4
        repo = self.server.repos.get(name)
        if repo is None or (repo["private"] and not self.allowed):
            return self.send(401, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
        return self.answer(name, repo, verb or "info", revision or "main", file)

    do_HEAD = do_POST = do_GET

    def create(self, wanted):
        name = f"{wanted['organization']}/{wanted['name']}"
        if not self.allowed:
            return self.send(401, {"error": "Invalid username or password."})
        if wanted["organization"] == "strangers":
            return self.send(403, {"error": "You don't have the rights to create a model here"})
        known = name in self.server.repos
        private = wanted.get("private") or wanted.get("visibility") == "private"
        if not known:
            self.server.commit(name, {".gitattributes": b""}, private=bool(private))
        return self.send(409 if known else 200, {"url": f"{self.server.address}/{name}"})

    def answer(self, name, repo, verb, revision, file):
        commits = dict(repo["commits"])
        sha = repo["commits"][-1][0] if revision == "main" else revision
        if sha not in commits:
            return self.send(404, {"error": "Invalid rev"}, X_Error_Code="RevisionNotFound")
        files = commits[sha]
        if verb in ("info", "revision"):
            siblings = [{"rfilename": path} for path in files]
            about = {"id": name, "sha": sha, "private": repo["private"], "siblings": siblings}
            return self.send(200, about)
        if verb == "tree":
            listing = [
                {"type": "file", "path": path, "size": len(x), "oid": hashlib.sha1(x).hexdigest()}
                for path, x in files.items()
            ]
            return self.send(200, listing)
        if verb == "resolve" and file in files:
            tag = f'"{hashlib.sha1(files[file]).hexdigest()}"'
            return self.send(200, files[file], ETag=tag, X_Repo_Commit=sha)
        if verb == "preupload" and self.allowed:
            asked = [file["path"] for file in json.loads(self.body)["files"]]
            modes = [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in asked]
            return self.send(200, {"files": modes})
        if verb == "commit" and self.allowed:
            lines = [json.loads(line) for line in self.body.splitlines()]
            new = {
                line["value"]["path"]: base64.b64decode(line["value"]["content"])
                for line in lines
                if line["key"] == "file"
            }
            sha = self.server.commit(name, new, lines[0]["value"]["summary"])
            url = f"{self.server.address}/{name}/commit/{sha}"
            return self.send(200, {"commitUrl": url, "commitOid": sha})
        return self.send(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A Hub without models; whoever calls it is logged in and has an empty cache."""
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    template = server.address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("HF_TOKEN", "good")
    huggingface_hub.utils.disable_progress_bars()
    yield server
    huggingface_hub.close_session()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def cli(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["gumbeltree", *map(str, arguments)])
        capsys.readouterr()
        status = 0
        try:
            main()
        except SystemExit as end:
            status = end.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def model_files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def known_model(kind="pair"):
    model = tiny_model(kind)
    model.provenance = json.loads(json.dumps(PROVENANCE))
    return model


def assert_same(one, other):
    assert one.config == other.config
    assert one.provenance == other.provenance
    assert one.tokenizer.to_str() == other.tokenizer.to_str()
    assert one.state_dict().keys() == other.state_dict().keys()
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    assert np.array_equal(one.encode(TEXTS), other.encode(TEXTS))
    texts = PAIRS if one.config.head.kind == "pair" else TEXTS
    assert one.predict(texts) == other.predict(texts)


# folders


def test_a_pretrained_folder_is_a_saved_one_and_a_card(tmp_path):
    model = known_model()
    save(model, tmp_path / "saved")
    model.save_pretrained(tmp_path / "shared")
    files = model_files(tmp_path / "shared")
    assert files.pop("README.md").decode() == model_card(model)
    assert files == model_files(tmp_path / "saved")
    loaded = SentenceModel.from_pretrained(tmp_path / "shared")
    assert_same(loaded, model)
    assert not loaded.training


def test_saving_anew_replaces_a_generated_card_and_keeps_an_own_one(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    known_model("single").save_pretrained(tmp_path, license="mit")
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "license: mit" in card
    assert "`good`" in card
    (tmp_path / "README.md").write_text("# Mine", encoding="utf-8")
    tiny_model().save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "# Mine"


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}', encoding="utf-8")
    with pytest.raises(FileExistsError, match="is no model folder"):
        tiny_model().save_pretrained(tmp_path)
    assert model_files(tmp_path) == {"config.json": b'{"model_type": "bert"}'}


def test_provenance_survives_load_and_save(tmp_path):
    assert tiny_model().provenance == {}
    save(tiny_model(), tmp_path / "one", {"corpus": "none"})
    model = load(tmp_path / "one")
    assert model.provenance == {"corpus": "none"}
    save(model, tmp_path / "two")
    assert load(tmp_path / "two").provenance == {"corpus": "none"}
    save(model, tmp_path / "three", {})
    assert load(tmp_path / "three").provenance == {}


def test_two_models_do_not_share_their_provenance():
    tiny_model().provenance["seed"] = 1
    assert tiny_model().provenance == {}


def test_provenance_must_be_a_table(tmp_path):
    save(tiny_model(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    config["provenance"] = ["seed"]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match=r"config\.json: `provenance` must be a table"):
        load(tmp_path)


def test_the_folder_of_a_run_stands_for_its_model(tmp_path):
    save(known_model(), tmp_path / "run" / "model")
    (tmp_path / "run" / "log.txt").write_text("step 1", encoding="utf-8")
    assert_same(load(tmp_path / "run"), known_model())
    assert describe(str(tmp_path / "run"))["provenance"] == PROVENANCE
    # a model folder is itself, whatever lies in it
    save(tiny_model("single"), tmp_path / "outer")
    save(tiny_model("pair"), tmp_path / "outer" / "model")
    assert load(tmp_path / "outer").config.head.kind == "single"


def test_what_looks_like_a_name_on_the_hub_is_not_downloaded(tmp_path, monkeypatch, hub):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no model folder.*called hub:org/name"):
        load("org/name")
    with pytest.raises(ValueError, match=r"neither a recipe nor.*called hub:org/name"):
        describe("org/name")
    with pytest.raises(FileNotFoundError) as error:
        load(tmp_path / "nowhere")
    assert "hub:" not in str(error.value)
    assert hub.asked == []


# push and load


@pytest.mark.parametrize("kind", ["pair", "single"])
def test_a_pushed_model_comes_back(hub, kind, tmp_path):
    model = known_model(kind)
    url = model.push_to_hub("org/name", license="mit", language="en", message="First")
    assert url.startswith(f"{hub.address}/org/name/commit/")
    repo = hub.repos["org/name"]
    assert sorted(repo["commits"][-1][1]) == [".gitattributes", "README.md", *FILES]
    assert repo["messages"] == ["", "First"]
    assert not repo["private"]
    assert repo["commits"][-1][1]["README.md"].decode() == model_card(
        model, "org/name", "mit", "en"
    )
    loaded = SentenceModel.from_pretrained("org/name")
    assert_same(loaded, model)
    assert not loaded.training
    assert_same(load("hub:org/name"), model)
    save(load("hub:org/name"), tmp_path / "again")
    assert_same(load(tmp_path / "again"), model)


def test_a_private_model_needs_its_token(hub, monkeypatch):
    tiny_model().push_to_hub("org/secret", private=True)
    assert hub.repos["org/secret"]["private"]
    assert_same(load("hub:org/secret"), tiny_model())
    shutil.rmtree(constants.HF_HUB_CACHE)
    monkeypatch.setenv("HF_TOKEN", "bad")
    with pytest.raises(FileNotFoundError, match=r"no model org/secret.*hf auth login"):
        load("hub:org/secret")
    assert_same(SentenceModel.from_pretrained("org/secret", token="good"), tiny_model())


def test_a_private_model_is_not_pushed_to_a_public_place(hub):
    tiny_model().push_to_hub("org/name")
    commits = list(hub.repos["org/name"]["commits"])
    with pytest.raises(ValueError, match="org/name must be private, but it exists and is public"):
        tiny_model("single").push_to_hub("org/name", private=True)
    assert hub.repos["org/name"]["commits"] == commits


def test_revisions(hub, tmp_path, monkeypatch):
    tiny_model("pair").push_to_hub("org/name")
    first = hub.repos["org/name"]["commits"][-1][0]
    tiny_model("single").push_to_hub("org/name")
    assert load("hub:org/name").config.head.kind == "single"
    assert load(f"hub:org/name@{first}").config.head.kind == "pair"
    assert SentenceModel.from_pretrained("org/name", revision=first).config.head.kind == "pair"
    with pytest.raises(FileNotFoundError, match="org/name has no revision 'v9'"):
        load("hub:org/name@v9")
    for name, revision in (("hub:org/name@", None), ("org/name@v1", "v2")):
        with pytest.raises(ValueError, match="must name one revision"):
            fetch(name, revision)
    save(tiny_model(), tmp_path / "folder")
    with pytest.raises(ValueError, match="`revision` belongs to models on the Hub"):
        SentenceModel.from_pretrained(tmp_path / "folder", revision=first)
    # a folder of that name comes first; the prefix means the Hub
    monkeypatch.chdir(tmp_path)
    save(tiny_model("pair"), "org/name")
    assert SentenceModel.from_pretrained("org/name").config.head.kind == "pair"
    assert SentenceModel.from_pretrained("hub:org/name").config.head.kind == "single"


def test_what_was_downloaded_is_used_without_the_network(hub, tmp_path, monkeypatch):
    where = {"cache_dir": tmp_path / "elsewhere"}
    with pytest.raises(FileNotFoundError, match="org/name was not downloaded before"):
        SentenceModel.from_pretrained("org/name", local_files_only=True, **where)
    tiny_model().push_to_hub("org/name")
    SentenceModel.from_pretrained("org/name", **where)
    assert not (tmp_path / "cache").exists()
    hub.asked.clear()
    loaded = SentenceModel.from_pretrained("org/name", local_files_only=True, **where)
    assert_same(loaded, tiny_model())
    assert hub.asked == []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert_same(SentenceModel.from_pretrained("org/name", **where), tiny_model())
    with pytest.raises(ConnectionError, match="unset HF_HUB_OFFLINE"):
        load("hub:org/other")
    with pytest.raises(ConnectionError, match="unset HF_HUB_OFFLINE"):
        tiny_model().push_to_hub("org/name")
    assert hub.asked == []


# refusals


class Bomb:
    """Unpickling this creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_nothing_but_the_three_files_is_fetched_or_opened(hub, tmp_path):
    target = tmp_path / "went-off"
    bomb, line = pickle.dumps(Bomb(target)), f"open({str(target)!r}, 'w')".encode()
    evil = {
        **dict.fromkeys(("pytorch_model.bin", "model.pkl", "sub/model.safetensors"), bomb),
        **dict.fromkeys(("evil.py", "modeling.py", "__init__.py", "gumbeltree/__init__.py"), line),
        "README.md": b"---\nlibrary_name: evil\n---",
        "config.json.py": line,
    }
    save(tiny_model(), tmp_path / "model")
    hub.commit("org/evil", {**model_files(tmp_path / "model"), **evil})
    for name, content in evil.items():
        (tmp_path / "model" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "model" / name).write_bytes(content)
    # a hook cannot be taken off again; this one sees nothing but these names
    opened = []
    watched = {name.rpartition("/")[2] for name in evil} - {"model.safetensors", "__init__.py"}

    def watch(event, arguments):
        if event == "open" and str(arguments[0]).rpartition("/")[2] in watched:
            opened.append(arguments[0])

    sys.addaudithook(watch)
    assert_same(SentenceModel.from_pretrained("org/evil"), tiny_model())
    assert_same(load("hub:org/evil"), tiny_model())
    assert_same(SentenceModel.from_pretrained(tmp_path / "model"), tiny_model())
    assert hub.fetched() == set(FILES)
    assert sum("/sub/" in path for _, path in hub.asked) == 0
    folder = fetch("org/evil")
    assert sorted(path.name for path in folder.iterdir()) == FILES
    assert opened == []
    assert not target.exists()
    # bomb and watch are live
    (tmp_path / "model" / "evil.py").read_bytes()
    assert len(opened) == 1
    pickle.loads(bomb).close()
    assert target.exists()


def change_weights(folder, change):
    weights = {name: x.clone() for name, x in load_file(folder / "model.safetensors").items()}
    change(weights)
    save_file(weights, folder / "model.safetensors")


def cut(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda f: change_weights(f, lambda w: w.pop("encoder.query")), "query: .*found nothing"),
        (lambda f: change_weights(f, lambda w: w.update(x=torch.ones(2))), "x: expected nothing"),
        (cut, "damaged or cut short"),
        (lambda f: (f / "model.safetensors").write_bytes(pickle.dumps(1)), "damaged or cut short"),
        (lambda f: (f / "tokenizer.json").unlink(), r"is incomplete: it has no tokenizer\.json"),
        (lambda f: (f / "model.safetensors").unlink(), "is incomplete: it has no model"),
        (lambda f: (f / "config.json").write_text("{}"), "not a gumbeltree model"),
    ],
)
def test_damaged_models_are_refused_as_in_a_folder(hub, tmp_path, damage, expected):
    save(tiny_model(), tmp_path / "model")
    damage(tmp_path / "model")
    hub.commit("org/damaged", model_files(tmp_path / "model"))
    with pytest.raises((ValueError, OSError), match=expected) as in_folder:
        load(tmp_path / "model")
    with pytest.raises(in_folder.type, match=expected):
        SentenceModel.from_pretrained("org/damaged")


def test_another_librarys_model_is_refused(hub):
    hub.commit("org/other", {"pytorch_model.bin": b"x", "README.md": b"hello"})
    with pytest.raises(FileNotFoundError, match="org/other on the Hub is no gumbeltree model"):
        load("hub:org/other")


@pytest.mark.parametrize(
    "name",
    ["name", "", "a/b/c", "/name", "org/", "org/na me", "../name", "org/..", "org/a--b", "org/é",
     "org/a..b", "-org/name", "org/name-", "https://x.org/a", "org/name.git", "org/" + "a" * 93,
     "org/name\n"],
)  # fmt: skip
def test_names_that_the_hub_cannot_have_are_refused(hub, name):
    with pytest.raises(ValueError, match="expected a name on the Hub, ORG/NAME"):
        tiny_model().push_to_hub(name)
    with pytest.raises(ValueError, match="expected a name on the Hub, ORG/NAME"):
        load(f"hub:{name}")
    assert hub.asked == []


@pytest.mark.parametrize("name", ["org/name", "A1/b_c.d-e", "o/n", "org/" + "a" * 92])
def test_names_that_it_can_have_are_not(name):
    check_id(name)
    huggingface_hub.utils.validate_repo_id(name)


def test_pushing_without_rights_is_refused(hub, monkeypatch):
    with pytest.raises(PermissionError, match=r"refused strangers/name: .*rights.*hf auth login"):
        tiny_model().push_to_hub("strangers/name")
    with pytest.raises(PermissionError, match="refused org/name"):
        tiny_model().push_to_hub("org/name", token="bad")
    hub.asked.clear()
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(PermissionError, match=r"needs a token, got none; log in with `hf auth lo"):
        tiny_model().push_to_hub("org/name")
    assert hub.asked == []
    assert hub.repos == {}


def test_a_model_that_cannot_be_saved_leaves_no_empty_repository(hub):
    model = tiny_model()
    model.provenance = {"when": object()}
    with pytest.raises(TypeError, match="JSON"):
        model.push_to_hub("org/name", card="# Mine")
    assert hub.asked == []


def test_a_hub_in_trouble_is_one_line(hub, monkeypatch):
    hub.down = True
    for act in (lambda: load("hub:org/name"), lambda: tiny_model().push_to_hub("org/name")):
        with pytest.raises(ConnectionError, match=r"Hub .*org/name") as error:
            act()
        assert "\n" not in str(error.value)
    # nobody listens there
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ConnectionError, match="cannot be reached for org/name"):
        load("hub:org/name")
    with pytest.raises(ConnectionError, match="failed on org/name: ConnectError"):
        tiny_model().push_to_hub("org/name")


# the card


def test_the_card_tells_what_is_known():
    card = model_card(known_model(), "org/name", "cc-by-4.0", "en")
    data = ModelCard(card).data
    assert data.library_name == "gumbeltree"
    assert data.pipeline_tag == "text-classification"
    assert (data.license, data.language) == ("cc-by-4.0", "en")
    assert data.datasets == ["stanfordnlp/snli"]
    assert [(r.dataset_split, r.metric_value) for r in data.eval_results] == [
        ("validation", 0.8561),
        ("test", 0.851),
    ]
    for part in (
        "# org/name",
        'from_pretrained("org/name")',
        'predict([("a dog sleeps .", "an animal sleeps .")])',
        "| `2` | `contradiction` |",
        "| `total, word vectors excluded` | `1,025 parameters` |",
        "| `recipe.training.learning_rate` | `0.001` |",
        "| `seed` | `7` |",
        "| `dev_accuracy` | `85.61 %` |",
        "| `test_accuracy` | `85.10 %` |",
        "not measured again for this card",
        "Learning to Compose Task-Specific Tree Structures",
        "barked",
    ):
        assert part in card
    assert generated(card)


def test_the_card_makes_nothing_up():
    card = model_card(tiny_model("single"))
    data = ModelCard(card).data
    assert data.eval_results is data.license is data.language is data.datasets is None
    assert "No results recorded." in card
    assert "Nothing is recorded about the training" in card
    assert 'predict(["i love this very much ."])' in card
    assert "accuracy" not in card


@pytest.mark.parametrize(
    "provenance",
    [
        {"recipe": "text", "metrics": [1], "data": None, "recipe_name": 3},
        {"recipe": {"data": [], "training": 5}, "metrics": {"dev_accuracy": "high"}},
        {"metrics": {"dev_accuracy": float("nan"), "test_accuracy": 85.1, "epoch": True}},
        {"recipe": {"data": {"task": 5}}, "metrics": {"loss": float("inf")}},
    ],
)
def test_odd_provenance_gives_a_card_without_results(provenance):
    model = tiny_model()
    model.provenance = provenance
    card = model_card(model)
    assert ModelCard(card).data.eval_results is None
    assert "No results recorded." in card


def test_python_in_the_card_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for kind in ("pair", "single"):
        tiny_model(kind).save_pretrained("path/to/this/folder")
        (block,) = re.findall(r"```python\n(.*?)```", model_card(tiny_model(kind)), re.DOTALL)
        exec(block, {})


def test_a_baseline_claims_no_trees():
    config = tiny_config()
    encoder = encoder_settings(kind="bag")
    config = dataclasses.replace(config, encoder=encoder)
    card = model_card(SentenceModel(config, tiny_model().tokenizer))
    assert "encoder `bag`" in card
    assert "model.parse" not in card
    assert "## A tree" not in card


NASTY = [
    "---",
    "a\n---\nlicense: evil",
    "a: b",
    "- x",
    '"',
    "'",
    "{{ 7 * 7 }}",
    "<script>alert(1)</script>",
    "`<img src=x>`",
    "x | y",
    "\\|<img src=x>",
    "`\\|<img src=x onerror=y>`",
    "C:\\",
    "[a](javascript:b)",
    "](x)",
    "\u2028## Head",
    "\u202egnp.exe",
    "\r\n\r\n# Head",
    "```",
    "<!-- ",
    "&lt;b&gt;",
    "\ud800",
    "\x00",
    "é 漢字",
]


@pytest.mark.parametrize("text", NASTY)
def test_strings_of_the_user_are_only_text(text):
    shown = code(text)
    assert shown.isprintable()
    cell = shown.removeprefix("<code>").removesuffix("</code>")
    if cell != shown:
        # entities and words, which no reader of Markdown takes for structure
        assert all(part.isalnum() or not part for part in re.split(r"&#\d+;| ", cell))
    elif shown != "(empty)":
        # one code span, which holds nothing that ends it or the cell
        assert shown[0] == shown[-1] == "`"
        assert not set(shown[1:-1]) & set("`|\\")


def test_a_card_of_nasty_strings_keeps_its_shape():
    model = tiny_model()
    plain = model_card(model)
    nasty = "\n".join(NASTY)
    model.provenance = {
        "recipe_name": nasty,
        nasty: nasty,
        "recipe": {"data": {"task": nasty}, nasty: [nasty]},
        "metrics": {"dev_accuracy": 0.5, nasty: 1},
    }
    head = dataclasses.replace(model.config.head, labels=tuple(NASTY))
    other = SentenceModel(dataclasses.replace(model.config, head=head), model.tokenizer)
    other.provenance = model.provenance
    card = model_card(other)
    data = ModelCard(card).data
    assert data.license is None
    assert data.eval_results[0].dataset_name.startswith("--- a --- license: evil")
    assert len(data.eval_results) == 1
    card.encode()
    # the same headings, and every row has two cells
    body = card.split("\n---\n", 1)[1]
    heads = [line for line in body.splitlines() if line.startswith("#")]
    assert heads == [line for line in plain.splitlines() if line.startswith("#")]
    rows = [line for line in body.splitlines() if line.startswith("|")]
    assert len(rows) > len(NASTY)
    assert all(line.count("|") == 3 for line in rows if line != "|---|---|")
    assert not re.search(r"<(?!code>|/code>|!-- generated)", re.sub(r"`[^`\n]*`", "", body))


@pytest.mark.parametrize(
    "wrong", [{"license": "MIT License"}, {"license": "a\nb: c"}, {"language": "English"}]
)
def test_license_and_language_are_identifiers(wrong):
    with pytest.raises(ValueError, match=f"`{next(iter(wrong))}` must be an identifier such as"):
        model_card(tiny_model(), **wrong)


# the command


@pytest.fixture
def folder(tmp_path):
    save(known_model(), tmp_path / "run" / "model")
    return tmp_path / "run"


def test_push_command(hub, cli, folder):
    status, out, err = cli("push", folder, "org/name", "--private", "--message", "Hello")
    assert (status, err) == (0, "")
    assert out.startswith(f"{hub.address}/org/name/commit/")
    assert hub.repos["org/name"]["messages"][-1] == "Hello"
    assert hub.repos["org/name"]["private"]
    assert_same(load("hub:org/name"), known_model())
    status, out, _ = cli("parse", "hub:org/name", "the dog sleeps now")
    assert status == 0
    assert out == f"{known_model().parse('the dog sleeps now')}\n"
    assert cli("info", "hub:org/name", "--json")[0] == 0


def test_a_dry_run_asks_nobody_and_writes_nothing(hub, cli, folder, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    before = model_files(folder / "model")
    status, out, err = cli("push", folder, "org/name", "--license", "mit", "--dry-run")
    assert (status, err) == (0, "")
    assert model_card(known_model(), "org/name", "mit") in out
    size = len(before["model.safetensors"])
    assert f"model.safetensors, {size:,} bytes" in out
    assert "Would upload to org/name:" in out
    assert hub.asked == []
    assert model_files(folder / "model") == before


def test_a_card_of_your_own_is_pushed(hub, cli, folder):
    (folder / "model" / "README.md").write_text("# Mine é", encoding="utf-8")
    assert cli("push", folder, "org/name")[0] == 0
    assert hub.repos["org/name"]["commits"][-1][1]["README.md"].decode() == "# Mine é"
    status, _, err = cli("push", folder, "org/name", "--license", "mit")
    assert status == 1
    assert "README.md is your own card: write license and language into it" in err


@pytest.mark.parametrize(
    ("name", "token", "message"),
    [
        ("name", "good", "expected a name on the Hub, ORG/NAME"),
        ("strangers/name", "good", "the Hub refused strangers/name"),
        ("org/name", "", "pushing to org/name needs a token, got none"),
    ],
)
def test_errors_of_the_command_are_one_line(hub, cli, folder, monkeypatch, name, token, message):
    monkeypatch.setenv("HF_TOKEN", token)
    status, out, err = cli("push", folder, name)
    assert (status, out) == (1, "")
    assert err.startswith(f"gumbeltree: error: {message}")
    assert err.count("\n") == 1


def test_models_do_not_wait_for_huggingface_hub():
    script = (
        "import sys, gumbeltree.cli, gumbeltree.store\n"
        "from gumbeltree import ModelConfig, SentenceModel\n"
        "from gumbeltree.text.tokenizer import whitespace_tokenizer\n"
        "SentenceModel(ModelConfig(), whitespace_tokenizer(['a']))\n"
        "assert 'huggingface_hub' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)
