"""Screens, themes, keyboards and assistive technology."""

import re
from urllib.parse import parse_qs, urlsplit

import pytest

from gumbeltree.analysis.trace import trace
from tests.web.explorer.visit import (
    BOTH,
    BOY,
    FOOD,
    Visit,
    card,
    expect,
    expect_tree,
    needs_browser,
    sentence,
    serving,
    tree,
)

pytestmark = needs_browser


def test_a_tree_is_one_tab_stop(visit, sst):
    page = visit.open(text="not a good film .", model="sst2-100d")
    traced, picture = trace(sst, "not a good film ."), tree(page, "sst2-100d")
    expect_tree(picture, traced)
    labels = picture.locator(".node").evaluate_all(
        "all => all.map(one => one.getAttribute('aria-label'))"
    )
    assert [re.sub(r"^(word|merge \d+): |, .*$", "", label) for label in labels] == [
        " ".join(traced.tree.words[slice(*node.span)]) for node in traced.nodes
    ]
    stops = "[...document.querySelectorAll('svg [tabindex=\"0\"]')].length"
    assert page.evaluate(stops) == 1
    page.get_by_role("slider", name="Completed merges").press("Tab")
    focused = page.locator(".node:focus")
    root, words = len(traced.nodes) - 1, len(traced.tree.words)
    expect(focused).to_have_attribute("aria-label", labels[root])
    expect(focused.locator(".ring")).to_have_css("stroke", "rgb(0, 114, 178)")
    keys = {
        "ArrowDown": traced.nodes[root].children[0],
        "ArrowUp": root,
        "ArrowLeft": root - 1,
        "ArrowRight": root,
        "Home": 0,
        "End": root,
    }
    for pressed, number in keys.items():
        page.keyboard.press(pressed)
        expect(focused).to_have_attribute("aria-label", labels[number])
    page.keyboard.press("Home")
    for number in (1, 2):
        page.keyboard.press("ArrowRight")
        expect(focused).to_have_attribute("aria-label", labels[number])
    # the tree keeps its place
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    expect(focused).to_have_attribute("aria-label", labels[2])
    assert page.evaluate(stops) == 1
    levels = picture.locator(".node").evaluate_all(
        "all => all.map(one => +one.getAttribute('aria-level'))"
    )
    for number, node in enumerate(traced.nodes[words:], words):
        assert {levels[child] for child in node.children} == {levels[number] + 1}
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    expect(focused).to_have_attribute("aria-selected", "true")
    expect(page).to_have_url(re.compile("node="))
    assert parse_qs(urlsplit(page.url).fragment)["node"] == ["0:0:5:sst2-100d"]
    page.keyboard.press("Escape")
    expect(page).not_to_have_url(re.compile("node="))
    # stepping back hides the root, and the tab stop moves to a visible node
    page.get_by_role("slider", name="Completed merges").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#step-value")).to_have_text("merge 3 of 4")
    page.keyboard.press("Tab")
    expect(focused).to_have_class(re.compile("next"))


def test_delete_drops_the_focused_word(visit, sst):
    page = visit.open(text="it is not good .", model="sst2-100d")
    expect_tree(tree(page, "sst2-100d"), trace(sst, "it is not good ."))
    tree(page, "sst2-100d").locator(".word").nth(2).focus()
    page.keyboard.press("Delete")
    expect(sentence(page)).to_have_value("it is good .")
    expect_tree(tree(page, "sst2-100d"), trace(sst, "it is good ."))
    # the focus stays at the place of the word, also when the trees to compare with arrive
    focused = page.locator(".node:focus")
    expect(tree(page, "sst2-100d", 1)).to_be_visible()
    expect(focused).to_have_attribute("aria-label", re.compile("word: good"))
    expect(focused).to_have_attribute("tabindex", "0")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Delete")
    expect_tree(tree(page, "sst2-100d"), trace(sst, "it is good"))
    expect(focused).to_have_attribute("aria-label", re.compile("word: good"))
    # merges cannot be dropped
    page.keyboard.press("End")
    page.keyboard.press("Delete")
    expect(sentence(page)).to_have_value("it is good")


def test_the_focus_stays_at_a_word_that_is_replaced(visit, sst):
    page = visit.open(text="it is not good .", model="sst2-100d")
    expect_tree(tree(page, "sst2-100d"), trace(sst, "it is not good ."))
    # slow enough for the tree to be removed meanwhile
    page.route("**/api/parse", lambda route: (page.wait_for_timeout(900), route.continue_()))
    tree(page, "sst2-100d").locator(".word").nth(3).focus()
    page.keyboard.press("Enter")
    page.get_by_label("Replace good with").fill("very bad")
    page.keyboard.press("Enter")
    expect_tree(tree(page, "sst2-100d"), trace(sst, "it is not very bad ."))
    focused = page.locator(".node:focus")
    expect(focused).to_have_attribute("aria-label", re.compile("word: very"))
    # a reader who goes on elsewhere keeps the focus there
    page.keyboard.press("Delete")
    sentence(page).focus()
    expect_tree(tree(page, "sst2-100d"), trace(sst, "it is not bad ."))
    expect(tree(page, "sst2-100d", 1)).to_be_visible()
    expect(sentence(page)).to_be_focused()


@pytest.mark.parametrize("screen", ["laptop", "phone"])
def test_the_first_view_is_complete_and_above_the_fold(browser, address, screen):
    options = {
        "laptop": {"viewport": {"width": 1366, "height": 768}},
        "phone": {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True},
    }[screen]
    visit = Visit(browser, address, **options)
    visit.page.add_init_script(
        """window.shift = 0;
           new PerformanceObserver((list) => {
             for (const one of list.getEntries()) if (!one.hadRecentInput) shift += one.value;
           }).observe({ type: "layout-shift", buffered: true });"""
    )
    page = visit.open()
    picture = page.locator("svg.tree")
    expect(picture).to_have_count(1)
    expect(page.locator(".neighbours li").first).to_be_visible()
    words = picture.locator(".word text").last.bounding_box()
    assert words["y"] + words["height"] < options["viewport"]["height"]
    # a prediction on every card, one sentence of explanation, settings closed
    expect(page.locator("article .answer")).to_have_count(page.get_by_role("article").count())
    expect(page.get_by_role("banner").locator("p")).to_be_visible()
    expect(page.get_by_role("switch")).to_have_count(0)
    expect(page.get_by_role("textbox")).to_have_count(1)
    expect(page.get_by_role("button", name="Second sentence")).to_be_visible()
    assert page.evaluate("shift") < 0.1
    assert page.evaluate(SMALL) == []
    visit.close()


def test_the_first_view_of_a_pair_model_is_complete(browser, snli):
    with serving({"snli-100d": snli}) as address:
        visit = Visit(browser, address)
        page = visit.open()
        expect(page.locator("svg.tree")).to_have_count(2)
        expect(card(page, "snli-100d").locator(".answer")).to_be_visible()
        expect(page.get_by_role("textbox", name="Second sentence")).not_to_have_value("")
        # a single model cannot be compared with another one
        page.get_by_role("button", name="Settings").click()
        expect(page.locator("#against option[value=models]")).to_be_disabled()
        page = visit.open(text="good .", second="bad .", against="models")
        said = card(page, "snli-100d").locator(".compared")
        expect(said).to_have_text("There is no other model to compare with.")
        visit.close()


# controls whose area is smaller than 24 by 24 pixels
SMALL = """() => [...document.querySelectorAll(
  'button, input, select, textarea, summary, [role=treeitem]')]
  .filter(one => one.checkVisibility() && !one.closest('.unseen'))
  .map(one => [one, one.getBoundingClientRect()])
  .filter(([, box]) => Math.min(box.width, box.height) < 23.9)
  .map(([one]) => one.outerHTML.slice(0, 120))"""


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_theme_follows_the_system_and_the_button(browser, address, scheme):
    visit = Visit(browser, address, color_scheme=scheme)
    page = visit.open(text="good .", model="sst2-100d")

    def expect_light(light):
        page.wait_for_function(
            """light => {
                 const colour = getComputedStyle(document.body).backgroundColor;
                 const parts = colour.match(/\\d+/g).slice(0, 3).map(Number);
                 return parts.reduce((a, b) => a + b) > 3 * 128 === light;
               }""",
            arg=light,
        )

    expect_light(scheme == "light")
    button = page.get_by_role("button", name="Dark theme")
    expect(button).to_have_attribute("aria-pressed", str(scheme == "dark").lower())
    button.click()
    expect_light(scheme == "dark")
    page.reload()
    expect(page.locator("svg.tree")).to_have_count(1)
    expect_light(scheme == "dark")
    visit.close()


@pytest.mark.parametrize(
    "words", [13, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 128))]
)
def test_phones_do_not_scroll_sideways(browser, address, words):
    size = {"width": 360, "height": 740}
    visit = Visit(browser, address, viewport=size, is_mobile=True, reduced_motion="reduce")
    cycle = ["the", "boy", "in", "a", "wonderfulextraordinarilylongword", "coat", "sees"]
    text = " ".join(cycle[i % 7] for i in range(words))
    view = {"text": text, "second": "A child .", "model": BOTH}
    page = visit.open(heat=1, step=min(3, words - 1), **view)
    # one word has only one tree
    expect(page.locator("svg.heat")).to_have_count(3 if words > 1 else 2)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    duration = page.locator("svg.tree .node").first.evaluate(
        "one => getComputedStyle(one).transitionDuration"
    )
    assert set(duration.split(", ")) == {"0s"}
    visit.close()


def test_every_control_has_a_name(visit):
    page = visit.open(text=FOOD, second=BOY, heat=1, model=BOTH)
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
    for landmark in ("banner", "form", "main", "contentinfo"):
        assert page.get_by_role(landmark).count() == 1
    outside = page.evaluate(
        """() => [...document.body.querySelectorAll('*')].filter(one => one.checkVisibility() &&
             [...one.childNodes].some(part => part.nodeType === 3 && part.data.trim()) &&
             !one.closest('header, form, main, footer, dialog, [role=status], .skip'))
             .map(one => one.outerHTML.slice(0, 80))"""
    )
    assert outside == []
    assert page.evaluate(SMALL) == []
