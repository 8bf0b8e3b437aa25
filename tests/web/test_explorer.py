"""The explorer's page in a browser, against the real server and the packaged models."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit
from xml.etree import ElementTree

import pytest

import gumbeltree
from gumbeltree.analysis.index import Index
from gumbeltree.analysis.trace import Trace, span_probabilities, trace
from gumbeltree.model import SentenceModel
from tests.models import tiny_model

pytest.importorskip("fastapi", reason="the server needs gumbeltree[web]")
playwright = pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="browser tests need chromium on the path")
expect = playwright.expect
# nothing here is about speed: a busy machine must not fail
PATIENCE = 60_000
expect.set_options(timeout=PATIENCE)

WEB = Path(gumbeltree.__file__).parent / "web"
FOOD = "The food was good but slow ."
BOY = "A boy in a red coat is feeding pigeons ."


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Run the explorer as users do; give its address."""
    command = [sys.executable, "-m", "gumbeltree", "explore", "--no-open"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        try:
            said = ""
            assert process.stdout is not None
            for line in process.stdout:
                said += line
                if found := re.search(r"http://[\w.]+:\d+", line):
                    break
            else:
                raise AssertionError(f"the explorer did not start: {said}")
            yield found.group()
        finally:
            process.terminate()
            process.communicate(timeout=60)


@contextmanager
def serving(
    model: SentenceModel, port: int = 0, index: Index | None = None, **others: SentenceModel
) -> Iterator[int]:
    """Serve a model, others by their names, and the page from a thread; give the port."""
    import uvicorn

    from gumbeltree.web.api import create_app
    from gumbeltree.web.limits import ServerSettings

    indexes = {} if index is None else {"sst2-100d": index}
    models = {"sst2-100d": model, **others}
    app = create_app(models, ServerSettings(page=True, access_log=False), indexes)
    config = uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", port))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A page and what went on in it."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        options = {"viewport": {"width": 1300, "height": 900}, **options}
        self.context = browser.new_context(**options)
        self.address = address
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.asked: list[str] = []
        self.problems: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._note)

    def _note(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def open(self, **view: Any) -> Any:
        self.page.goto("about:blank")
        self.page.goto(f"{self.address}/#{urlencode(view, doseq=True)}" if view else self.address)
        expect(self.page.locator("body")).to_have_class("ready")
        return self.page

    def close(self) -> None:
        self.context.close()
        assert self.problems == []
        # downloads are made in the page, from memory
        mine = (self.address, f"blob:{self.address}", "about:blank")
        assert [url for url in self.asked if not url.startswith(mine)] == []


@pytest.fixture
def visit(browser: Any, address: str) -> Iterator[Visit]:
    visit = Visit(browser, address)
    yield visit
    visit.close()


@pytest.fixture(scope="module")
def sst() -> SentenceModel:
    return gumbeltree.load("sst2-100d")


@pytest.fixture(scope="module")
def snli() -> SentenceModel:
    return gumbeltree.load("snli-100d")


def card(page: Any, name: str) -> Any:
    return page.get_by_role("article", name=name)


def tree(page: Any, name: str, which: int = 0) -> Any:
    return card(page, name).locator("svg.tree").nth(which)


def fragment(page: Any) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).fragment, keep_blank_values=True)


def is_whole(found: Trace, picture: Any) -> None:
    """Check that a picture shows a whole tree."""
    expect(picture).to_have_attribute("aria-label", f"Tree: {found.tree}")


def shown(page: Any, name: str) -> list[str]:
    """Return the phrases of the merges that can be seen."""
    nodes = tree(page, name).locator(".merge:not(.later):not(.next)")
    labels = nodes.evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
    return [re.sub(r"^merge \d+: |, [<>]?[\d.]+%.*$", "", label) for label in labels]


def test_typing_draws_the_tree_of_each_model(
    visit: Visit, sst: SentenceModel, snli: SentenceModel
) -> None:
    page = visit.open(text="")
    page.locator("#text").press_sequentially(FOOD, delay=15)
    for name, model in (("sst2-100d", sst), ("snli-100d", snli)):
        found = trace(model, FOOD)
        picture = tree(page, name)
        is_whole(found, picture)
        words = picture.locator(".word text")
        assert words.all_text_contents() == list(found.tree.words)
        boxes = words.evaluate_all(
            "all => all.map(x => [+x.getAttribute('x'), x.getAttribute('y')])"
        )
        assert [x for x, _ in boxes] == sorted(x for x, _ in boxes)
        assert len({y for _, y in boxes}) == 1
        expect(picture.locator(".edge")).to_have_count(2 * len(found.tree.order))
    # the words of both stand on one line
    lines = [tree(page, name).locator(".word text").first.bounding_box()["y"]
             for name in ("sst2-100d", "snli-100d")]  # fmt: skip
    assert lines[0] == pytest.approx(lines[1], abs=1)
    # not each of the letters was asked for
    assert sum(url.endswith("/api/parse") for url in visit.asked) < 2 * len(FOOD)
    expect(page.locator("#live")).to_contain_text(f"sst2-100d: {trace(sst, FOOD).tree}. ")
    expect(page.locator("#live")).to_contain_text("%")


def test_prediction_is_that_of_the_model(visit: Visit, sst: SentenceModel) -> None:
    page = visit.open(text=FOOD)
    (prediction,) = sst.predict([FOOD])
    verdict = card(page, "sst2-100d").locator(".verdict")
    expect(verdict.locator(".answer")).to_have_text(prediction.label)
    for label, p in prediction.probabilities.items():
        row = verdict.get_by_role("row", name=label)
        shown = float(row.locator(".number").text_content().strip("%<>"))
        assert shown == pytest.approx(100 * p, abs=0.51)
    expect(card(page, "snli-100d").locator(".verdict")).to_contain_text("Add a second sentence")


def test_slider_steps_through_the_candidates(visit: Visit, sst: SentenceModel) -> None:
    page = visit.open(text=FOOD, model="sst2-100d")
    found = trace(sst, FOOD)
    picture = tree(page, "sst2-100d")
    is_whole(found, picture)
    slider = page.get_by_role("slider", name="Merges that are done")
    slider.focus()
    slider.press("Home")
    expect(page.locator("#step-value")).to_have_text("0 of 6 merges")
    assert shown(page, "sst2-100d") == []
    for step, layer in enumerate(found.layers):
        expect(slider).to_have_attribute("aria-valuetext", f"{step} of 6 merges")
        gaps = [end for start, end in frontier(found, step)][:-1]
        bars = picture.locator(".bar").evaluate_all(
            """all => all.map(one => ({
                 x: +one.getAttribute('x') + one.getAttribute('width') / 2,
                 role: one.getAttribute('class').slice(4).trim(),
                 height: +one.style.transform.slice(7, -1)}))"""
        )
        bars = sorted(bars, key=lambda bar: bar["x"])
        assert [gap + 1 for gap, bar in enumerate(bars) if bar["role"] != "closed"] == gaps
        most = max(layer.probabilities)
        for j, gap in enumerate(gaps):
            wanted = {layer.choice: "choice", layer.runner_up: "second"}.get(j, "")
            assert bars[gap - 1]["role"] == wanted
            height = max(0.02, layer.probabilities[j] / most)
            assert bars[gap - 1]["height"] == pytest.approx(height, abs=1e-3)
        value = picture.locator(".value.choice").text_content()
        assert float(value.strip("%")) == pytest.approx(
            100 * layer.probabilities[layer.choice], abs=0.51
        )
        expect(picture.locator(".rank.choice")).to_have_text("chosen")
        assert len(shown(page, "sst2-100d")) == step
        slider.press("ArrowRight")
    expect(page.locator("#step-value")).to_have_text("all 6 merges")
    words = found.tree.words
    assert shown(page, "sst2-100d") == [" ".join(words[a:b]) for a, b in found.tree.spans]
    page.get_by_role("button", name="One merge back").click()
    expect(page.locator("#step-value")).to_have_text("5 of 6 merges")


def frontier(found: Trace, step: int) -> list[tuple[int, int]]:
    """Return the spans that stand after some merges."""
    present = [(i, i + 1) for i in range(len(found.tree.words))]
    for position in found.tree.order[:step]:
        present[position : position + 2] = [(present[position][0], present[position + 1][1])]
    return present


def test_play_goes_to_the_end(visit: Visit) -> None:
    page = visit.open(text="not good .", model="sst2-100d")
    expect(page.locator("#step-value")).to_have_text("all 2 merges")
    page.get_by_role("button", name="Play the merges").click()
    expect(page.locator("#step-value")).to_have_text("0 of 2 merges")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    expect(page.locator("#step-value")).to_have_text("all 2 merges")
    expect(page.get_by_role("button", name="Play the merges")).to_be_visible()


def test_hovering_tells_about_a_node(visit: Visit, sst: SentenceModel) -> None:
    page = visit.open(text=FOOD)
    found = trace(sst, FOOD)
    picture = tree(page, "sst2-100d")
    is_whole(found, picture)
    number = len(found.tree.words)
    node = found.nodes[number]
    panel = card(page, "sst2-100d").get_by_role("region", name="Node of sst2-100d")
    expect(panel.locator(".phrase")).to_have_text(" ".join(found.tree.words))
    picture.locator(".node").nth(number).hover()
    phrase = " ".join(found.tree.words[slice(*node.span)])
    expect(panel.locator(".phrase")).to_have_text(phrase)
    expect(panel.locator(".facts")).to_contain_text("1 of 6")
    expect(panel.locator(".facts")).to_contain_text(f"{node.score:.2f}".replace("-", "\u2212"))
    assert node.classes is not None
    for label, p in node.classes.items():
        text = panel.get_by_role("row", name=label).locator(".number").text_content()
        assert float(text.strip("%<>")) == pytest.approx(100 * p, abs=0.51)
    expect(panel.locator(".neighbours li")).to_have_count(5)
    # the other model's picture points at the same words
    echoes = tree(page, "snli-100d").locator(".word.echo text")
    assert echoes.all_text_contents() == phrase.split()
    page.locator("h1").hover()
    expect(panel.locator(".phrase")).to_have_text(" ".join(found.tree.words))
    expect(echoes).to_have_count(0)


def test_whole_sentences_are_looked_up_in_an_index(
    browser: Any, sst: SentenceModel, tmp_path: Path
) -> None:
    texts = ["a good film .", "a bad film .", "the cat sat down ."]
    index = Index.build(tmp_path / "index", sst, texts)
    with serving(sst, index=index) as port:
        visit = Visit(browser, f"http://127.0.0.1:{port}")
        page = visit.open(text="a good movie .")
        near = card(page, "sst2-100d").locator(".near-part")
        expect(near.get_by_role("heading")).to_have_text("Nearest sentences")
        expect(near.locator("li")).to_have_count(3)
        rows, scores = index.search(sst.encode(["a good movie ."]), 3)
        for item, row, score in zip(near.locator("li").all(), rows[0], scores[0], strict=True):
            expect(item).to_have_text(f"{texts[row]}{score:.2f}".replace("-", "\u2212"))
        tree(page, "sst2-100d").locator(".word").first.hover()
        expect(near.get_by_role("heading")).to_have_text("Nearest phrases")
        expect(near.locator("li")).to_have_count(5)
        visit.close()


def test_fixed_trees_have_merges_and_no_scores(browser: Any, sst: SentenceModel) -> None:
    text = "the dog sleeps now ."
    models = {
        "fixed": tiny_model("single", trees="left"),
        "pairs": tiny_model("pair", trees="random"),
    }
    with serving(sst, **models) as port:
        visit = Visit(browser, f"http://127.0.0.1:{port}")
        page = visit.page
        bodies: list[str] = []
        page.on("request", lambda request: bodies.append(request.post_data or ""))
        visit.open(text=text, second="not one dog .", model=list(models), heat=1)
        for name, model in models.items():
            found, own = trace(model, text), card(page, name)
            is_whole(found, tree(page, name))
            expect(own.locator(".note")).to_contain_text(f"trees are fixed ({found.trees})")
            facts = own.locator(".facts")
            expect(facts).to_have_text(f"merge4 of 4treefixed ({found.trees})")
            expect(own.locator(".legend")).to_have_text("" if name == "pairs" else "badgood")
            own.get_by_text("Merges as a table").click()
            expect(own.locator("details thead").first).to_have_text("MergeLeftRight")
            expect(own.locator("details tbody tr").first.locator("td")).to_have_count(3)
            # the class of a node is told, how probable its merge was is not
            classes = "" if name == "pairs" else r", (bad|good) [<>]?[\d.]+%"
            spans = [" ".join(found.tree.words[a:b]) for a, b in found.tree.spans]
            merges = tree(page, name).locator(".merge")
            for number, span in enumerate(spans):
                label = re.compile(rf"^merge {number + 1}: {re.escape(span)}{classes}$")
                expect(merges.nth(number)).to_have_attribute("aria-label", label)
            ranks = tree(page, name).locator(".rank").all_text_contents()
            assert sorted(ranks) == ["1", "2", "3", "4"]
            check_no_bars(tree(page, name))
        dots = tree(page, "pairs").locator(".merge.hue-grey .dot")
        opacities = "all => all.map(one => one.getAttribute('fill-opacity'))"
        assert dots.evaluate_all(opacities) == ["1.000"] * 4
        # the merges are shown one by one all the same
        page.get_by_role("button", name="To the words").click()
        for step in range(4):
            expect(page.locator("#step-value")).to_have_text(f"{step} of 4 merges")
            for name in models:
                assert len(shown(page, name)) == step
                expect(tree(page, name).locator(".merge.next")).to_have_count(1)
                expect(tree(page, name).locator(".rank.choice")).to_have_text("next")
                check_no_bars(tree(page, name))
            page.get_by_role("button", name="One merge on").click()
        # a seed changes random trees alone; the others are not said to be sampled
        page.get_by_role("switch", name="Sample").check()
        is_whole(trace(models["pairs"], text, seed=1), tree(page, "pairs"))
        is_whole(trace(models["fixed"], text), tree(page, "fixed"))
        expect(card(page, "pairs").locator(".verdict")).to_contain_text("from the usual trees")
        expect(card(page, "fixed").locator(".verdict")).not_to_contain_text("not the sampled")
        # how often spans are in sampled trees is neither offered nor asked for
        expect(page.get_by_role("switch", name="Heat map of spans")).to_be_hidden()
        assert not any('"samples":100' in body for body in bodies)
        page.get_by_role("checkbox", name="sst2-100d").check()
        expect(page.get_by_role("switch", name="Heat map of spans")).to_be_visible()
        expect(card(page, "sst2-100d").locator("svg.heat")).to_have_count(1)
        expect(page.locator("svg.heat")).to_have_count(1)
        visit.close()


def check_no_bars(picture: Any) -> None:
    """Check that no probability stands under the words of a tree."""
    heights = "all => all.map(one => one.style.transform)"
    assert set(picture.locator(".bar").evaluate_all(heights)) == {"scaleY(0)"}
    assert set(picture.locator(".value").all_text_contents()) == {""}
    expect(picture.locator(".second")).to_have_count(0)


def test_keys_reach_every_node_in_order(visit: Visit, sst: SentenceModel) -> None:
    text = "not a good film ."
    page = visit.open(text=text, model="sst2-100d")
    found = trace(sst, text)
    is_whole(found, tree(page, "sst2-100d"))
    page.get_by_role("button", name="Download everything as JSON of sst2-100d").focus()
    seen = []
    for _ in found.nodes:
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.getAttribute('aria-label')"))
    words = found.tree.words
    assert [re.sub(r"^(word|merge \d+): |, [<>]?[\d.]+%.*|, .*$", "", one) for one in seen] == [
        " ".join(words[slice(*node.span)]) for node in found.nodes
    ]
    ring = page.locator(".node:focus .ring").evaluate("one => getComputedStyle(one).stroke")
    assert ring == "rgb(0, 114, 178)"
    page.keyboard.press("ArrowDown")
    root = found.nodes[-1].children
    assert root is not None
    here = page.locator(".node:focus")
    assert here.get_attribute("aria-label") == seen[root[0]]
    page.keyboard.press("ArrowUp")
    expect(here).to_have_attribute("aria-label", seen[-1])
    page.keyboard.press("Enter")
    expect(here).to_have_attribute("aria-pressed", "true")
    expect(page).to_have_url(re.compile("node="))
    assert fragment(page)["node"] == [f"0:0:{len(words)}:sst2-100d"]
    # a step back takes the root away, and the focus goes to what is left
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#step-value")).to_have_text("2 of 4 merges")
    assert "later" not in here.get_attribute("class")
    page.keyboard.press("Escape")
    expect(page).not_to_have_url(re.compile("node="))


def test_pairs_of_sentences(visit: Visit, snli: SentenceModel) -> None:
    page = visit.open(text=BOY, model="snli-100d")
    page.get_by_label("Second sentence").fill("A child is outside .")
    (prediction,) = snli.predict([BOY], ["A child is outside ."])
    verdict = card(page, "snli-100d").locator(".verdict")
    expect(verdict.locator(".answer")).to_have_text(prediction.label)
    for label, p in prediction.probabilities.items():
        row = verdict.get_by_role("row", name=label)
        assert float(row.locator(".number").text_content().strip("%<>")) == pytest.approx(
            100 * p, abs=0.51
        )
        width = row.locator(".fill").evaluate("one => one.style.width")
        assert float(width.strip("%")) == pytest.approx(100 * p, abs=0.01)
    is_whole(trace(snli, BOY), tree(page, "snli-100d"))
    is_whole(trace(snli, "A child is outside ."), tree(page, "snli-100d", 1))
    # the second field belongs to models of pairs
    page.get_by_role("checkbox", name="sst2-100d").check()
    page.get_by_role("checkbox", name="snli-100d").uncheck()
    expect(page.get_by_label("Second sentence")).to_be_hidden()
    expect(page.get_by_role("article")).to_have_count(1)


def test_sampling_follows_seed_and_temperature(visit: Visit, snli: SentenceModel) -> None:
    page = visit.open(text=BOY, model="snli-100d", temperature=2)
    picture = tree(page, "snli-100d")
    is_whole(trace(snli, BOY), picture)
    page.get_by_role("switch", name="Sample").check()
    is_whole(trace(snli, BOY, seed=1, temperature=2.0), picture)
    page.get_by_role("button", name="Draw again").click()
    second = trace(snli, BOY, seed=2, temperature=2.0)
    assert second.tree != trace(snli, BOY).tree
    is_whole(second, picture)
    assert page.get_by_label("Seed").input_value() == "2"
    slider = page.get_by_role("slider", name="Temperature")
    slider.press("Home")
    expect(slider).to_have_attribute("aria-valuetext", "0.1")
    is_whole(trace(snli, BOY, seed=2, temperature=0.1), picture)
    expect(page).to_have_url(re.compile("temperature=0.1"))
    page.get_by_role("switch", name="Sample").uncheck()
    is_whole(trace(snli, BOY), picture)


def test_heat_map_of_spans(visit: Visit, snli: SentenceModel) -> None:
    page = visit.open(text=BOY, model="snli-100d")
    page.get_by_role("switch", name="Heat map of spans").check()
    chart = card(page, "snli-100d").locator("svg.heat")
    greedy, spans = span_probabilities(snli, BOY, samples=100)
    expect(chart.locator(".cell")).to_have_count(len(spans))
    expect(chart.locator(".greedy")).to_have_count(len(greedy.order))
    panel = card(page, "snli-100d").get_by_role("region", name="Span probabilities")
    panel.locator("summary").click()
    rows = panel.locator("tbody tr")
    expect(rows).to_have_count(len(spans))
    said = {tuple(row.split("\t")[:2]) for row in rows.all_inner_texts()}
    (start, end), p = max(spans.items(), key=lambda item: (item[1] < 1, item[1]))
    assert (" ".join(greedy.words[start:end]), f"{round(100 * p)}%") in said
    assert (" ".join(greedy.words), "100%") in said
    chart.locator(".cell").last.hover(force=True)
    expect(panel.locator(".say")).to_contain_text("of 100 sampled trees")


def test_link_restores_the_view(visit: Visit, browser: Any, address: str) -> None:
    page = visit.open(text=FOOD)
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_label("Sentence", exact=True).fill("Nobody & nothing = 100% #good + bad?")
    page.get_by_label("Second sentence").fill("It is bad .")
    page.get_by_role("switch", name="Sample").check()
    page.get_by_label("Seed").fill("77")
    page.get_by_label("Seed").press("Enter")
    page.get_by_role("switch", name="Heat map of spans").check()
    page.get_by_role("slider", name="Temperature").press("ArrowRight")
    expect(card(page, "sst2-100d").locator("svg.heat")).to_be_visible()
    page.get_by_role("slider", name="Merges that are done").fill("3")
    tree(page, "sst2-100d").locator(".node").nth(1).click()
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator("#toast")).to_have_text("Link copied")
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == page.url
    page.mouse.move(0, 0)
    state = """() => ({
      fields: [...document.querySelectorAll('input, textarea')].map(
        one => one.type === 'checkbox' ? one.checked : one.value),
      trees: [...document.querySelectorAll('.card svg.tree .node')].map(one =>
        ['aria-label', 'class', 'aria-pressed'].map(name => one.getAttribute(name))),
      charts: document.querySelectorAll('svg.heat .cell').length,
    })"""
    other = Visit(browser, address)
    other.page.goto(link)
    expect(page.locator("svg.heat")).to_have_count(3)
    expect(other.page.locator("svg.heat")).to_have_count(3)
    expect(other.page.locator("[aria-pressed=true].node")).to_have_count(1)
    # answers to the last changes may still be on their way to either page
    for _ in range(PATIENCE // 100):
        before, after = page.evaluate(state), other.page.evaluate(state)
        if before == after:
            break
        page.wait_for_timeout(100)
    assert len(before["trees"]) > 20
    assert before["charts"] > 20
    assert after == before
    other.close()


def test_links_that_make_no_sense_are_read_as_far_as_possible(visit: Visit) -> None:
    page = visit.open(
        text="good .", model="no-such-model", step="x", seed="-1", temperature="-3", node="?"
    )
    expect(page.locator("svg.tree")).to_have_count(2)
    expect(page.locator("#step-value")).to_have_text("all 1 merge")
    page = visit.open(text="good .", step=99, temperature="1e9", node="1:5:9:sst2-100d")
    expect(page.locator("svg.tree")).to_have_count(2)
    assert page.locator("#temperature-value").text_content() == "10"


def test_downloads(visit: Visit, sst: SentenceModel, tmp_path: Path) -> None:
    page = visit.open(text=FOOD, model="sst2-100d")
    found = trace(sst, FOOD)
    is_whole(found, tree(page, "sst2-100d"))

    def saved(name: str) -> Path:
        with page.expect_download() as waiting:
            page.get_by_role("button", name=f"Download {name}").click()
        file = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(file)
        assert file.stem == "sst2-100d-The-food-was-good"
        return file

    brackets = saved("the brackets")
    assert brackets.read_text(encoding="utf-8") == f"{found.tree}\n"
    everything = json.loads(saved("everything as JSON").read_text(encoding="utf-8"))
    assert everything["model"] == "sst2-100d"
    assert everything["results"][0]["brackets"] == str(found.tree)
    assert len(everything["results"][0]["layers"]) == 6
    drawn = saved("the picture as SVG")
    assert drawn.suffix == ".svg"
    text = drawn.read_text(encoding="utf-8")
    assert "var(" not in text
    assert "class=" not in text
    # what a browser makes of the file alone is what the page shows, and what the PNG holds
    size = page.evaluate(
        """text => {
             const made = new DOMParser().parseFromString(text, 'image/svg+xml').documentElement;
             return [made.getAttribute('width'), made.getAttribute('height'),
                     made.querySelectorAll('circle').length,
                     [...made.querySelectorAll('text')].map(one => one.textContent)];
           }""",
        text,
    )
    assert size[2] >= len(found.tree.order)
    assert list(found.tree.words) == [word for word in size[3] if word in found.tree.words]
    picture = saved("the picture as PNG").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    wide, tall = (int.from_bytes(picture[i : i + 4], "big") for i in (16, 20))
    assert [wide, tall] == [2 * int(size[0]), 2 * int(size[1])]
    colours = page.evaluate(
        """async bytes => {
             const image = await createImageBitmap(new Blob([new Uint8Array(bytes)]));
             const canvas = new OffscreenCanvas(image.width, image.height);
             const pen = canvas.getContext('2d');
             pen.drawImage(image, 0, 0);
             const {data} = pen.getImageData(0, 0, image.width, image.height);
             const seen = {};
             for (let i = 0; i < data.length; i += 4) {
               const key = data.slice(i, i + 3).join();
               seen[key] = (seen[key] ?? 0) + 1;
             }
             return seen;
           }""",
        list(picture),
    )
    assert max(colours, key=lambda colour: colours[colour]) == "255,255,255"
    for ink in ("34,37,43", "169,173,181"):
        assert colours[ink] > 100, "letters and lines"


def test_nothing_is_saved_before_there_is_a_tree(visit: Visit) -> None:
    page = visit.page
    held: list[Any] = []
    saved: list[Any] = []
    page.on("download", lambda file: saved.append(file))
    page.route("**/api/parse", lambda route: held.append(route))
    visit.open(text=FOOD, model="sst2-100d")
    buttons = card(page, "sst2-100d").get_by_role("button", name="Download")
    expect(buttons).to_have_count(4)
    for i in range(4):
        expect(buttons.nth(i)).to_have_attribute("aria-disabled", "true")
        page.evaluate("document.getElementById('toast').textContent = ''")
        buttons.nth(i).press("Enter")
        # a region of this role is read out
        expect(page.locator("#toast[role=status].shown")).to_have_text("There is no tree yet")
    while not held:
        page.wait_for_timeout(20)
    for route in held:
        route.continue_()
    expect(page.locator("svg.tree")).to_have_count(1)
    for i in range(4):
        expect(buttons.nth(i)).to_have_attribute("aria-disabled", "false")
    assert saved == []


def test_a_picture_of_any_text_is_well_formed(visit: Visit, tmp_path: Path) -> None:
    page = visit.open(text="a go\x01od film\ufffe .", model="sst2-100d")
    expect(tree(page, "sst2-100d").locator(".node").first).to_be_visible()
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Download the picture as SVG").click()
    waiting.value.save_as(tmp_path / "picture.svg")
    root = ElementTree.parse(tmp_path / "picture.svg").getroot()
    assert "go\ufffdod" in " ".join(root.itertext())


def test_markup_is_shown_as_text(visit: Visit) -> None:
    text = "<script>window.ran=1</script> <img src=x onerror=window.ran=1> <b>good</b>"
    page = visit.open(text="good .")
    expect(page.locator("svg.tree")).to_have_count(2)

    def spoil(route: Any) -> None:
        """Answer as a tokenizer would that leaves markup whole."""
        answer = route.fetch().json()
        for result in answer["results"]:
            result["words"][:3] = text.split(" ", 3)[:3]
            result["brackets"] = text
        route.fulfill(json=answer)

    neighbours = {"source": "phrases", "neighbours": [{"text": text, "score": 0.5}]}
    page.route("**/api/parse", spoil)
    page.route("**/api/neighbours", lambda route: route.fulfill(json=neighbours))
    page.get_by_label("Sentence", exact=True).fill(text)
    page.get_by_label("Second sentence").fill(text)
    page.get_by_role("switch", name="Heat map of spans").check()
    expect(page.locator("svg.heat")).to_have_count(3)
    page.locator("svg.tree .node").first.hover()
    expect(page.locator(".neighbours li").first).to_contain_text("<b>good</b>")
    for summary in page.locator("summary").all():
        summary.click()
    expect(page.locator("svg.tree .word text").first).to_contain_text("<script>")
    expect(page.locator("article .brackets").first).to_have_text(text)
    assert page.evaluate("window.ran") is None
    assert page.locator("article script, article img, article b").count() == 0
    assert "<script>" in page.locator("#text").input_value()


def test_500_words_stay_usable(visit: Visit) -> None:
    page = visit.open(text="good .")
    began = time.monotonic()
    page.get_by_label("Sentence", exact=True).fill(
        " ".join(["the", "cat", "sat", "well", "."] * 100)
    )
    expect(page.locator("#cut")).to_be_visible()
    words = tree(page, "sst2-100d").locator(".word")
    expect(words).to_have_count(128)
    assert time.monotonic() - began < 8
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    took = page.evaluate(
        """() => {
             const slider = document.querySelector('#step');
             const began = performance.now();
             for (const step of [3, 60, 100]) {
               slider.value = step;
               slider.dispatchEvent(new Event('input'));
               document.body.offsetHeight;
             }
             return performance.now() - began;
           }"""
    )
    assert took < 3000
    expect(page.locator("#step-value")).to_have_text("100 of 127 merges")
    expect(page.locator("#live")).to_contain_text("a tree over 128 words")
    page.get_by_label("Sentence", exact=True).fill("x" * 3000)
    expect(words).to_have_count(1)


def test_an_empty_field_gets_a_hint(visit: Visit) -> None:
    page = visit.open(text="good .", second="bad .")
    expect(page.locator("svg.tree")).to_have_count(3)
    page.get_by_label("Sentence", exact=True).fill("   ")
    expect(page.locator("#hint")).to_contain_text("Type a sentence")
    expect(page.locator("#cards")).to_be_hidden()
    expect(page.locator("#live")).to_contain_text("Type a sentence")
    page.get_by_label("Sentence", exact=True).fill("good .")
    expect(page.locator("svg.tree")).to_have_count(3)
    expect(page.locator("#hint")).to_be_hidden()
    for name in ("sst2-100d", "snli-100d"):
        page.get_by_role("checkbox", name=name).uncheck()
    expect(page.locator("#hint")).to_contain_text("at least one model")


def test_examples_can_be_picked(visit: Visit) -> None:
    page = visit.open(text="good .")
    page.get_by_role("button", name="Examples").click()
    page.get_by_role("searchbox").fill("telescope")
    page.get_by_role("dialog").get_by_role("button", name="I saw the man").click()
    expect(page.locator("#text")).to_have_value("I saw the man on the hill with the telescope.")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.get_by_role("button", name="Examples").click()
    page.get_by_role("dialog").get_by_role("button", name="A man is asleep").click()
    expect(page.locator("#second")).to_have_value("A man is asleep in his bed.")
    expect(card(page, "snli-100d").locator(".answer")).to_be_visible()
    page.get_by_role("button", name="Surprise me").click()
    expect(page.locator("#text")).not_to_have_value("A man is playing a guitar on a stage.")


def test_examples_are_whole() -> None:
    examples = json.loads((WEB / "examples.json").read_text(encoding="utf-8"))
    sentences = examples["sentences"]
    assert len(sentences) == len(set(sentences)) == 120
    assert sum(group["count"] for group in examples["groups"]) == 120
    assert len({tuple(pair) for pair in examples["pairs"]}) == 30


def test_busy_servers_are_asked_again_quietly(visit: Visit, sst: SentenceModel) -> None:
    page = visit.open(text="good .", model="sst2-100d")
    expect(page.locator("svg.tree")).to_have_count(1)
    refused = []

    def refuse_once(route: Any) -> None:
        if refused:
            route.continue_()
            return
        refused.append(route.request.url)
        route.fulfill(status=503, headers={"Retry-After": "1"}, json={"detail": "busy"})

    page.route("**/api/parse", refuse_once)
    page.get_by_label("Sentence", exact=True).fill("very bad .")
    is_whole(trace(sst, "very bad ."), tree(page, "sst2-100d"))
    assert len(refused) == 1
    expect(page.locator("#away")).to_be_hidden()
    # the browser itself notes each such answer
    assert all("503" in problem for problem in visit.problems)
    visit.problems.clear()


def test_refusals_are_told(visit: Visit) -> None:
    page = visit.open(text="good .", model="sst2-100d")
    expect(page.locator("svg.tree")).to_have_count(1)
    page.route(
        "**/api/parse",
        lambda route: route.fulfill(status=422, json={"detail": "texts.0: <b>no</b>"}),
    )
    page.get_by_label("Sentence", exact=True).fill("very bad .")
    expect(card(page, "sst2-100d").locator(".hint")).to_have_text("texts.0: <b>no</b>")
    expect(page.locator("svg.tree")).to_have_count(0)
    page.unroute("**/api/parse")
    page.get_by_label("Sentence", exact=True).fill("very good .")
    expect(page.locator("svg.tree")).to_have_count(1)
    assert all("422" in problem for problem in visit.problems)
    visit.problems.clear()


def test_late_answers_are_dropped(visit: Visit, sst: SentenceModel) -> None:
    page = visit.open(text="good .", model="sst2-100d")
    expect(page.locator("svg.tree")).to_have_count(1)
    late: list[Any] = []

    def hold(route: Any) -> None:
        if "slow" in (route.request.post_data or ""):
            late.append(route)
        else:
            route.continue_()

    page.route("**/api/parse", hold)
    page.get_by_label("Sentence", exact=True).fill("a slow one .")
    for _ in range(PATIENCE // 100):
        if late:
            break
        page.wait_for_timeout(100)
    assert len(late) == 1
    page.get_by_label("Sentence", exact=True).fill("a fast one .")
    is_whole(trace(sst, "a fast one ."), tree(page, "sst2-100d"))
    late[0].fulfill(json={"results": []})
    page.wait_for_timeout(200)
    is_whole(trace(sst, "a fast one ."), tree(page, "sst2-100d"))


def test_server_goes_away_and_comes_back(browser: Any, sst: SentenceModel) -> None:
    with serving(sst) as port:
        visit = Visit(browser, f"http://127.0.0.1:{port}")
        page = visit.open(text="good .")
        expect(page.locator("svg.tree")).to_have_count(1)
        expect(page.locator("#away")).to_be_hidden()
    page.get_by_label("Sentence", exact=True).fill("not very good .")
    expect(page.locator("#away")).to_contain_text("does not answer")
    is_whole(trace(sst, "good ."), tree(page, "sst2-100d"))
    with serving(sst, port):
        expect(page.locator("#away")).to_be_hidden()
        is_whole(trace(sst, "not very good ."), tree(page, "sst2-100d"))
        assert all("ERR_CONNECTION" in problem for problem in visit.problems)
        visit.problems.clear()
        visit.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(browser: Any, address: str, scheme: Any) -> None:
    visit = Visit(browser, address, color_scheme=scheme)
    page = visit.open(text="good .", model="sst2-100d")

    def brightness() -> float:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3

    assert (brightness() > 128) == (scheme == "light")
    button = page.get_by_role("button", name="Dark colours")
    expect(button).to_have_attribute("aria-pressed", str(scheme == "dark").lower())
    button.click()
    assert (brightness() > 128) == (scheme == "dark")
    page.reload()
    expect(page.locator("svg.tree")).to_have_count(1)
    assert (brightness() > 128) == (scheme == "dark")
    visit.close()


@pytest.mark.parametrize("words", [1, 13, 128])
def test_phone_width_does_not_scroll_sideways(browser: Any, address: str, words: int) -> None:
    size = {"width": 360, "height": 740}
    visit = Visit(browser, address, viewport=size, is_mobile=True, reduced_motion="reduce")
    some = ["the", "boy", "in", "a", "wonderfulextraordinarilylongword", "coat", "sees"]
    text = " ".join(some[i % 7] for i in range(words))
    page = visit.open(text=text, second="A child .", heat=1, step=min(3, words - 1))
    expect(page.locator("svg.heat")).to_have_count(3)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    duration = page.locator("svg.tree .node").first.evaluate(
        "one => getComputedStyle(one).transitionDuration"
    )
    assert set(duration.split(", ")) == {"0s"}
    visit.close()


def test_everything_has_a_name(visit: Visit) -> None:
    page = visit.open(text=FOOD, second=BOY, heat=1)
    expect(page.locator("svg.heat")).to_have_count(3)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, input, textarea, [role], [tabindex]')]
             .filter(one => !one.closest('[hidden], dialog:not([open])'))
             .filter(one => !['status', 'main'].includes(one.getAttribute('role') ?? one.id))
             .filter(one => !(one.getAttribute('aria-label') || one.labels?.length ||
                              one.tagName === 'BUTTON' && one.textContent.trim()))
             .map(one => one.outerHTML.slice(0, 120))"""
    )
    assert nameless == []
    numbers = page.evaluate("[...document.querySelectorAll('[id]')].map(one => one.id)")
    assert len(numbers) == len(set(numbers))
    assert page.get_by_role("heading", level=1).count() == 1
