"""What readers type, pick and link to."""

import json
import re
import time
from pathlib import Path

import pytest

import gumbeltree
from gumbeltree.tasks import listops, logic
from tests.web.explorer.visit import (
    BOTH,
    FOOD,
    TIMEOUT,
    Visit,
    card,
    expect,
    expect_idle,
    needs_browser,
    open_settings,
    sentence,
    serving,
    tree,
    wait_until,
)

pytestmark = needs_browser


def test_a_link_restores_the_view(visit, browser, address):
    page = visit.open(text=FOOD, model=BOTH)
    open_settings(page)
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    sentence(page).fill("Nobody & nothing = 100% #good + bad?")
    page.get_by_role("textbox", name="Second sentence").fill("It is bad .")
    page.get_by_role("switch", name="Sample", exact=True).check()
    page.get_by_label("Seed").fill("77")
    page.get_by_label("Seed").press("Enter")
    page.get_by_role("switch", name="100 sampled trees").check()
    page.get_by_role("slider", name="Temperature").press("ArrowRight")
    # the last request has begun by then
    expect(page).to_have_url(re.compile("temperature="))
    expect_idle(page)
    expect(page.locator("svg.heat")).to_have_count(3)
    # first, because the merge of this step is no phrase of the model's own tree: if the click came
    # late, the page would ask for its neighbours, which the server refuses
    tree(page, "sst2-100d").locator(".node").nth(1).click()
    page.get_by_role("slider", name="Completed merges").fill("3")
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator("#toast")).to_have_text("Link copied")
    link = page.evaluate("navigator.clipboard.readText()")
    expect(page).to_have_url(link)
    page.mouse.move(0, 0)
    state = """() => ({
      fields: [...document.querySelectorAll('input, textarea')].map(
        one => one.type === 'checkbox' ? one.checked : one.value),
      trees: [...document.querySelectorAll('.card svg.tree .node')].map(one =>
        ['aria-label', 'class', 'aria-selected'].map(name => one.getAttribute(name))),
      charts: document.querySelectorAll('svg.heat .cell').length,
    })"""
    other = Visit(browser, address)
    other.page.goto(link)
    expect(page.locator("svg.heat")).to_have_count(3)
    expect(other.page.locator("svg.heat")).to_have_count(3)
    expect(other.page.locator("[aria-selected=true].node")).to_have_count(1)
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
    page = visit.open(text="good .", **invalid)
    expect(page.locator("svg.tree")).to_have_count(1)
    expect(page.locator("#step-value")).to_have_text("all 1 merge")
    page = visit.open(text="good .", step=99, temperature="1e9", node="1:5:9:sst2-100d")
    expect(page.locator("svg.tree")).to_have_count(1)
    expect(page.locator("#temperature-value")).to_have_text("10")


def test_a_link_to_a_missing_model_says_so(visit):
    notice = visit.page.locator("#notice")
    page = visit.open(text="good .", model=["no-such-model", "snli-100d"])
    expect(notice).to_contain_text("names no-such-model, which the server does not have.")
    expect(page.get_by_role("heading", level=2)).to_have_text(["snli-100d"])
    visit.open(text="good .", model="<b>gone</b>")
    expect(notice).to_contain_text("names <b>gone</b>, which")
    expect(notice).to_contain_text("shows sst2-100d instead")
    sentence(page).fill("bad .")
    expect(notice).to_be_hidden()


def test_mostly_unknown_text_is_announced_before_the_prediction(visit):
    page = visit.open(text="zxqv blorp gnarfy good .", model="sst2-100d")
    verdict = card(page, "sst2-100d").locator(".verdict")
    expect(verdict.locator(".warning")).to_contain_text("Only 2 of the 5 words are in")
    assert verdict.locator("p").first.get_attribute("class") == "warning"
    sentence(page).fill("zxqv")
    expect(verdict.locator(".warning")).to_contain_text("The word is not in the vocabulary")
    sentence(page).fill("zxqv .  blorp")
    expect(verdict.locator(".warning")).to_contain_text("Only 1 of the 3 words is in")
    sentence(page).fill("zxqv is good .")
    expect(tree(page, "sst2-100d").locator(".word")).to_have_count(4)
    expect(verdict.locator(".warning")).to_have_count(0)
    expect(card(page, "sst2-100d").locator(".note")).to_contain_text("Out of vocabulary: zxqv")


def test_invisible_characters_are_shown_as_marks(visit):
    pile = "o" + "\u0301" * 40
    page = visit.open(
        text=f"a\x01b g{pile}d \u202egood bad\u200b \u0308 \u0644\u200c\u0627 .", model="sst2-100d"
    )
    words = tree(page, "sst2-100d").locator(".word text")
    expect(words.first).to_be_visible()
    joined = "".join(words.all_text_contents())
    assert "a\u2401b" in joined
    assert "<U+202E>good" in joined
    assert "bad<U+200B>" in joined
    assert not {"\u202e", "\u200b"} & {*page.locator("main").inner_text(), *page.title()}
    flag, coder = "\U0001f3f4\U000e0067\U000e0062\U000e007f", "\U0001f469\u200d\U0001f4bb"
    texts = [flag, coder, "\ue000\ufdd0\U000e0061a\u200d", "-0.001"]
    shown = page.evaluate(
        """async (texts) => {
             const { visible, decimal } = await import('/static/text.js');
             return [...texts.slice(0, 3).map(visible), decimal(+texts[3])];
           }""",
        texts,
    )
    assert shown == [flag, coder, "<U+E000><U+FDD0><U+E0061>a<U+200D>", "0.00"]
    assert "\u25cc\u0308" in joined, "a mark without a letter gets a dotted circle"
    assert "\u0644\u200c\u0627" in joined, "joiners between letters stay"
    assert joined.count("\u0301") == 4
    # nothing is painted outside the line of words
    clips = words.evaluate_all("all => all.map(one => getComputedStyle(one).clipPath)")
    assert all(clip.startswith("inset(") for clip in clips)


def test_one_word_and_right_to_left_text(visit):
    page = visit.open(text="good", model="sst2-100d", heat=1)
    panel = card(page, "sst2-100d").get_by_role("region", name="Sampled trees")
    expect(panel).to_have_text("One or two words have only one tree.")
    expect(card(page, "sst2-100d").locator(".legend")).to_have_text("negativepositive")
    sentence(page).fill("\u05d4\u05e1\u05e8\u05d8 \u05d4\u05d9\u05d4 \u05d8\u05d5\u05d1 good")
    words = panel.locator(".frequent li").first.locator("bdi")
    expect(words).to_have_count(4)
    # brackets keep the order of the words in the tree
    places = [word.bounding_box()["x"] for word in words.all()]
    assert places == sorted(places)
    assert not any(
        '"texts":["good"]' in (one.post_data or "") and '"samples":100' in one.post_data
        for one in visit.requests
    )


def test_markup_is_shown_as_text(visit):
    text = "<script>window.ran=1</script> <img src=x onerror=window.ran=1> <b>good</b>"
    page = visit.open(text="good .", model=BOTH)
    expect(page.locator("svg.tree")).to_have_count(2)
    open_settings(page)

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
    page.get_by_role("textbox", name="Second sentence").fill(text)
    page.get_by_role("switch", name="100 sampled trees").check()
    expect(page.locator("svg.heat")).to_have_count(3)
    page.locator("svg.tree .node").first.hover()
    expect(page.locator(".neighbours li").first).to_contain_text("<b>good</b>")
    for summary in page.locator("summary").all():
        summary.click()
    expect(page.locator("svg.tree .word text").first).to_contain_text("<script>")
    expect(page.locator("article p.brackets").first).to_have_text(text)
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
    expect(page.locator("#step-value")).to_have_text("merge 101 of 127")


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
    held = []
    visit.page.route("**/static/examples.json", lambda route: held.append(route))
    page = visit.open(text="good .")
    expect(page.get_by_role("textbox", name="Second sentence")).to_be_hidden()
    page.get_by_role("button", name="Examples").click()
    page.get_by_role("searchbox").fill("telescope")
    # a dialog that is opened before the examples are loaded shows them later
    expect(page.get_by_role("dialog")).to_contain_text("No examples found")
    wait_until(page, lambda: held)
    held[0].continue_()
    page.get_by_role("dialog").get_by_role("button", name="I saw the man").click()
    expect(page.locator("#text")).to_have_value("I saw the man on the hill with the telescope.")
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.get_by_role("button", name="Examples").click()
    page.get_by_role("dialog").get_by_role("button", name="A man is asleep").click()
    expect(page.locator("#second")).to_have_value("A man is asleep in his bed.")
    expect(card(page, "snli-100d").locator(".answer")).to_be_visible()
    page.get_by_role("button", name="Surprise me").click()
    expect(page.locator("#text")).not_to_have_value("A man is playing a guitar on a stage.")


def test_expressions_have_examples_of_their_own(browser):
    with serving({"listops-64d": gumbeltree.load("listops-64d")}) as address:
        visit = Visit(browser, address)
        page = visit.open()
        expect(page.locator("#text")).to_have_value("[MAX 2 9 [MIN 4 7 8 ] 0 ]")
        expect(card(page, "listops-64d").locator(".answer")).to_contain_text("9")
        page.get_by_role("button", name="Surprise me").click()
        expect(page.locator("#text")).not_to_have_value("[MAX 2 9 [MIN 4 7 8 ] 0 ]")
        expect(page.locator("#text")).to_have_value(re.compile(r"^\[(MIN|MAX|MED|SM) "))
        page.get_by_role("button", name="Examples").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("button", name="[SM 7 8 ]", exact=True)).to_be_visible()
        expect(dialog).not_to_contain_text("guitar")
        visit.close()


def all_examples():
    path = Path(gumbeltree.__file__).parent / "web" / "examples.json"
    return json.loads(path.read_text(encoding="utf-8"))


def test_examples_are_unique_and_grouped():
    content = all_examples()
    for examples in (content, *content["tasks"].values()):
        sentences, pairs = examples["sentences"], examples["pairs"]
        assert len(sentences) == len(set(sentences))
        assert len(sentences) == sum(group["count"] for group in examples["groups"])
        assert len(pairs) == len(set(map(tuple, pairs)))


def test_examples_of_tasks_are_correct():
    tasks = all_examples()["tasks"]
    for text in tasks["listops"]["sentences"]:
        assert 0 <= listops.evaluate(text.split()) <= 9
    for pair in tasks["logic"]["pairs"]:
        assert all(logic.read_formula(text).operations <= 4 for text in pair)
