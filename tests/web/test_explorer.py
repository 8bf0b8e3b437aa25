"""The explorer's page in a browser, with the packaged models."""

import json
import re
import shutil
import socket
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit
from xml.etree import ElementTree

import numpy as np
import pytest

import gumbeltree
from gumbeltree.analysis.index import Index
from gumbeltree.analysis.samples import span_probabilities
from gumbeltree.analysis.trace import trace
from tests.models import tiny_model

pytest.importorskip("fastapi", reason="the server needs gumbeltree[web]")
playwright = pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="browser tests need chromium on the path")
expect = playwright.expect
# long, so that a busy machine does not fail the tests
TIMEOUT = 60_000
expect.set_options(timeout=TIMEOUT)

FOOD = "The food was good but slow ."
BOY = "A boy in a red coat is feeding pigeons ."


@contextmanager
def serving(models, port=0, indexes=None):
    """Serve models and the page from a thread; yield the address."""
    import uvicorn

    from gumbeltree.web.api import create_app
    from gumbeltree.web.limits import ServerSettings

    app = create_app(models, ServerSettings(page=True, access_log=False), indexes)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
    listener = socket.create_server(("127.0.0.1", port))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture(scope="module")
def sst():
    return gumbeltree.load("sst2-100d")


@pytest.fixture(scope="module")
def snli():
    return gumbeltree.load("snli-100d")


@pytest.fixture(scope="module")
def address(sst, snli):
    with serving({"sst2-100d": sst, "snli-100d": snli}) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Visit:
    """A page, with its requests and the problems it reported."""

    def __init__(self, browser, address, **options):
        options = {"viewport": {"width": 1300, "height": 900}, **options}
        self.context = browser.new_context(**options)
        self.address = address
        self.page = self.context.new_page()
        self.page.set_default_timeout(TIMEOUT)
        self.requests, self.problems = [], []
        self.page.on("request", lambda request: self.requests.append(request))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._note)

    def _note(self, message):
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def open(self, **view):
        self.page.goto("about:blank")
        self.page.goto(f"{self.address}/#{urlencode(view, doseq=True)}")
        expect(self.page.locator("body")).to_have_class("ready")
        return self.page

    def close(self, expected=None):
        """Check that nothing failed but `expected`, and that no other server was contacted."""
        self.context.close()
        assert [text for text in self.problems if not expected or expected not in text] == []
        own = (self.address, f"blob:{self.address}", "about:blank")
        assert [one.url for one in self.requests if not one.url.startswith(own)] == []


@pytest.fixture
def visit(browser, address):
    visit = Visit(browser, address)
    yield visit
    visit.close()


def card(page, name):
    return page.get_by_role("article", name=name)


def tree(page, name, which=0):
    return card(page, name).locator("svg.tree").nth(which)


def sentence(page):
    return page.get_by_label("Sentence", exact=True)


def expect_tree(picture, traced):
    """Expect a picture to show a whole tree."""
    expect(picture).to_have_attribute("aria-label", f"Tree: {traced.tree}")


def expect_bars(table, probabilities):
    """Expect the rows of a table to show probabilities."""
    for label, p in probabilities.items():
        row = table.get_by_role("row", name=label)
        shown = row.locator(".number").text_content().strip("%<>")
        assert float(shown) == pytest.approx(100 * p, abs=0.51)
        width = row.locator(".fill").evaluate("one => one.style.width").strip("%")
        assert float(width) == pytest.approx(100 * p, abs=0.01)


def visible_phrases(page, name):
    """Return the phrases of the merges that are visible."""
    nodes = tree(page, name).locator(".merge:not(.later):not(.next)")
    labels = nodes.evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
    return [re.sub(r"^merge \d+: |, [<>]?[\d.]+%.*$", "", label) for label in labels]


def phrases(traced):
    return [" ".join(traced.tree.words[a:b]) for a, b in traced.tree.spans]


def save(page, name, folder):
    """Click a download button and return the file."""
    with page.expect_download() as waiting:
        page.get_by_role("button", name=f"Download {name}").click()
    file = folder / waiting.value.suggested_filename
    waiting.value.save_as(file)
    return file


# trees and predictions


def test_typing_draws_a_tree_per_model(visit, sst, snli):
    page = visit.open(text="")
    page.locator("#text").press_sequentially(FOOD, delay=15)
    lines = []
    for name, model in (("sst2-100d", sst), ("snli-100d", snli)):
        traced, picture = trace(model, FOOD), tree(page, name)
        expect_tree(picture, traced)
        words = picture.locator(".word text")
        assert words.all_text_contents() == list(traced.tree.words)
        boxes = [word.bounding_box() for word in words.all()]
        assert [box["x"] for box in boxes] == sorted(box["x"] for box in boxes)
        lines += [box["y"] for box in boxes]
        expect(picture.locator(".edge")).to_have_count(2 * len(traced.tree.order))
    # all words are on one line
    assert lines == pytest.approx([lines[0]] * len(lines), abs=1)
    # fewer requests than letters
    assert sum(one.url.endswith("/api/parse") for one in visit.requests) < 2 * len(FOOD)
    expect(page.locator("#live")).to_contain_text(f"sst2-100d: {trace(sst, FOOD).tree}. ")


def test_prediction_of_a_sentence_and_of_a_pair(visit, sst, snli):
    page = visit.open(text=BOY)
    for name, model, second in (("sst2-100d", sst, None), ("snli-100d", snli, "A child .")):
        verdict = card(page, name).locator(".verdict")
        if second:
            expect(verdict).to_contain_text("second sentence")
            page.get_by_label("Second sentence").fill(second)
        (prediction,) = model.predict([BOY], second and [second])
        expect(verdict.locator(".answer")).to_have_text(prediction.label)
        expect_bars(verdict, prediction.probabilities)
    expect_tree(tree(page, "snli-100d", 1), trace(snli, "A child ."))
    # the second field is hidden without a pair model
    page.get_by_role("checkbox", name="snli-100d").uncheck()
    expect(page.get_by_label("Second sentence")).to_be_hidden()
    expect(page.get_by_role("article")).to_have_count(1)


def test_slider_steps_through_the_candidates(visit, sst):
    page = visit.open(text=FOOD, model="sst2-100d")
    traced, picture = trace(sst, FOOD), tree(page, "sst2-100d")
    expect_tree(picture, traced)
    slider = page.get_by_role("slider", name="Completed merges")
    slider.focus()
    slider.press("Home")
    present = [(i, i + 1) for i in range(len(traced.tree.words))]
    for step, layer in enumerate(traced.layers):
        expect(slider).to_have_attribute("aria-valuetext", f"{step} of 6 merges")
        assert len(visible_phrases(page, "sst2-100d")) == step
        gaps = [end for _, end in present][:-1]
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
            role = {layer.choice: "choice", layer.runner_up: "second"}.get(j, "")
            assert bars[gap - 1]["role"] == role
            height = max(0.02, layer.probabilities[j] / most)
            assert bars[gap - 1]["height"] == pytest.approx(height, abs=1e-3)
        value = float(picture.locator(".value.choice").text_content().strip("%"))
        assert value == pytest.approx(100 * layer.probabilities[layer.choice], abs=0.51)
        at = layer.choice
        present[at : at + 2] = [(present[at][0], present[at + 1][1])]
        slider.press("ArrowRight")
    expect(page.locator("#step-value")).to_have_text("all 6 merges")
    assert visible_phrases(page, "sst2-100d") == phrases(traced)
    page.get_by_role("button", name="Previous merge").click()
    expect(page.locator("#step-value")).to_have_text("5 of 6 merges")


def test_play_runs_to_the_end(visit):
    page = visit.open(text="not good .", model="sst2-100d")
    expect(page.locator("#step-value")).to_have_text("all 2 merges")
    page.get_by_role("button", name="Play", exact=True).click()
    expect(page.locator("#step-value")).to_have_text("0 of 2 merges")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    expect(page.locator("#step-value")).to_have_text("all 2 merges")
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()


def test_hovering_shows_a_node(visit, sst):
    page = visit.open(text=FOOD)
    traced, picture = trace(sst, FOOD), tree(page, "sst2-100d")
    expect_tree(picture, traced)
    number = len(traced.tree.words)
    node = traced.nodes[number]
    panel = card(page, "sst2-100d").get_by_role("region", name="Node of sst2-100d")
    expect(panel.locator(".phrase")).to_have_text(" ".join(traced.tree.words))
    picture.locator(".node").nth(number).hover()
    phrase = " ".join(traced.tree.words[slice(*node.span)])
    expect(panel.locator(".phrase")).to_have_text(phrase)
    expect(panel.locator(".facts")).to_contain_text("1 of 6")
    expect(panel.locator(".facts")).to_contain_text(f"{node.score:.2f}".replace("-", "\u2212"))
    expect_bars(panel, node.classes)
    expect(panel.locator(".neighbours li")).to_have_count(5)
    # the other card highlights the same words
    echoes = tree(page, "snli-100d").locator(".word.echo text")
    assert echoes.all_text_contents() == phrase.split()
    page.locator("h1").hover()
    expect(panel.locator(".phrase")).to_have_text(" ".join(traced.tree.words))
    expect(echoes).to_have_count(0)


def test_whole_sentences_are_searched_in_an_index(browser, sst, tmp_path):
    texts = ["a good film .", "a bad film .", "the cat sat down ."]
    index = Index.build(tmp_path / "index", sst, texts)
    with serving({"sst2-100d": sst}, indexes={"sst2-100d": index}) as address:
        visit = Visit(browser, address)
        page = visit.open(text="a good movie .")
        near = card(page, "sst2-100d").locator(".near-part")
        expect(near.get_by_role("heading")).to_have_text("Nearest sentences")
        expect(near.locator("li")).to_have_count(3)
        rows, scores = index.search(sst.encode(["a good movie ."]), 3)
        for item, row, score in zip(near.locator("li").all(), rows[0], scores[0], strict=True):
            expect(item).to_have_text(f"{texts[row]}{score:.2f}".replace("-", "\u2212"))
        tree(page, "sst2-100d").locator(".word").first.hover()
        expect(near.get_by_role("heading")).to_have_text("Nearest phrases")
        visit.close()


def expect_no_bars(picture):
    heights = "all => all.map(one => one.style.transform)"
    assert set(picture.locator(".bar").evaluate_all(heights)) == {"scaleY(0)"}
    assert set(picture.locator(".value").all_text_contents()) == {""}
    expect(picture.locator(".second")).to_have_count(0)


def test_fixed_trees_have_no_scores(browser, sst):
    text = "the dog sleeps now ."
    fixed, pairs = tiny_model("single", trees="left"), tiny_model("pair", trees="random")
    models = {"fixed": fixed, "pairs": pairs}
    with serving({"sst2-100d": sst, **models}) as address:
        visit = Visit(browser, address)
        page = visit.open(text=text, second="not one dog .", model=list(models), heat=1)
        for name, model in models.items():
            traced, own, picture = trace(model, text), card(page, name), tree(page, name)
            expect_tree(picture, traced)
            expect(own.locator(".note")).to_contain_text(f"fixed ({traced.trees})")
            expect(own.locator(".facts")).to_have_text(f"merge4 of 4treefixed ({traced.trees})")
            expect(own.locator(".legend")).to_have_text("" if name == "pairs" else "badgood")
            own.get_by_text("Merges as a table").click()
            expect(own.locator("details thead").first).to_have_text("MergeLeftRight")
            # labels contain the class of a node, but not the probability of the merge
            classes = "" if name == "pairs" else r", (bad|good) [<>]?[\d.]+%"
            for number, phrase in enumerate(phrases(traced)):
                label = re.compile(rf"^merge {number + 1}: {re.escape(phrase)}{classes}$")
                expect(picture.locator(".merge").nth(number)).to_have_attribute("aria-label", label)
            assert sorted(picture.locator(".rank").all_text_contents()) == ["1", "2", "3", "4"]
            expect_no_bars(picture)
        # stepping still works
        page.get_by_role("button", name="Only the words").click()
        page.get_by_role("button", name="Next merge").click()
        expect(page.locator("#step-value")).to_have_text("1 of 4 merges")
        for name in models:
            assert len(visible_phrases(page, name)) == 1
            expect(tree(page, name).locator(".rank.choice")).to_have_text("next")
            expect_no_bars(tree(page, name))
        page.get_by_role("button", name="Whole tree").click()
        # a seed changes random trees only
        page.get_by_role("switch", name="Sample").check()
        expect_tree(tree(page, "pairs"), trace(pairs, text, seed=1))
        expect_tree(tree(page, "fixed"), trace(fixed, text))
        expect(card(page, "pairs").locator(".verdict")).to_contain_text("not the sampled")
        expect(card(page, "fixed").locator(".verdict")).not_to_contain_text("not the sampled")
        # heat maps are neither offered nor requested
        expect(page.get_by_role("switch", name="Heat map of spans")).to_be_hidden()
        assert not any('"samples":100' in (one.post_data or "") for one in visit.requests)
        page.get_by_role("checkbox", name="sst2-100d").check()
        expect(page.get_by_role("switch", name="Heat map of spans")).to_be_visible()
        expect(card(page, "sst2-100d").locator("svg.heat")).to_have_count(1)
        expect(page.locator("svg.heat")).to_have_count(1)
        visit.close()


def test_keyboard_navigation(visit, sst):
    page = visit.open(text="not a good film .", model="sst2-100d")
    traced = trace(sst, "not a good film .")
    expect_tree(tree(page, "sst2-100d"), traced)
    page.get_by_role("button", name="Download everything as JSON of sst2-100d").focus()
    seen = []
    for _ in traced.nodes:
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.getAttribute('aria-label')"))
    assert [re.sub(r"^(word|merge \d+): |, .*$", "", label) for label in seen] == [
        " ".join(traced.tree.words[slice(*node.span)]) for node in traced.nodes
    ]
    focused = page.locator(".node:focus")
    ring = focused.locator(".ring").evaluate("one => getComputedStyle(one).stroke")
    assert ring == "rgb(0, 114, 178)"
    page.keyboard.press("ArrowDown")
    expect(focused).to_have_attribute("aria-label", seen[traced.nodes[-1].children[0]])
    page.keyboard.press("ArrowUp")
    expect(focused).to_have_attribute("aria-label", seen[-1])
    page.keyboard.press("Enter")
    expect(focused).to_have_attribute("aria-pressed", "true")
    expect(page).to_have_url(re.compile("node="))
    assert parse_qs(urlsplit(page.url).fragment)["node"] == ["0:0:5:sst2-100d"]
    # stepping back hides the root, and the focus moves to a visible node
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#step-value")).to_have_text("2 of 4 merges")
    assert "later" not in focused.get_attribute("class")
    page.keyboard.press("Escape")
    expect(page).not_to_have_url(re.compile("node="))


def test_sampling_uses_seed_and_temperature(visit, snli):
    page = visit.open(text=BOY, model="snli-100d", temperature=2)
    picture = tree(page, "snli-100d")
    best = trace(snli, BOY)
    expect_tree(picture, best)
    page.get_by_role("switch", name="Sample").check()
    expect_tree(picture, trace(snli, BOY, seed=1, temperature=2.0))
    page.get_by_role("button", name="Resample").click()
    second = trace(snli, BOY, seed=2, temperature=2.0)
    assert second.tree != best.tree
    expect_tree(picture, second)
    assert page.get_by_label("Seed").input_value() == "2"
    page.get_by_role("slider", name="Temperature").press("Home")
    expect_tree(picture, trace(snli, BOY, seed=2, temperature=0.1))
    expect(page).to_have_url(re.compile("temperature=0.1"))
    page.get_by_role("switch", name="Sample").uncheck()
    expect_tree(picture, best)


def test_heat_map_of_spans(visit, snli):
    page = visit.open(text=BOY, model="snli-100d")
    page.get_by_role("switch", name="Heat map of spans").check()
    chart = card(page, "snli-100d").locator("svg.heat")
    best, spans = span_probabilities(snli, BOY, samples=100)
    expect(chart.locator(".cell")).to_have_count(len(spans))
    expect(chart.locator(".greedy")).to_have_count(len(best.order))
    panel = card(page, "snli-100d").get_by_role("region", name="Span probabilities")
    panel.locator("summary").click()
    rows = panel.locator("tbody tr")
    expect(rows).to_have_count(len(spans))
    shown = {tuple(row.split("\t")[:2]) for row in rows.all_inner_texts()}
    (start, end), p = max(spans.items(), key=lambda item: (item[1] < 1, item[1]))
    assert (" ".join(best.words[start:end]), f"{round(100 * p)}%") in shown
    assert (" ".join(best.words), "100%") in shown
    chart.locator(".cell").last.hover(force=True)
    expect(panel.locator(".say")).to_contain_text("of 100 sampled trees")


# links, downloads and input


def test_a_link_restores_the_view(visit, browser, address):
    page = visit.open(text=FOOD)
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    sentence(page).fill("Nobody & nothing = 100% #good + bad?")
    page.get_by_label("Second sentence").fill("It is bad .")
    page.get_by_role("switch", name="Sample").check()
    page.get_by_label("Seed").fill("77")
    page.get_by_label("Seed").press("Enter")
    page.get_by_role("switch", name="Heat map of spans").check()
    page.get_by_role("slider", name="Temperature").press("ArrowRight")
    expect(card(page, "sst2-100d").locator("svg.heat")).to_be_visible()
    page.get_by_role("slider", name="Completed merges").fill("3")
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
    # either page may still be waiting for responses
    for _ in range(TIMEOUT // 100):
        before, after = page.evaluate(state), other.page.evaluate(state)
        if before == after:
            break
        page.wait_for_timeout(100)
    assert len(before["trees"]) > 20
    assert before["charts"] > 20
    assert after == before
    other.close()


def test_invalid_parts_of_a_link_are_ignored(visit):
    invalid = {"step": "x", "seed": "-1", "temperature": "-3", "node": "?"}
    page = visit.open(text="good .", model="no-such-model", **invalid)
    expect(page.locator("svg.tree")).to_have_count(2)
    expect(page.locator("#step-value")).to_have_text("all 1 merge")
    page = visit.open(text="good .", step=99, temperature="1e9", node="1:5:9:sst2-100d")
    expect(page.locator("svg.tree")).to_have_count(2)
    assert page.locator("#temperature-value").text_content() == "10"


def test_downloads(visit, sst, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    page = visit.open(text=FOOD, model="sst2-100d")
    traced = trace(sst, FOOD)
    expect_tree(tree(page, "sst2-100d"), traced)
    brackets = save(page, "the trees as brackets", tmp_path)
    assert brackets.stem == "sst2-100d-The-food-was-good"
    assert brackets.read_text(encoding="utf-8") == f"{traced.tree}\n"
    content = json.loads(save(page, "everything as JSON", tmp_path).read_text(encoding="utf-8"))
    assert content["model"] == "sst2-100d"
    assert content["results"][0]["brackets"] == str(traced.tree)
    # pictures do not depend on the page's style sheet
    drawn = save(page, "the picture as SVG", tmp_path).read_text(encoding="utf-8")
    assert "var(" not in drawn
    assert "class=" not in drawn
    root = ElementTree.fromstring(drawn)
    texts = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if text in traced.tree.words] == list(traced.tree.words)
    picture = image.imread(save(page, "the picture as PNG", tmp_path))
    assert picture.shape[:2] == (2 * int(root.get("height")), 2 * int(root.get("width")))
    colours = (255 * picture[..., :3]).round().astype(int).reshape(-1, 3)
    assert np.all(np.median(colours, axis=0) == 255)
    for ink in ([34, 37, 43], [169, 173, 181]):
        assert np.all(colours == ink, axis=1).sum() > 100, "letters and lines"


def test_saves_valid_xml_for_any_text(visit, tmp_path):
    page = visit.open(text="a go\x01od film\ufffe .", model="sst2-100d")
    expect(tree(page, "sst2-100d").locator(".node").first).to_be_visible()
    root = ElementTree.parse(save(page, "the picture as SVG", tmp_path)).getroot()
    assert "go\ufffdod" in " ".join(root.itertext())


def test_downloads_are_disabled_until_there_is_a_tree(visit):
    page, held = visit.page, []
    page.on("download", lambda file: pytest.fail("saved"))
    page.route("**/api/parse", lambda route: held.append(route))
    visit.open(text=FOOD, model="sst2-100d")
    buttons = card(page, "sst2-100d").get_by_role("button", name="Download")
    expect(buttons).to_have_count(4)
    for button in buttons.all():
        expect(button).to_have_attribute("aria-disabled", "true")
        page.evaluate("document.getElementById('toast').textContent = ''")
        button.press("Enter")
        expect(page.locator("#toast[role=status].shown")).to_have_text("No tree yet")
    while not held:
        page.wait_for_timeout(20)
    for route in held:
        route.continue_()
    expect(page.locator("svg.tree")).to_have_count(1)
    for button in buttons.all():
        expect(button).to_have_attribute("aria-disabled", "false")


def test_markup_is_shown_as_text(visit):
    text = "<script>window.ran=1</script> <img src=x onerror=window.ran=1> <b>good</b>"
    page = visit.open(text="good .")
    expect(page.locator("svg.tree")).to_have_count(2)

    def inject(route):
        """Respond like a tokenizer that does not split markup."""
        content = route.fetch().json()
        for result in content["results"]:
            result["words"][:3] = text.split(" ", 3)[:3]
            result["brackets"] = text
        route.fulfill(json=content)

    neighbours = {"source": "phrases", "neighbours": [{"text": text, "score": 0.5}]}
    page.route("**/api/parse", inject)
    page.route("**/api/neighbours", lambda route: route.fulfill(json=neighbours))
    sentence(page).fill(text)
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


def test_long_texts_are_truncated(visit):
    page = visit.open(text="good " * 130, model="sst2-100d")
    expect(page.locator("#cut")).to_contain_text("128 words")
    words = tree(page, "sst2-100d").locator(".word")
    expect(words).to_have_count(128)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    expect(page.locator("#live")).to_contain_text("128 words")
    sentence(page).fill("x" * 3000)
    expect(words).to_have_count(1)


@pytest.mark.slow
def test_500_words_stay_responsive(visit):
    page = visit.open(text="good .")
    began = time.monotonic()
    sentence(page).fill(" ".join(["the", "cat", "sat", "well", "."] * 100))
    expect(tree(page, "sst2-100d").locator(".word")).to_have_count(128)
    assert time.monotonic() - began < 8
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


def test_hints_without_a_sentence_or_a_model(visit):
    page = visit.open(text="good .", model="sst2-100d")
    expect(page.locator("svg.tree")).to_have_count(1)
    sentence(page).fill("   ")
    expect(page.locator("#hint")).to_contain_text("Type a sentence")
    expect(page.locator("#cards")).to_be_hidden()
    expect(page.locator("#live")).to_contain_text("Type a sentence")
    sentence(page).fill("good .")
    expect(page.locator("svg.tree")).to_have_count(1)
    expect(page.locator("#hint")).to_be_hidden()
    page.get_by_role("checkbox", name="sst2-100d").uncheck()
    expect(page.locator("#hint")).to_contain_text("at least one model")


def test_examples_can_be_picked(visit):
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


def test_examples_are_unique_and_grouped():
    path = Path(gumbeltree.__file__).parent / "web" / "examples.json"
    examples = json.loads(path.read_text(encoding="utf-8"))
    sentences, pairs = examples["sentences"], examples["pairs"]
    assert len(sentences) == len(set(sentences))
    assert len(sentences) == sum(group["count"] for group in examples["groups"])
    assert len(pairs) == len(set(map(tuple, pairs)))


# the server


def test_retries_when_the_server_is_busy(browser, address, sst):
    visit = Visit(browser, address)
    page = visit.open(text="good .", model="sst2-100d")
    expect(page.locator("svg.tree")).to_have_count(1)
    refused = []

    def refuse_once(route):
        if refused:
            route.continue_()
        else:
            refused.append(route)
            route.fulfill(status=503, headers={"Retry-After": "1"}, json={"detail": "busy"})

    page.route("**/api/parse", refuse_once)
    sentence(page).fill("very bad .")
    expect_tree(tree(page, "sst2-100d"), trace(sst, "very bad ."))
    assert len(refused) == 1
    expect(page.locator("#away")).to_be_hidden()
    visit.close("503")


def test_errors_are_shown_on_the_card(browser, address):
    visit = Visit(browser, address)
    page = visit.open(text="good .", model="sst2-100d")
    expect(page.locator("svg.tree")).to_have_count(1)
    error = {"detail": "texts.0: <b>no</b>"}
    page.route("**/api/parse", lambda route: route.fulfill(status=422, json=error))
    sentence(page).fill("very bad .")
    expect(card(page, "sst2-100d").locator(".hint")).to_have_text("texts.0: <b>no</b>")
    expect(page.locator("svg.tree")).to_have_count(0)
    page.unroute("**/api/parse")
    sentence(page).fill("very good .")
    expect(page.locator("svg.tree")).to_have_count(1)
    visit.close("422")


def test_late_responses_are_dropped(visit, sst):
    page = visit.open(text="good .", model="sst2-100d")
    expect(page.locator("svg.tree")).to_have_count(1)
    late = []

    def hold(route):
        if "slow" in (route.request.post_data or ""):
            late.append(route)
        else:
            route.continue_()

    page.route("**/api/parse", hold)
    sentence(page).fill("a slow one .")
    while not late:
        page.wait_for_timeout(20)
    sentence(page).fill("a fast one .")
    expect_tree(tree(page, "sst2-100d"), trace(sst, "a fast one ."))
    late[0].fulfill(json={"results": []})
    page.wait_for_timeout(200)
    expect_tree(tree(page, "sst2-100d"), trace(sst, "a fast one ."))


def test_reconnects_to_a_restarted_server(browser, sst):
    with serving({"sst2-100d": sst}) as address:
        visit = Visit(browser, address)
        page = visit.open(text="good .")
        expect(page.locator("svg.tree")).to_have_count(1)
        expect(page.locator("#away")).to_be_hidden()
    sentence(page).fill("not very good .")
    expect(page.locator("#away")).to_contain_text("not responding")
    expect_tree(tree(page, "sst2-100d"), trace(sst, "good ."))
    with serving({"sst2-100d": sst}, urlsplit(address).port):
        expect(page.locator("#away")).to_be_hidden()
        expect_tree(tree(page, "sst2-100d"), trace(sst, "not very good ."))
        visit.close("ERR_CONNECTION")


# themes, phones and accessibility


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_theme_follows_the_system_and_the_button(browser, address, scheme):
    visit = Visit(browser, address, color_scheme=scheme)
    page = visit.open(text="good .", model="sst2-100d")

    def is_light():
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3])) > 3 * 128

    assert is_light() == (scheme == "light")
    button = page.get_by_role("button", name="Dark theme")
    expect(button).to_have_attribute("aria-pressed", str(scheme == "dark").lower())
    button.click()
    assert is_light() == (scheme == "dark")
    page.reload()
    expect(page.locator("svg.tree")).to_have_count(1)
    assert is_light() == (scheme == "dark")
    visit.close()


SLOW = pytest.mark.slow


@pytest.mark.parametrize("words", [13, *(pytest.param(n, marks=SLOW) for n in (1, 128))])
def test_phones_do_not_scroll_sideways(browser, address, words):
    size = {"width": 360, "height": 740}
    visit = Visit(browser, address, viewport=size, is_mobile=True, reduced_motion="reduce")
    cycle = ["the", "boy", "in", "a", "wonderfulextraordinarilylongword", "coat", "sees"]
    text = " ".join(cycle[i % 7] for i in range(words))
    page = visit.open(text=text, second="A child .", heat=1, step=min(3, words - 1))
    expect(page.locator("svg.heat")).to_have_count(3)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    duration = page.locator("svg.tree .node").first.evaluate(
        "one => getComputedStyle(one).transitionDuration"
    )
    assert set(duration.split(", ")) == {"0s"}
    visit.close()


def test_every_control_has_a_name(visit):
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
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(one => one.id)")
    assert len(ids) == len(set(ids))
    assert page.get_by_role("heading", level=1).count() == 1


def test_numbers_and_tags(browser):
    kinds = ("single_number", "single_bins", "single_tags", "pair_number", "pair_tags")
    models = {kind: tiny_model(kind) for kind in kinds}
    first, second = "the dog sleeps now .", "one dog"
    with serving(models) as address:
        visit = Visit(browser, address)
        page = visit.open(text=first, second=second, model=kinds)
        for kind, model in models.items():
            (answer,) = model.predict([(first, second)] if kind.startswith("pair") else [first])
            shown = card(page, kind).locator(".verdict .answer")
            if hasattr(answer, "value"):
                expect(shown).to_have_text(f"value {answer.value:.4f}")
            else:
                expect(shown).to_contain_text(answer.labels[0] if answer.labels else "no tags")
        visit.close()
