"""Sharing models on a local imitation of the Hugging Face Hub; no test needs a network."""

import base64
import dataclasses
import hashlib
import json
import math
import pickle
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import huggingface_hub
import pytest
from huggingface_hub import ModelCard, constants

from gumbeltree import SentenceModel, load, save
from gumbeltree.card import generated, model_card
from gumbeltree.describe import describe
from gumbeltree.hub import fetch
from tests.models import encoder_settings, tiny_config, tiny_model
from tests.test_store import FILES, assert_same

PROVENANCE = {
    "recipe_name": "snli-300d",
    "recipe": {"data": {"task": "snli", "lower": True}, "training": {"learning_rate": 0.001}},
    "seed": 7,
    "metrics": {"dev_accuracy": 0.8561, "test_accuracy": 0.851, "step": 1200},
}


class Hub(ThreadingHTTPServer):
    """The part of the Hub that pushing and loading need; every commit holds all files."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.repos = {}
        self.requests = []
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
        """Names of the files whose content or headers were requested."""
        return {path.rpartition("/")[2] for _, path in self.requests if "/resolve/" in path}


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
        self.server.requests.append((self.command, path))
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

    def create(self, spec):
        name = f"{spec['organization']}/{spec['name']}"
        if not self.allowed:
            return self.send(401, {"error": "Invalid username or password."})
        if spec["organization"] == "strangers":
            return self.send(403, {"error": "You don't have the rights to create a model here"})
        known = name in self.server.repos
        private = spec.get("private") or spec.get("visibility") == "private"
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
            paths = [file["path"] for file in json.loads(self.body)["files"]]
            modes = [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in paths]
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
    """A Hub without models, for a user who is logged in and has an empty cache."""
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    template = server.address + "/{repo_id}/resolve/{revision}/{filename}"
    for name, value in {
        "ENDPOINT": server.address,
        "HUGGINGFACE_CO_URL_TEMPLATE": template,
        "HF_HUB_CACHE": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": False,
        "HF_TOKEN_PATH": str(tmp_path / "token"),
    }.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setenv("HF_TOKEN", "good")
    huggingface_hub.utils.disable_progress_bars()
    yield server
    huggingface_hub.close_session()
    server.shutdown()
    server.server_close()
    thread.join()


def model_files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def trained_model(kind="pair"):
    model = tiny_model(kind)
    model.provenance = json.loads(json.dumps(PROVENANCE))
    return model


# folders


def test_save_pretrained_adds_a_card(tmp_path):
    model = trained_model()
    save(model, tmp_path / "saved")
    model.save_pretrained(tmp_path / "shared")
    files = model_files(tmp_path / "shared")
    assert files.pop("README.md").decode() == model_card(model)
    assert files == model_files(tmp_path / "saved")
    loaded = SentenceModel.from_pretrained(tmp_path / "shared")
    assert_same(loaded, model)


def test_saving_replaces_a_generated_card_but_keeps_your_own(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    trained_model("single").save_pretrained(tmp_path, license="mit")
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "license: mit" in card
    assert "`good`" in card
    (tmp_path / "README.md").write_text("# Mine", encoding="utf-8")
    tiny_model().save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "# Mine"


def test_provenance_survives_load_and_save(tmp_path):
    save(tiny_model(), tmp_path / "one", {"corpus": "none"})
    model = load(tmp_path / "one")
    assert model.provenance == {"corpus": "none"}
    save(model, tmp_path / "two")
    assert load(tmp_path / "two").provenance == {"corpus": "none"}


def test_run_folder_stands_for_its_model(tmp_path):
    save(trained_model(), tmp_path / "run" / "model")
    assert_same(load(tmp_path / "run"), trained_model())
    assert describe(str(tmp_path / "run"))["provenance"] == PROVENANCE


def test_names_without_prefix_are_not_downloaded(tmp_path, monkeypatch, hub):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"hub:org/name"):
        load("org/name")
    with pytest.raises(ValueError, match=r"hub:org/name"):
        describe("org/name")
    assert hub.requests == []


# pushing and loading


def test_loads_a_pushed_model(hub):
    model = trained_model()
    url = model.push_to_hub("org/name", license="mit", language="en", message="First")
    assert url.startswith(f"{hub.address}/org/name/commit/")
    repo = hub.repos["org/name"]
    files = repo["commits"][-1][1]
    assert sorted(files) == sorted([".gitattributes", "README.md", *FILES])
    assert repo["messages"] == ["", "First"]
    assert not repo["private"]
    assert files["README.md"].decode() == model_card(model, "org/name", "mit", "en")
    loaded = SentenceModel.from_pretrained("org/name")
    assert_same(loaded, model)
    assert loaded.provenance == PROVENANCE


def test_private_model_needs_a_token(hub, monkeypatch):
    tiny_model().push_to_hub("org/secret", private=True)
    assert hub.repos["org/secret"]["private"]
    assert_same(load("hub:org/secret"), tiny_model())
    shutil.rmtree(constants.HF_HUB_CACHE)
    monkeypatch.setenv("HF_TOKEN", "bad")
    with pytest.raises(FileNotFoundError, match=r"org/secret.*hf auth login"):
        load("hub:org/secret")
    assert_same(SentenceModel.from_pretrained("org/secret", token="good"), tiny_model())


def test_private_push_rejects_a_public_repository(hub):
    tiny_model().push_to_hub("org/name")
    commits = list(hub.repos["org/name"]["commits"])
    with pytest.raises(ValueError, match=r"org/name: .*public"):
        tiny_model("single").push_to_hub("org/name", private=True)
    assert hub.repos["org/name"]["commits"] == commits


def test_revisions(hub, tmp_path, monkeypatch):
    tiny_model("pair").push_to_hub("org/name")
    first = hub.repos["org/name"]["commits"][-1][0]
    tiny_model("single").push_to_hub("org/name")
    assert load("hub:org/name").config.head.kind == "single"
    assert load(f"hub:org/name@{first}").config.head.kind == "pair"
    assert SentenceModel.from_pretrained("org/name", revision=first).config.head.kind == "pair"
    with pytest.raises(FileNotFoundError, match="v9"):
        load("hub:org/name@v9")
    with pytest.raises(ValueError, match="one revision"):
        fetch("org/name@v1", "v2")
    # a folder of that name takes precedence; the prefix means the Hub
    monkeypatch.chdir(tmp_path)
    save(tiny_model("pair"), "org/name")
    assert SentenceModel.from_pretrained("org/name").config.head.kind == "pair"
    assert SentenceModel.from_pretrained("hub:org/name").config.head.kind == "single"
    with pytest.raises(ValueError, match="`revision`"):
        SentenceModel.from_pretrained("org/name", revision=first)


def test_cached_model_needs_no_network(hub, tmp_path, monkeypatch):
    where = {"cache_dir": tmp_path / "elsewhere"}
    with pytest.raises(ConnectionError, match="local_files_only"):
        SentenceModel.from_pretrained("org/name", local_files_only=True, **where)
    tiny_model().push_to_hub("org/name")
    SentenceModel.from_pretrained("org/name", **where)
    assert not (tmp_path / "cache").exists()
    hub.requests.clear()
    loaded = SentenceModel.from_pretrained("org/name", local_files_only=True, **where)
    assert_same(loaded, tiny_model())
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert_same(SentenceModel.from_pretrained("org/name", **where), tiny_model())
    for act in (lambda: load("hub:org/other"), lambda: tiny_model().push_to_hub("org/name")):
        with pytest.raises(ConnectionError, match="HF_HUB_OFFLINE"):
            act()
    assert hub.requests == []


# errors


def test_downloads_only_the_three_files(hub, tmp_path):
    save(tiny_model(), tmp_path)
    evil = ("pytorch_model.bin", "evil.py", "sub/model.safetensors", "config.json.py", "README.md")
    hub.commit("org/evil", {**model_files(tmp_path), **dict.fromkeys(evil, b"evil")})
    assert_same(load("hub:org/evil"), tiny_model())
    assert hub.fetched() == set(FILES)
    assert not any("/sub/" in path for _, path in hub.requests)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("model.safetensors", pickle.dumps(1), "model.safetensors is damaged"),
        ("config.json", None, "not a gumbeltree model"),
    ],
)
def test_rejects_damaged_models(hub, tmp_path, name, content, expected):
    save(tiny_model(), tmp_path / "model")
    files = model_files(tmp_path / "model") | {name: content}
    hub.commit("org/damaged", {name: x for name, x in files.items() if x is not None})
    with pytest.raises((ValueError, OSError), match=expected):
        load("hub:org/damaged")


@pytest.mark.parametrize("name", ["name", "", "a/b/c", "org/", "org/na me", "../name", "org/name."])
def test_rejects_invalid_names(hub, name):
    for act in (lambda: tiny_model().push_to_hub(name), lambda: load(f"hub:{name}")):
        with pytest.raises(ValueError, match=re.escape(repr(name))):
            act()
    assert hub.requests == []


def test_push_needs_a_token_with_write_access(hub, monkeypatch):
    with pytest.raises(PermissionError, match=r"strangers/name: .*rights.*hf auth login"):
        tiny_model().push_to_hub("strangers/name")
    with pytest.raises(PermissionError, match="org/name"):
        tiny_model().push_to_hub("org/name", token="bad")
    hub.requests.clear()
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(PermissionError, match=r"org/name needs a token.*hf auth login"):
        tiny_model().push_to_hub("org/name")
    assert hub.requests == []
    assert hub.repos == {}


def test_server_errors_are_one_line(hub, monkeypatch):
    def fails():
        for act in (lambda: load("hub:org/name"), lambda: tiny_model().push_to_hub("org/name")):
            with pytest.raises(ConnectionError, match="org/name") as error:
                act()
            assert "\n" not in str(error.value)

    hub.down = True
    fails()
    # nothing listens there
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    fails()


# the card


def test_card_states_what_is_recorded():
    card = model_card(trained_model(), "org/name", "cc-by-4.0", "en")
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
        "- `contradiction`",
        '"learning_rate": 0.001',
        '"seed": 7',
        "dev accuracy: 85.61%",
        "not measured again",
        "Learning to Compose Task-Specific Tree Structures",
    ):
        assert part in card
    assert generated(card)


def test_card_invents_nothing():
    card = model_card(tiny_model("single"))
    data = ModelCard(card).data
    assert data.eval_results is data.license is data.language is data.datasets is None
    assert "No results recorded" in card
    assert "No training settings recorded" in card
    assert "accuracy" not in card


@pytest.mark.parametrize(
    "provenance",
    [
        {"recipe": "text", "metrics": [1], "data": None, "recipe_name": 3},
        {"recipe": {"data": []}, "metrics": {"dev_accuracy": "high", "test_accuracy": math.nan}},
        {"license": "a\nb: c", "language": ["en"], "sources": "x", "shipped": 3},
        {"license": 3, "language": {"a": 1}, "sources": [3, {}], "shipped": ["x"]},
    ],
)
def test_card_ignores_malformed_provenance(provenance):
    model = tiny_model()
    model.provenance = provenance
    card = model_card(model)
    data = ModelCard(card).data
    assert data.eval_results is data.license is data.language is None
    assert "No results recorded" in card


@pytest.mark.parametrize("kind", ["pair", "single"])
def test_card_example_runs(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    tiny_model(kind).save_pretrained("path/to/this/folder")
    (block,) = re.findall(r"```python\n(.*?)```", model_card(tiny_model(kind)), re.DOTALL)
    exec(block, {})


def test_card_of_a_baseline_claims_no_trees():
    config = dataclasses.replace(tiny_config(), encoder=encoder_settings(kind="bag"))
    card = model_card(SentenceModel(config, tiny_model().tokenizer))
    assert "`bag`" in card
    assert "model.parse" not in card
    assert "latent-trees" not in card


NASTY = [
    "---",
    "a\n---\nlicense: evil",
    "a: b",
    "- x",
    "\"'",
    "{{ 7 * 7 }}",
    "<script>alert(1)</script>",
    "`<img src=x>`",
    "C:\\",
    "[a](javascript:b)",
    "\u2028## Head",
    "\u202egnp.exe",
    "\r\n\r\n# Head",
    "```",
    "\n```\n# Head",
    "<!-- ",
    "&lt;b&gt;",
    "\ud800",
    "\x00",
    "é 漢字",
]


def test_untrusted_strings_cannot_change_the_card():
    model = tiny_model()
    plain = model_card(model)
    nasty = "\n".join(NASTY)
    model.provenance = {
        "recipe_name": nasty,
        nasty: nasty,
        "recipe": {"data": {"task": nasty}, nasty: [nasty, *NASTY]},
        "metrics": {"dev_accuracy": 0.5, nasty: 1},
        "sources": [{"name": nasty, "licence": nasty, "page": nasty}],
    }
    head = dataclasses.replace(model.config.head, labels=tuple(NASTY))
    other = SentenceModel(dataclasses.replace(model.config, head=head), model.tokenizer)
    other.provenance = model.provenance
    card = model_card(other)
    assert card.replace("\n", "").isprintable()
    data = ModelCard(card).data
    assert data.license is None
    assert len(data.eval_results) == 1
    assert data.eval_results[0].dataset_name.startswith("--- a --- license: evil")
    body = card.split("\n---\n", 1)[1]
    # the JSON block is closed only by its own fence
    (block,) = re.findall(r"^```json\n(.*?)^```$", body, re.DOTALL | re.MULTILINE)
    assert json.loads(block)[nasty] == nasty
    body = body.replace(block, "")
    headings = [line for line in body.splitlines() if line.startswith("#")]
    expected = [line for line in plain.splitlines() if line.startswith("#")]
    assert [line for line in headings if "licences" not in line] == expected
    assert not re.search(r"<(?!!-- generated)", re.sub(r"`[^`\n]*`", "", body))


@pytest.mark.parametrize("wrong", [{"license": "MIT License"}, {"language": "English"}])
def test_rejects_malformed_license_and_language(wrong):
    ((key, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"`{key}` .*{re.escape(repr(value))}"):
        model_card(tiny_model(), **wrong)


# the command


@pytest.fixture
def folder(tmp_path):
    save(trained_model(), tmp_path / "run" / "model")
    return tmp_path / "run"


def test_push_command(hub, cli, folder):
    code, out, err = cli("push", folder, "org/name", "--private", "--message", "Hello")
    assert (code, err) == (0, "")
    assert out.startswith(f"{hub.address}/org/name/commit/")
    assert hub.repos["org/name"]["messages"][-1] == "Hello"
    assert hub.repos["org/name"]["private"]
    tree = trained_model().parse("the dog sleeps now")
    assert cli("parse", "hub:org/name", "the dog sleeps now").out == f"{tree}\n"


def test_dry_run_uploads_and_writes_nothing(hub, cli, folder, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    before = model_files(folder / "model")
    code, out, err = cli("push", folder, "org/name", "--license", "mit", "--dry-run")
    assert (code, err) == (0, "")
    assert model_card(trained_model(), "org/name", "mit") in out
    assert f"model.safetensors, {len(before['model.safetensors']):,} bytes" in out
    assert hub.requests == []
    assert model_files(folder / "model") == before


def test_push_uploads_your_own_card(hub, cli, folder):
    (folder / "model" / "README.md").write_text("# Mine é", encoding="utf-8")
    assert cli("push", folder, "org/name").code == 0
    assert hub.repos["org/name"]["commits"][-1][1]["README.md"].decode() == "# Mine é"
    message = cli("push", folder, "org/name", "--license", "mit").refused()
    assert "README.md is your own card" in message


def test_models_do_not_import_huggingface_hub():
    script = (
        "import sys, gumbeltree.cli, gumbeltree.store\n"
        "from gumbeltree import ModelConfig, SentenceModel\n"
        "from gumbeltree.text.tokenizer import whitespace_tokenizer\n"
        "SentenceModel(ModelConfig(), whitespace_tokenizer(['a']))\n"
        "assert 'huggingface_hub' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


@pytest.mark.parametrize("settings", [{"trees": "gold"}, {"encoder": "spinn"}])
def test_card_of_a_model_that_follows_given_trees_offers_only_evaluation(settings):
    card = model_card(tiny_model("single", **settings))
    assert "gumbeltree evaluate" in card
    assert "model.predict" not in card
    assert "model.parse" not in card
