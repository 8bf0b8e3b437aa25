"""The view for notebooks, as HTML and in a browser."""

import re
import shutil
from html import unescape

import pytest

from gumbeltree.analysis.film import MOST_WORDS
from gumbeltree.analysis.steps import step_view
from gumbeltree.tree import Tree
from tests.analysis.traces import made_trace, random_trace

HAND = made_trace("a b c d", [2, 0, 0], [[0.0, 0.2, 0.3], [1.0, 0.0], [-1.0]])


def page_of(html):
    """Return the document inside the only iframe of a view."""
    (page,) = re.findall(r'<iframe [^>]* srcdoc="([^"]*)"></iframe>', html)
    return unescape(page)


def test_the_view_is_sandboxed_and_self_contained():
    html = HAND._repr_html_()
    assert html == step_view([("", HAND)])
    assert re.findall(r'sandbox="([^"]*)"', html) == ["allow-scripts"]
    page = page_of(html)
    assert "default-src 'none'" in page
    # the only address is the name of SVG's namespace
    assert set(re.findall(r"\w+://[^\s\"<]*", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.findall(r"\b(?:src|href)=", page)


def test_the_view_escapes_any_text():
    evil = ['"></iframe><script>alert(1)</script>', "</svg><img/src=x/onerror=y>", "&quot;", "\x00"]
    traced = made_trace(evil, Tree.left_branching(evil).order, unknown=(True,) * 4)
    html = step_view([('"><script>', traced)])
    assert html.count("<") == 2
    page = page_of(html)
    assert page.count("<script>") == page.count("</script>") == 1
    assert "<img" not in page
    assert "\x00" not in html


def test_trees_without_choices_have_no_slider():
    for traced in (
        made_trace("a b c", [0, 0], trees="left"),
        made_trace("alone", []),
        random_trace(MOST_WORDS + 1),
    ):
        page = page_of(traced._repr_html_())
        assert "<svg" in page
        assert "<script" not in page
        assert "<input" not in page


CHROMIUM = shutil.which("chromium")


@pytest.mark.skipif(CHROMIUM is None, reason="browser tests need chromium on the path")
def test_steps_and_hovers_in_a_browser(tmp_path):
    playwright = pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
    expect = playwright.expect
    expect.set_options(timeout=60_000)
    (tmp_path / "view.html").write_text(step_view([("m", HAND)]), encoding="utf-8")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 800, "height": 800})
        requests, problems = [], []
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto((tmp_path / "view.html").as_uri())
        view = page.frame_locator("iframe")
        status, about = view.locator("p").first, view.locator("p").last
        circles = view.locator("circle:visible")
        expect(status).to_have_text("The finished tree")
        expect(circles).to_have_count(3)
        slider = view.get_by_role("slider", name="Step")
        slider.press("Home")
        expect(status).to_have_text("Step 1 of 3")
        expect(circles).to_have_count(0)
        expect(view.get_by_text("lead 0.10, near tie")).to_be_visible()
        view.get_by_role("button", name="Next").click()
        expect(status).to_have_text("Step 2 of 3")
        expect(slider).to_have_attribute("aria-valuetext", "Step 2 of 3")
        expect(circles).to_have_count(1)
        expect(view.get_by_text("lead 0.10, near tie")).to_be_hidden()
        circles.first.hover(force=True)
        expect(about).to_contain_text("merge 1: c d · lead 0.10 over b c, a near tie")
        status.hover()
        expect(about).to_have_text("Point at a circle to read about its merge.")
        # the view fits into its frame
        inside = view.locator("html").evaluate("e => [e.scrollHeight, e.clientHeight]")
        assert inside[0] <= inside[1]
        # and cannot reach the page around it
        reach = "() => { try { return parent.document.title } catch { return 'denied' } }"
        assert view.locator("html").evaluate(reach) == "denied"
        browser.close()
    assert problems == []
    assert [url for url in requests if not url.startswith(("file:", "about:"))] == []
