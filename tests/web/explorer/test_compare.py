"""Comparing trees: with other models, fixed and given trees, and before an edit."""

import re

import pytest

from gumbeltree.analysis.metrics import bracketing, f1
from gumbeltree.analysis.trace import trace
from gumbeltree.tree import Tree
from tests.web.explorer.visit import (
    BOTH,
    FOOD,
    card,
    expect,
    expect_tree,
    needs_browser,
    open_settings,
    sentence,
    tree,
)

pytestmark = needs_browser


def spans(traced):
    """Return the phrases of a tree except the sentence."""
    whole = (0, len(traced.tree.words))
    return {span for span in traced.tree.spans if span != whole}


def apart(picture):
    """Return the phrases that are highlighted, by their words."""
    nodes = picture.locator(".merge.apart").evaluate_all(
        "all => all.map(one => one.getAttribute('aria-label'))"
    )
    return {re.sub(r"^merge \d+: |, lead .*$|, \w+ [<>]?[\d.]+%$", "", label) for label in nodes}


def phrase(traced, span):
    return " ".join(traced.tree.words[slice(*span)])


def expect_comparison(page, name, first, second, pictures):
    words = first.tree.words
    both = [[bracketing(words, one.tree.spans, keep_punctuation=True)] for one in (first, second)]
    score = 100 * f1(*both).corpus
    shared = len(spans(first) & spans(second))
    said = card(page, name).locator(".compared")
    expect(said).to_contain_text(f"F1 {score:.0f}%")
    if score < 100:
        expect(said).to_contain_text(f"{shared} of {len(spans(first))} phrases")
    for picture, own, other in zip(pictures, (first, second), (second, first), strict=True):
        expected = {phrase(own, span) for span in spans(own) - spans(other)}
        expect(picture.locator(".merge.apart")).to_have_count(len(expected))
        assert apart(picture) == expected


@pytest.mark.parametrize("kind", ["left", "right", "balanced"])
def test_compares_with_a_fixed_tree(visit, sst, kind):
    page = visit.open(text=FOOD, model="sst2-100d")
    expect_tree(tree(page, "sst2-100d"), trace(sst, FOOD))
    open_settings(page)
    page.get_by_label("Compare with").select_option(kind)
    own, other = trace(sst, FOOD), trace(sst, FOOD, tree=kind)
    expect_tree(tree(page, "sst2-100d", 1), other)
    pictures = [tree(page, "sst2-100d", which) for which in (0, 1)]
    expect_comparison(page, "sst2-100d", own, other, pictures)
    caption = card(page, "sst2-100d").locator("figcaption")
    expect(caption).to_contain_text(other.answer.label)
    expect(page).to_have_url(re.compile(f"against={kind}"))
    page.get_by_label("Compare with").select_option("")
    expect(card(page, "sst2-100d").locator("svg.tree")).to_have_count(1)
    expect(tree(page, "sst2-100d").locator(".apart")).to_have_count(0)


def test_compares_with_given_brackets(visit, sst):
    page = visit.open(text="not a good film .", model="sst2-100d")
    own = trace(sst, "not a good film .")
    expect_tree(tree(page, "sst2-100d"), own)
    open_settings(page)
    page.get_by_label("Compare with").select_option("brackets")
    field = page.get_by_role("textbox", name="Brackets")
    # the reader starts from the tree shown, with an example of another one
    expect(field).to_have_value(str(own.tree))
    said = card(page, "sst2-100d").locator(".compared")
    expect(said).to_contain_text("The same phrases as in the given tree")
    hint = page.locator("#brackets-hint")
    right = Tree.right_branching("not a good film .")
    assert own.tree != right
    expect(hint).to_contain_text(f"for example to {right}, and press Enter")
    field.fill(str(right))
    field.press("Enter")
    expect_tree(tree(page, "sst2-100d", 1), trace(sst, "not a good film .", tree=str(right)))
    given = "( ( not ( a ( good film ) ) ) . )"
    field.fill(given)
    field.blur()
    other = trace(sst, "not a good film .", tree=given)
    expect_tree(tree(page, "sst2-100d", 1), other)
    assert other.tree == Tree.from_brackets(given)
    pictures = [tree(page, "sst2-100d", which) for which in (0, 1)]
    expect_comparison(page, "sst2-100d", own, other, pictures)
    # hollow bars for merges against the scores, and explained
    behind = [layer for layer in other.layers if layer.lead is not None and layer.lead < 0]
    assert behind
    bars = pictures[1].locator(".bar.behind")
    expect(bars).to_have_count(len(behind))
    expect(bars.first).to_have_css("fill", "none")
    heights = bars.evaluate_all("all => all.map(one => +one.getAttribute('height') / 46)")
    lengths = sorted(max(0.02, min(1, -layer.lead)) for layer in behind)
    assert sorted(heights) == pytest.approx(lengths, abs=2e-3)
    key = card(page, "sst2-100d").locator(".legend .key.behind")
    expect(key).to_contain_text("against the scores")
    against = pictures[1].locator("[aria-label*=', against the scores']")
    expect(against).to_have_count(len(behind))
    field.fill("( not a )")
    field.press("Enter")
    expect(said).to_have_text(
        "Cannot compare: the brackets contain 2 words, but the sentence has 5."
    )
    expect_tree(tree(page, "sst2-100d"), own)
    expect(key).to_have_count(0)
    faults = {
        "( not a ) ( good ( film . ) )": "put one more pair of brackets around the whole sentence.",
        "( ( not a ) ( good ( film . ) ": "a “(” has no “)”.",
        "( not a ) ) ( good ( film . ) )": "there is a “)” without its “(”.",
        "( not a good ( film . ) )": "each pair of brackets must contain two words or phrases, but "
        "( not a good ( film . ) ) contains 4.",
        "( ( not a ) ( bad ( film . ) ) )": "word 3 in the brackets is “bad”, but in the sentence "
        "it is “good”.",
        given: "",
    }
    found = page.evaluate(
        """async ([all, own]) => {
             const { fault } = await import('/static/compare.js');
             return all.map(one => fault(one, own));
           }""",
        [list(faults), str(own.tree)],
    )
    assert found == list(faults.values())


def test_compares_two_models(visit, sst, snli):
    page = visit.open(text=FOOD, model=BOTH, against="models")
    first, second = trace(sst, FOOD), trace(snli, FOOD)
    pictures = [tree(page, name) for name in BOTH]
    expect_comparison(page, "sst2-100d", first, second, pictures)
    expect_comparison(page, "snli-100d", second, first, pictures[::-1])
    expect(page.locator("svg.tree")).to_have_count(2)
    # without the other model, the page says what to do
    page.get_by_role("checkbox", name="snli-100d").uncheck()
    said = card(page, "sst2-100d").locator(".compared")
    expect(said).to_contain_text("Select a second model above")
    expect(tree(page, "sst2-100d").locator(".apart")).to_have_count(0)
    page.get_by_label("Compare with").select_option("")
    expect(said).to_be_hidden()
    # asking for another model shows one
    page.get_by_label("Compare with").select_option("models")
    expect_comparison(page, "sst2-100d", first, second, pictures)


def test_dropping_and_replacing_a_word_pins_the_old_tree(visit, sst):
    page = visit.open(text="it is not good .", model="sst2-100d")
    old = trace(sst, "it is not good .")
    expect_tree(tree(page, "sst2-100d"), old)
    tree(page, "sst2-100d").locator(".word").nth(2).click()
    page.get_by_role("button", name="Drop").click()
    new = trace(sst, "it is good .")
    expect_tree(tree(page, "sst2-100d"), new)
    expect_tree(tree(page, "sst2-100d", 1), old)
    # phrases are compared without the dropped word
    moved = {tuple(at - (at > 2) for at in span) for span in spans(old)}
    moved = {span for span in moved if 1 < span[1] - span[0] < 4}
    shared = len(moved & spans(new))
    said = card(page, "sst2-100d").locator(".compared")
    score = 200 * shared / (len(moved) + len(spans(new)))
    expect(said).to_contain_text(f"F1 {score:.0f}%")
    expect(said).to_contain_text(f"{new.answer.label} ")
    expect(said).to_contain_text(f"{old.answer.label} ")
    # replace a word, with the keyboard
    tree(page, "sst2-100d").locator(".word").nth(2).click()
    page.get_by_label("Replace good with").fill("bad")
    page.get_by_label("Replace good with").press("Enter")
    expect(sentence(page)).to_have_value("it is bad .")
    expect_tree(tree(page, "sst2-100d"), trace(sst, "it is bad ."))
    expect_tree(tree(page, "sst2-100d", 1), new)
    # a link restores the pinned tree, and an example releases it
    expect(page).to_have_url(re.compile(r"text=it\+is\+bad.*was=it\+is\+good"))
    page.reload()
    expect_tree(tree(page, "sst2-100d", 1), new)
    page.get_by_role("button", name="Surprise me").click()
    expect(card(page, "sst2-100d").locator("svg.tree")).to_have_count(1)
