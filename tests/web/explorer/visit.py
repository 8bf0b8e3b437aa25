"""Visits to the explorer's page in a browser."""

import re
import shutil
import socket
import threading
import time
from contextlib import contextmanager
from urllib.parse import urlencode

import pytest

pytest.importorskip("fastapi", reason="the server needs gumbeltree[web]")
playwright = pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
CHROMIUM = shutil.which("chromium")
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="browser tests need chromium on the path"
)
expect = playwright.expect
# long, so that a busy machine does not fail the tests
TIMEOUT = 60_000
expect.set_options(timeout=TIMEOUT)

FOOD = "The food was good but slow ."
BOY = "A boy in a red coat is feeding pigeons ."
BOTH = ["sst2-100d", "snli-100d"]


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
        # requests that are still under way have no one to answer them
        self.page.unroute_all(behavior="ignoreErrors")
        self.context.close()
        assert [text for text in self.problems if not expected or expected not in text] == []
        own = (self.address, f"blob:{self.address}", "about:blank")
        assert [one.url for one in self.requests if not one.url.startswith(own)] == []


def wait_until(page, condition):
    """Wait for something that the page does not show, such as a request."""
    late = time.monotonic() + TIMEOUT / 1000
    while not condition():
        assert time.monotonic() < late
        page.wait_for_timeout(20)


def expect_idle(page):
    """Expect no card to wait for its trees, so that none is about to be replaced."""
    expect(page.locator(".card.waiting")).to_have_count(0)


def open_settings(page):
    page.get_by_role("button", name="Settings").click()


def decimal(value):
    """Return a number as the page shows it."""
    return f"{value:z.2f}".replace("-", "\u2212")


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
    more = r"(, lead [\u2212.\d]+)?(, against the scores)?(, a near tie)?(, \w+ [<>]?[\d.]+%)?$"
    return [re.sub(rf"^merge \d+: |{more}", "", label) for label in labels]


def phrases(traced):
    return [" ".join(traced.tree.words[a:b]) for a, b in traced.tree.spans]


def save(page, name, folder):
    """Click a download button and return the file."""
    with page.expect_download() as waiting:
        page.get_by_role("button", name=f"Download {name}").click()
    file = folder / waiting.value.suggested_filename
    waiting.value.save_as(file)
    return file


def expect_no_bars(picture):
    heights = "all => all.map(one => one.style.transform)"
    assert set(picture.locator(".bar").evaluate_all(heights)) == {"scaleY(0)"}
    assert set(picture.locator(".value").all_text_contents()) == {""}
    expect(picture.locator(".second")).to_have_count(0)
