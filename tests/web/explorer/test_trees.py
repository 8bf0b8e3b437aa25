"""The trees and predictions that the explorer shows."""

import re

import pytest

from gumbeltree.analysis.index import Index
from gumbeltree.analysis.samples import span_probabilities
from gumbeltree.analysis.trace import trace
from tests.models import tiny_model
from tests.web.explorer.visit import (
    BOTH,
    BOY,
    FOOD,
    Visit,
    card,
    decimal,
    expect,
    expect_bars,
    expect_no_bars,
    expect_tree,
    needs_browser,
    open_settings,
    phrases,
    serving,
    tree,
    visible_phrases,
)

pytestmark = needs_browser


def test_typing_draws_a_tree_per_model(visit, sst, snli):
    page = visit.open(text="", model=BOTH)
    page.locator("#text").press_sequentially(FOOD, delay=15)
    traces = {"sst2-100d": trace(sst, FOOD), "snli-100d": trace(snli, FOOD)}
    # all of them, because each moves the words of the others to its line
    for name, traced in traces.items():
        expect_tree(tree(page, name), traced)
    lines = []
    for name, traced in traces.items():
        picture = tree(page, name)
        words = picture.locator(".word text")
        expect(words).to_have_text(list(traced.tree.words))
        boxes = [word.bounding_box() for word in words.all()]
        assert [box["x"] for box in boxes] == sorted(box["x"] for box in boxes)
        lines += [box["y"] for box in boxes]
        expect(picture.locator(".edge")).to_have_count(2 * len(traced.tree.order))
    # all words are on one line
    assert lines == pytest.approx([lines[0]] * len(lines), abs=1)
    expect(page.locator("#live")).to_contain_text(f"sst2-100d: {traces['sst2-100d'].tree}. ")


def test_fast_typing_sends_one_request(visit, sst):
    page = visit.open(text="", model="sst2-100d")
    # faster than any keyboard, so that it does not depend on the machine
    page.locator("#text").evaluate(
        """(field, text) => {
             for (const letter of text) {
               field.value += letter;
               field.dispatchEvent(new Event('input'));
             }
           }""",
        FOOD,
    )
    expect_tree(tree(page, "sst2-100d"), trace(sst, FOOD))
    assert sum(one.url.endswith("/api/parse") for one in visit.requests) == 1


def test_the_panel_follows_the_longer_sentence_of_a_pair(visit):
    pair = {"text": "A man plays.", "second": "A man is playing music on a big stage."}
    page = visit.open(**pair, model="snli-100d", step=5)
    expect(page.locator("#step-value")).to_have_text("merge 6 of 9")
    panel = card(page, "snli-100d").get_by_role("region", name="Node of")
    expect(panel.locator("h3").first).to_have_text("Merge 6")
    expect(panel.locator(".facts dd").first).to_have_text("6 of 9")
    page = visit.open(**pair, model="snli-100d", step=1)
    expect(panel.locator(".facts dd").first).to_have_text("2 of 3")
    page.get_by_role("slider", name="Completed merges").press("End")
    expect(panel.locator("h3").first).to_have_text("Whole sentence")
    expect(panel.locator(".facts dd").first).to_have_text("3 of 3")


def test_prediction_of_a_sentence_and_of_a_pair(visit, sst, snli):
    page = visit.open(text=BOY, model=BOTH)
    for name, model, second in (("sst2-100d", sst, None), ("snli-100d", snli, "A child .")):
        verdict = card(page, name).locator(".verdict")
        if second:
            expect(verdict).to_contain_text(
                "No prediction yet. This model judges pairs of sentences"
            )
            verdict.get_by_role("button", name="Add a second sentence").click()
            field = page.get_by_role("textbox", name="Second sentence")
            expect(field).to_be_focused()
            field.fill(second)
        (prediction,) = model.predict([BOY], second and [second])
        expect(verdict.locator(".answer")).to_have_text(prediction.label)
        expect_bars(verdict, prediction.probabilities)
    expect_tree(tree(page, "snli-100d", 1), trace(snli, "A child ."))
    # the second field is hidden without a pair model
    page.get_by_role("checkbox", name="snli-100d").uncheck()
    expect(page.get_by_role("textbox", name="Second sentence")).to_be_hidden()
    expect(page.get_by_role("article")).to_have_count(1)
    # asking for it adds one
    page.get_by_role("button", name="Second sentence", exact=True).click()
    expect(page.get_by_role("textbox", name="Second sentence")).to_be_focused()
    expect(card(page, "snli-100d").locator(".answer")).to_be_visible()


def test_slider_steps_through_the_candidates(visit, sst):
    page = visit.open(text=FOOD, model="sst2-100d")
    traced, picture = trace(sst, FOOD), tree(page, "sst2-100d")
    expect_tree(picture, traced)
    slider = page.get_by_role("slider", name="Completed merges")
    slider.focus()
    slider.press("Home")
    present = [(i, i + 1) for i in range(len(traced.tree.words))]
    for step, layer in enumerate(traced.layers):
        expect(slider).to_have_attribute("aria-valuetext", f"merge {step + 1} of 6")
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
            height = max(0.02, layer.probabilities[j] / most) if len(gaps) > 1 else 0
            assert bars[gap - 1]["height"] == pytest.approx(height, abs=1e-3)
        # the last merge has no alternative, and no bar
        if layer.lead is None:
            assert step == 5
            assert bars[gaps[0] - 1]["height"] == 0
        shown = "" if layer.lead is None else decimal(layer.lead)
        expect(picture.locator(".value.choice")).to_have_text(shown)
        at = layer.choice
        present[at : at + 2] = [(present[at][0], present[at + 1][1])]
        slider.press("ArrowRight")
    expect(page.locator("#step-value")).to_have_text("all 6 merges")
    assert visible_phrases(page, "sst2-100d") == phrases(traced)
    page.get_by_role("button", name="Previous merge").click()
    expect(page.locator("#step-value")).to_have_text("merge 6 of 6")


def test_play_runs_to_the_end(visit):
    visit.page.clock.install()
    page = visit.open(text="not good .", model="sst2-100d")
    expect(page.locator("#step-value")).to_have_text("all 2 merges")
    # a busy machine may look at the page too late to see every step
    page.evaluate(
        """() => {
             window.seen = [];
             const [value, play] = ['#step-value', '#play'].map(one => document.querySelector(one));
             const note = () => seen.push([value.textContent, play.getAttribute('aria-label')]);
             new MutationObserver(note).observe(value, { childList: true });
           }"""
    )
    page.get_by_role("button", name="Play", exact=True).click()
    page.clock.run_for(1800)
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()
    steps = [["merge 1 of 2", "Pause"], ["merge 2 of 2", "Pause"], ["all 2 merges", "Play"]]
    assert page.evaluate("seen") == steps


def test_hovering_shows_a_node(visit, sst):
    page = visit.open(text=FOOD, model=BOTH)
    traced, picture = trace(sst, FOOD), tree(page, "sst2-100d")
    expect_tree(picture, traced)
    expect(tree(page, "snli-100d")).to_be_visible()
    number = len(traced.tree.words)
    node = traced.nodes[number]
    panel = card(page, "sst2-100d").get_by_role("region", name="Node of sst2-100d")
    expect(panel.locator(".phrase")).to_have_text(" ".join(traced.tree.words))
    picture.locator(".node").nth(number).hover()
    phrase = " ".join(traced.tree.words[slice(*node.span)])
    expect(panel.locator(".phrase").first).to_have_text(phrase)
    expect(panel.locator(".facts").first).to_have_text(f"merge1 of 6score{decimal(node.score)}")
    expect_bars(panel, node.classes)
    expect(panel.locator(".neighbours li")).to_have_count(5)
    # the other card highlights the same words
    echoes = tree(page, "snli-100d").locator(".word.echo text")
    expect(echoes).to_have_text(phrase.split())
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
        expect(page.locator("#step-value")).to_have_text("merge 2 of 4")
        for name in models:
            assert len(visible_phrases(page, name)) == 1
            expect(tree(page, name).locator(".rank.choice")).to_have_text("next")
            expect_no_bars(tree(page, name))
        page.get_by_role("button", name="Whole tree").click()
        # a seed changes random trees only; the heat map of the link has opened the settings
        page.get_by_role("switch", name="Sample", exact=True).check()
        expect_tree(tree(page, "pairs"), trace(pairs, text, seed=1))
        expect_tree(tree(page, "fixed"), trace(fixed, text))
        expect(card(page, "pairs").locator(".verdict")).to_contain_text("not the model's own")
        expect(card(page, "fixed").locator(".verdict")).not_to_contain_text("not the model's own")
        # heat maps are neither offered nor requested
        expect(page.get_by_role("switch", name="100 sampled trees")).to_be_hidden()
        assert not any('"samples":100' in (one.post_data or "") for one in visit.requests)
        page.get_by_role("checkbox", name="sst2-100d").check()
        expect(page.get_by_role("switch", name="100 sampled trees")).to_be_visible()
        expect(card(page, "sst2-100d").locator("svg.heat")).to_have_count(1)
        expect(page.locator("svg.heat")).to_have_count(1)
        visit.close()


def test_sampling_uses_seed_and_temperature(visit, snli):
    page = visit.open(text=BOY, model="snli-100d", temperature=2)
    picture = tree(page, "snli-100d")
    best = trace(snli, BOY)
    expect_tree(picture, best)
    page.get_by_role("switch", name="Sample", exact=True).check()
    expect_tree(picture, trace(snli, BOY, seed=1, temperature=2.0))
    page.get_by_role("button", name="Resample").click()
    second = trace(snli, BOY, seed=2, temperature=2.0)
    assert second.tree != best.tree
    expect_tree(picture, second)
    expect(page.get_by_label("Seed")).to_have_value("2")
    page.get_by_role("slider", name="Temperature").press("Home")
    expect_tree(picture, trace(snli, BOY, seed=2, temperature=0.1))
    expect(page).to_have_url(re.compile("temperature=0.1"))
    page.get_by_role("switch", name="Sample", exact=True).uncheck()
    expect_tree(picture, best)


def test_heat_map_of_spans(visit, snli):
    page = visit.open(text=BOY, model="snli-100d")
    open_settings(page)
    page.get_by_role("switch", name="100 sampled trees").check()
    chart = card(page, "snli-100d").locator("svg.heat")
    best, spans = span_probabilities(snli, BOY, samples=100)
    expect(chart.locator(".cell")).to_have_count(len(spans))
    expect(chart.locator(".greedy")).to_have_count(len(best.order))
    panel = card(page, "snli-100d").get_by_role("region", name="Sampled trees")
    panel.locator("summary").click()
    rows = panel.locator("tbody tr")
    expect(rows).to_have_count(len(spans))
    shown = {tuple(row.split("\t")[:2]) for row in rows.all_inner_texts()}
    (start, end), p = max(spans.items(), key=lambda item: (item[1] < 1, item[1]))
    assert (" ".join(best.words[start:end]), f"{round(100 * p)}%") in shown
    assert (" ".join(best.words), "100%") in shown
    chart.locator(".cell").last.hover(force=True)
    expect(panel.locator(".say")).to_contain_text("of 100 sampled trees")


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
