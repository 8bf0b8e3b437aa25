"""The site: it builds, it asks no other host, and what its pages tell to type works."""

import importlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import tomllib
from functools import cache, partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
import typer
from typer.testing import CliRunner

from gumbeltree import EncoderConfig, GumbelTreeEncoder, plugins
from gumbeltree.cli import app
from gumbeltree.config import EncoderSettings, load_recipe, with_settings
from gumbeltree.ops.merge import exact
from gumbeltree.parts import CELLS, ENCODERS, ESTIMATORS
from gumbeltree.tasks import TASKS
from gumbeltree.tasks.demo import generate
from tests import test_parts
from tests.nn import test_cells, test_estimators

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

SNLI = "needs SNLI and GloVe, and trains for hours"
FILES = "needs published files"
SST = "needs SST and GloVe, and trains for long"
NETWORK = "needs a download"
HUB = "needs an account or a model on the Hub"
PLUGIN = "run with the files of the page on parts"
ONLY_PARSED = {
    "train snli-": SNLI,
    "train embed": SNLI,
    "predict runs/embed": SNLI,
    "encode runs/embed": SNLI,
    "evaluate runs/embed": SNLI,
    "train sst2": SST,
    "train sst5": SST,
    "train sick-relatedness": "needs SICK and GloVe, and trains for long",
    "data prepare snli-300d": SNLI,
    "data prepare sst2-100d": SST,
    "data make listops --test": FILES,
    "data make logic": FILES,
    "train listops-policy": "trains for long",
    "evaluate runs/listops": "trains for long",
    "trees runs/listops": "trains for long",
    "train logic-policy": FILES,
    "evaluate runs/logic": FILES,
    "data get snli": NETWORK,
    "data get sst": NETWORK,
    "data get glove.6B": NETWORK,
    "data get glove.840B": NETWORK,
    "encode runs/snli-300d --device cuda": "needs a CUDA device",
    "encode sst2-100d --input sentences.txt --out vectors --engine ray": (
        "starts Ray; tests/test_ray_engine.py runs such commands"
    ),
    "bench --device cpu": "takes minutes",
    "bench --device cuda": "needs a CUDA device",
    "push runs/sst2 ORG/NAME --license mit --language en": HUB,
    "parse hub:": HUB,
    "info hub:": HUB,
    "import-reference CHECKPOINT": "needs a checkpoint of the authors",
    "parse FOLDER": "needs a checkpoint of the authors",
    "train demo --out runs/demo --logger": "needs an experiment tracker",
    "train demo --out runs/logged --logger": "needs an experiment tracker",
    "train text --plugin": PLUGIN,
    "predict runs/text --plugin": PLUGIN,
}
"""Beginnings of commands that the parser reads and nobody runs, with the reason; the longest
beginning counts."""

RUN_ANYWAY = {"push runs/sst2 ORG/NAME --license mit --language en --dry-run"}
"""Commands that begin as one of those and can be run."""

OTHER_COMMANDS = {
    "conda",
    "cp",
    "curl",
    "docker",
    "du",
    "export",
    "git",
    "head",
    "hf",
    "iconv",
    "make",
    "mkdir",
    "pip",
    "pipx",
    "ray",
    "source",
    "tensorboard",
    "uv",
}
"""Programs that pages call and this test does not."""


# --- what the pages hold ---


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    language: str
    text: str


class Command(NamedTuple):
    """A call of `gumbeltree` on a page: its arguments."""

    page: str
    line: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.line, comments=True)


def blocks() -> list[Block]:
    """Return the fenced blocks of all pages."""
    pattern = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [
        Block(page.relative_to(ROOT).as_posix(), *found)
        for page in PAGES
        for found in pattern.findall(page.read_text(encoding="utf-8"))
    ]


def lines(block: Block) -> list[str]:
    """Return the command lines of a block of shell, continued lines joined."""
    joined = block.text.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip(" #") and line[0] != "#"]


def commands() -> list[Command]:
    """Return the calls of `gumbeltree` in all blocks of shell, and in blocks of no language."""
    found = []
    for block in blocks():
        if block.language in ("sh", ""):
            for line in lines(block):
                # by itself, in $(...), behind an assignment, or behind torchrun
                call = re.search(r"\$\(gumbeltree ([^)]*)|(?:^|\s)gumbeltree (.*)", line)
                if call and not line.startswith("pip "):
                    found.append(Command(block.page, (call[1] or call[2]).strip()))
    return found


def beginning(command: Command) -> str | None:
    """Return the entry of `ONLY_PARSED` for a command, or None if it is to be run."""
    line = " ".join(command.words)
    if line in RUN_ANYWAY:
        return None
    found = [begin for begin in ONLY_PARSED if line.startswith(begin)]
    return max(found, key=len, default=None)


RUN = sorted({c.page for c in commands() if beginning(c) is None})


# --- the parser alone ---


@cache
def commands_of_the_app() -> Any:
    """Return the group of all commands, which takes a while to make."""
    return typer.main.get_command(app)


def command_of(words: list[str]) -> Any:
    """Return the command that the words call."""
    command = commands_of_the_app()
    for word in words:
        if not hasattr(command, "commands"):
            break
        if word not in command.commands:
            pytest.fail(f"gumbeltree has no command {word!r}: {' '.join(words)}")
        command = command.commands[word]
    return command


def parsed(words: list[str]) -> dict[str, Any]:
    """Return what the command line's own parser makes of the words; raise if it refuses them."""
    group = command = commands_of_the_app()
    for word in words:
        if not hasattr(command, "commands"):
            break
        command = command.commands[word]
    given: dict[str, Any] = {}
    with mock.patch.object(command, "callback", lambda **values: given.update(values)):
        group.main(args=words, prog_name="gumbeltree", standalone_mode=False)
    return given


@pytest.mark.parametrize("command", sorted({c.line for c in commands()}))
def test_the_parser_takes_every_command(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "load_plugin", lambda name: None)
    words = Command("", command).words
    command_of(words)
    given = parsed(words)
    assert given, "the parser called nothing"
    if (words[0] == "train" or words[:2] == ["data", "prepare"]) and not given["plugin"]:
        with_settings(load_recipe(given["recipe"]), given["settings"] or [])


def test_commands_in_the_text_name_options_that_exist() -> None:
    checked = 0
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
        for call in re.findall(r"`gumbeltree ([^`]+)`", text):
            words = shlex.split(call)
            if words[0].startswith("-"):
                continue
            command = command_of(words)
            known = {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
            known |= {"-h", "--help"}
            used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
            assert used <= known, f"{page.name}: {call}"
            checked += 1
    assert checked > 20


def test_no_block_is_of_a_kind_that_nothing_runs() -> None:
    # `python` is run by test_docs.py, `py` and `sh` here; the others hold no code of ours
    assert {block.language for block in blocks()} <= {"python", "py", "sh", "", "text", "nginx"}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for block in blocks():
        if block.language != "sh":
            continue
        for line in lines(block):
            words = [word for word in shlex.split(line, comments=True) if "=" not in word]
            if words[0] in ("pip", "pipx", "uv"):
                for extra in re.findall(r"\[(.*?)\]", line):
                    wanted = set(extra.split(","))
                    assert wanted <= set(extras["optional-dependencies"]), line
            elif "gumbeltree" in line or words[:2] == ["python", "-m"]:
                continue
            elif words[0] == "python":
                script = ROOT / words[1]
                source = script.read_text(encoding="utf-8")
                for option in (word for word in words if word.startswith("--")):
                    assert f'"{option}"' in source, f"{block.page}: {line}"
            else:
                assert words[0] in OTHER_COMMANDS, f"{block.page}: {line}"


# --- the commands at work ---


def call(arguments: list[str]) -> Any:
    """Call the command line in this process; it must end well."""
    result = CliRunner().invoke(app, arguments)
    if result.exit_code:
        raise AssertionError(f"{shlex.join(arguments)}\n{result.output}") from result.exception
    return result


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the pages' commands name: tables, sentences, trees, a run."""
    folder = tmp_path_factory.mktemp("made")
    examples = generate(80, 1)
    rows = [(e.texts[0], "good" if e.label == "positive" else "bad") for e in examples]
    texts = [text for text, _ in rows]
    for name in ("reviews.csv", "more.csv"):
        table = ["review,stars", *(f'"{text}",{label}' for text, label in rows)]
        (folder / name).write_text("\n".join(table), encoding="utf-8")
    plain = [f'{label},"{text}"' for text, label in rows]
    (folder / "plain.csv").write_text("\n".join(plain), encoding="utf-8")
    pairs = [f"who wrote it ?\t{text}\t{label}" for text, label in rows]
    (folder / "pairs.tsv").write_text("\n".join(["question\tanswer\tfits", *pairs]))
    for name, header, values in (
        ("scores.csv", "review,score", ("4.5", "1.25", "3")),
        ("topics.csv", "review,topics", ("cast|music", "", "plot")),
        ("mails.csv", "body,kind", ("spam", "mail", "mail")),
    ):
        lines = [f'"{text}",{values[i % 3]}' for i, text in enumerate(texts)]
        (folder / name).write_text("\n".join([header, *lines]), encoding="utf-8")
    similar = [f"{text}\t{texts[i // 2]}\t{1 + i % 5}" for i, text in enumerate(texts)]
    (folder / "similar.tsv").write_text("\n".join(["first\tsecond\tsimilarity", *similar]))
    for name in ("sentences.txt", "queries.txt", "reviews.txt"):
        (folder / name).write_text("\n".join(texts[:20]) + "\n", encoding="utf-8")

    gold = "( ( the cast ) ( is ( so good ) ) )"
    (folder / "mine.txt").write_text(f"{gold}\n( ( a ( dull film ) ) . )\n")
    labelled = "(3 (2 (2 the) (2 cast)) (3 (2 is) (4 (2 so) (3 good))))"
    for name in ("train", "dev", "test"):
        path = folder / "trees" / f"{name}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{labelled}\n{labelled.replace('(3 ', '(1 ', 1)}\n")
    pair: dict[str, str] = {"gold_label": "neutral"}
    for number in "12":
        pair |= {
            f"sentence{number}": "the cast is so good",
            f"sentence{number}_binary_parse": gold,
            f"sentence{number}_parse": "(ROOT (S (NP (DT the) (NN cast)) (VP (VBZ is) (ADJP "
            "(RB so) (JJ good)))))",
        }
    (folder / "snli_1.0").mkdir()
    (folder / "snli_1.0" / "snli_1.0_dev.jsonl").write_text(json.dumps(pair) + "\n")

    run = folder / "runs" / "reviews"
    train = ["train", "text", "--data", str(folder / "reviews.csv"), "--text", "review"]
    call([*train, "--label", "stars", "--out", str(run), "--quiet", *small()])
    for name in ("mine", "small", "large", "snli-100d", "snli-300d", "sst2"):
        shutil.copytree(run, run.parent / name)
    for seed in ("seed-0", "seed-1"):
        (run.parent / "mine" / seed).mkdir()
        shutil.copy(run / "dev_orders.npz", run.parent / "mine" / seed)
    return folder


def small() -> list[str]:
    """Return settings that make a training short."""
    sizes = ("epochs=1", "embedding_dim=8", "encoder.hidden_dim=8", "head.hidden_dim=8")
    sizes += ("generate=300",)
    return [word for size in sizes for word in ("--set", size)]


@pytest.mark.parametrize("page", RUN)
def test_commands_of_a_page_run(
    page: str, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="pictures need gumbeltree[plots]")
    pytest.importorskip("fastapi", reason="the server needs gumbeltree[web]")
    from gumbeltree.web import processes, server

    folder = tmp_path / "here"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("GUMBELTREE_TOKEN", "a-token-of-sufficient-length")
    served = []
    # servers come up to the point where they would wait for requests, at any free port
    monkeypatch.setattr(server, "listen", lambda host, port: socket.create_server(("127.0.0.1", 0)))
    monkeypatch.setattr(processes, "supervise", lambda plan, *_: served.append(plan))
    for command in commands():
        if command.page != page or beginning(command) is not None:
            continue
        words = command.words
        if words[0] == "train":
            given = parsed(words)
            shutil.rmtree(given["out"] or Path("runs", given["recipe"]), ignore_errors=True)
            words += ["--set", "epochs=1", "--quiet"] if given["init"] else [*small(), "--quiet"]
        before = len(served)
        result = call(words)
        if words[0] in ("serve", "explore"):
            assert len(served) == before + 1, command.line
        given = parsed(words)
        written = given.get("out") or given.get("film") or given.get("plot")
        if written is not None:
            assert Path(written).exists(), command.line
        else:
            assert result.output.strip() or words[0] in ("serve", "explore", "train"), command.line


def test_answers_shown_on_the_first_page_are_the_models() -> None:
    shown = [block.text for block in blocks() if block.page == "docs/index.md"]
    for command in commands():
        if command.page == "docs/index.md" and command.words[0] in ("parse", "predict"):
            if "runs/" in command.line:
                continue
            answer = call(command.words).stdout
            for line in answer.rstrip().splitlines():
                assert any(line.rstrip() in text for text in shown), line


# --- the page on parts ---


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of docs/extend.md in a folder that Python finds, and tables that are put back."""
    for block in blocks():
        if block.language == "py":
            name = re.match(r"# (\w+\.py)\n", block.text)
            assert name is not None, f"{block.page}: the first line names the file"
            (tmp_path / name[1]).write_text(block.text, encoding="utf-8")
            monkeypatch.delitem(sys.modules, name[1].removesuffix(".py"), raising=False)
    questions = ("NUM:date When did it end ?", "HUM:ind Who wrote it ?", "LOC:city Where is it ?")
    (tmp_path / "trec").mkdir()
    (tmp_path / "trec" / "train_5500.label").write_text("\n".join(questions * 20))
    (tmp_path / "trec" / "TREC_10.label").write_text("\n".join(questions))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    registries = (CELLS, ESTIMATORS, TASKS, ENCODERS)
    for table in registries:
        for name in ("table", "settings", "light"):
            monkeypatch.setattr(table, name, dict(getattr(table, name)))
    monkeypatch.setattr(plugins, "_tables", [(table.kind, table.table) for table in registries])
    monkeypatch.setattr(plugins, "_sources", {})
    return tmp_path


def test_the_program_of_the_page_on_parts_runs(
    parts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = (parts / "train_mine.py").read_text(encoding="utf-8")
    exec(compile(program, "train_mine.py", "exec"), {"__name__": "__main__"})
    assert "exact" in capsys.readouterr().out
    for run in ("plain", "max"):
        result = json.loads((parts / "runs" / run / "result.json").read_text("utf-8"))
        assert 0 <= result["test_accuracy"] <= 1


def test_the_commands_of_the_page_on_parts_run(parts: Path) -> None:
    found = [c for c in commands() if c.page == "docs/extend.md"]
    assert [beginning(c) for c in found] == ["train text --plugin", "predict runs/text --plugin"]
    for command in found:
        small_run = [*small(), "--quiet"] if command.words[0] == "train" else []
        assert call([*command.words, *small_run]).output
    config = json.loads((parts / "runs/text/model/config.json").read_text("utf-8"))
    assert config["plugins"] == [{"module": "my_parts"}]


def test_the_parts_of_the_page_do_what_it_says(parts: Path) -> None:
    CELLS.table["plain"] = "plain_cell:PlainCell"
    ESTIMATORS.table["warm"] = "warm_estimator:WarmStraightThrough"
    ENCODERS.table["max"] = "max_encoder:MaxEncoder"
    # what runs over the tables takes them up
    for test in (
        test_cells.test_gradients_by_finite_differences,
        test_cells.test_activate_and_its_backward_pass_equal_the_cell,
        test_cells.test_encoder_trains_with_every_cell,
    ):
        test("plain")
    for test in (
        test_estimators.test_weights,
        test_estimators.test_gradient_equals_that_of_the_weights,
        test_estimators.test_encoder_trains_with_every_estimator,
        test_estimators.test_exact_equals_reference,
    ):
        test("warm")
    # cell and estimator: the linear algorithm gives the gradients of the paper's equations
    words, lengths = torch.randn(3, 9, 5).double(), torch.tensor([9, 4, 1])
    noise = torch.randn(3, 8, 8).double()
    found = []
    for impl in ("exact", "reference"):
        torch.manual_seed(0)
        config = EncoderConfig(5, 6, cell="plain", estimator="warm", impl=impl, temperature=0.7)
        encoder = GumbelTreeEncoder(config).double()
        torch.nn.init.normal_(encoder.query)
        vector, order = encoder(words, lengths, noise=noise)
        (vector * torch.linspace(-1, 1, 6)).sum().backward()
        found.append([vector, order, *(p.grad for p in encoder.parameters())])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    assert exact.unsupported(encoder.cell, encoder.estimator, sample=True) is None
    for test in (
        test_parts.test_it_is_evaluated_and_parts_add_up,
        test_parts.test_it_learns,
    ):
        test("max", "single")
    # encoder: what stands beyond the lengths has no effect
    pooled = ENCODERS["max"](EncoderSettings(5, 6, kind="max")).double()
    padded = words.clone()
    padded[1, 4:] = 1e6
    assert torch.equal(pooled(words, lengths).vector, pooled(padded, lengths).vector)
    assert pooled(words, lengths).order is None
    # its NumPy version
    importlib.import_module("my_parts")
    weights = {name: x.numpy() for name, x in pooled.state_dict().items()}
    light = ENCODERS.light_version("max")
    assert light.shapes(pooled.config) == {name: x.shape for name, x in weights.items()}
    rows = torch.cat([row[:length] for row, length in zip(words, lengths, strict=True)])
    found = light(pooled.config, weights).encode(rows.numpy(), lengths.numpy())
    torch.testing.assert_close(torch.from_numpy(found.vector), pooled(words, lengths).vector)


# --- the figures of the page on mathematics ---


def load_figures() -> ModuleType:
    """Return benchmarks/math_figures.py as a module."""
    path = ROOT / "benchmarks" / "math_figures.py"
    spec = importlib.util.spec_from_file_location("math_figures", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_plot_of_the_page_on_mathematics_is_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = load_figures()
    images = figures.IMAGES
    monkeypatch.setattr(figures, "IMAGES", tmp_path)
    figures.draw_work()
    (path,) = tmp_path.iterdir()
    assert path.read_text("utf-8") == (images / path.name).read_text("utf-8")


def test_counts_of_the_page_on_mathematics() -> None:
    figures = load_figures()
    for words in (3, 5, 17):
        assert figures.count_compositions("reference", words) == words * (words - 1) // 2
        assert 2 * words - 3 <= figures.count_compositions("exact", words) <= 3 * words - 6
    # by hand: three words merged at 0 and 0; the first merge has one neighbour, the last none
    assert figures.ledger_operations(3, [0, 0]) == (2 + 6 + 4) + 6
    # inner merges wherever there is room reach the bound
    assert figures.ledger_operations(6, [1, 1, 1, 0, 0]) == 18 * 6 - 36


# --- the site ---


class References(HTMLParser):
    """What a page of the site loads, and what it links to."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if tag == "a" and name == "href":
                self.links.append(value)
            elif name in ("src", "href", "srcset", "data", "poster", "action"):
                self.loaded.append(value)
            elif name == "style":
                self.loaded += re.findall(r"url\(([^)]*)\)", value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the site needs the extra `docs`")
    pytest.importorskip("mkdocstrings", reason="the site needs the extra `docs`")
    return build(ROOT / "mkdocs.yml", tmp_path_factory.mktemp("site"))


def build(config: Path, out: Path) -> Path:
    """Build the site as `make docs` does."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    command += ["--config-file", str(config), "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=config.parent
    )
    assert result.returncode == 0, result.stderr + result.stdout
    return out


def test_the_site_has_every_page(site: Path) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        assert (site / f"{page.stem}.html").exists(), page.name
    notebook = (site / "notebook.html").read_text(encoding="utf-8")
    assert notebook.count('<div class="output"><svg') >= 6
    assert re.search("<h1[^>]*>Learn trees from text", notebook)
    assert (site / "notebook.ipynb").exists()
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"math.html", "api.html", "draw.html"} <= found
    assert not any(location.startswith("source/") for location in found)


def test_the_site_refers_to_no_other_host(site: Path) -> None:
    sources = "\n".join(
        path.read_text(encoding="utf-8") for path in [*PAGES, ROOT / "CHANGELOG.md"]
    )
    sources += (ROOT / "src" / "gumbeltree" / "ops" / "merge" / "README.md").read_text(
        encoding="utf-8"
    )
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 25
    for path in pages:
        references = References()
        references.feed(path.read_text(encoding="utf-8"))
        for address in references.loaded:
            assert not re.match(r"(\w+:)?//", address), f"{path.name} loads {address}"
        for address in references.links:
            # links that our own text has are for the reader to follow
            if re.match(r"(\w+:)?//", address):
                assert address in sources, f"{path.name} links to {address}"
    for path in [*site.rglob("*.css"), *(site / "scripts").rglob("*.js")]:
        text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not re.search(r"@import|url\(\s*['\"]?(https?:)?//", text), path.name


class Quiet(SimpleHTTPRequestHandler):
    """A server of files that says nothing."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    "served", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["from disk", "served"]
)
def test_search_works_offline_and_pages_ask_nobody_else(site: Path, served: bool) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs chromium on the path")
    handler = partial(Quiet, directory=site)
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        playwright.sync_playwright() as p,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}" if served else site.as_uri()
        browser = p.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(60_000)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: pytest.fail(str(error)))
        page.goto(f"{base}/index.html")
        page.click("input[name=query]")
        page.locator("input[name=query]").press_sequentially("ledger")
        page.wait_for_selector(".md-search-result__item a[href*='math.html']", state="attached")
        # an option is found, although a leading hyphen excludes a word
        page.fill("input[name=query]", "")
        page.locator("input[name=query]").press_sequentially("--resume")
        page.wait_for_selector(".md-search-result__item a[href*='resume.html']", state="attached")
        for name in ("math", "api", "draw", "explore"):
            page.goto(f"{base}/{name}.html", wait_until="load")
            # pages do not scroll sideways on a telephone
            page.set_viewport_size({"width": 390, "height": 844})
            assert page.evaluate("document.documentElement.scrollWidth") == 390, name
        browser.close()
        server.shutdown()
    assert asked
    assert all(url.startswith((base, "data:", "blob:")) for url in asked), asked


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    import gumbeltree

    reference = (site / "api.html").read_text(encoding="utf-8")
    for name in gumbeltree.__all__:
        if not name.startswith("__"):
            assert f'id="gumbeltree.{name}"' in reference, name
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    # helpers of the pictures and of the index's files have no users but their own module
    inner = re.compile(r"__init__|figure_|film_|index_|raster")
    for module in (ROOT / "src" / "gumbeltree" / "analysis").glob("*.py"):
        if not inner.match(module.stem):
            assert f"::: gumbeltree.analysis.{module.stem}\n" in page, module.name
