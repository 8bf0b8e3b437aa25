"""How certain the explorer says a model is: leads, near ties and sampled trees."""

import math
import re

import pytest

from gumbeltree.analysis.metrics import bracketing, f1
from gumbeltree.analysis.samples import predict_trees, probable_trees, sample_trees
from gumbeltree.analysis.trace import trace
from tests.models import tiny_model
from tests.web.explorer.visit import (
    BOTH,
    FOOD,
    Visit,
    card,
    decimal,
    expect,
    expect_bars,
    expect_tree,
    needs_browser,
    sentence,
    serving,
    tree,
)

pytestmark = needs_browser


def test_bars_show_leads_and_edges_near_ties(visit, sst):
    page = visit.open(text=FOOD, model="sst2-100d")
    traced, picture = trace(sst, FOOD), tree(page, "sst2-100d")
    expect_tree(picture, traced)
    ties = [layer.near_tie for layer in traced.layers]
    assert True in ties
    assert False in ties[:-1]
    labels = picture.locator(".merge").evaluate_all(
        "all => all.map(one => one.getAttribute('aria-label'))"
    )
    for layer, label in zip(traced.layers, labels, strict=True):
        assert (", a near tie" in label) == layer.near_tie
        assert ("lead" in label) == (layer.lead is not None)
        if layer.lead is not None:
            assert f", lead {decimal(layer.lead)}" in label
    expect(picture.locator(".edge.tie")).to_have_count(2 * sum(ties))
    values = [text for text in picture.locator(".value").all_text_contents() if text]
    leads = [decimal(layer.lead) for layer in traced.layers[:-1]]
    assert sorted(values) == sorted(leads), "no bar for the last merge"
    legend = card(page, "sst2-100d").locator(".legend")
    expect(legend.get_by_text("log-odds")).to_be_visible()
    expect(legend).to_contain_text("of 100 draws between these two, either would win at least 45")
    expect(legend.get_by_text("Bars of a step")).to_be_hidden()
    card(page, "sst2-100d").get_by_text("Merges as a table").click()
    rows = card(page, "sst2-100d").locator("details tbody tr")
    expect(rows).to_have_count(len(traced.layers))
    for row, layer in zip(rows.all(), traced.layers, strict=True):
        shown = "" if layer.lead is None else decimal(layer.lead)
        expect(row.locator("td").nth(3)).to_have_text(shown + " (near tie)" * layer.near_tie)


def test_the_step_explains_its_choice(visit, sst):
    page = visit.open(text=FOOD, model="sst2-100d", step=2)
    traced = trace(sst, FOOD)
    layer, node = traced.layers[2], traced.nodes[len(traced.tree.words) + 2]
    panel = card(page, "sst2-100d").get_by_role("region", name="Node of sst2-100d")
    expect(panel.get_by_role("heading").first).to_have_text("Merge 3")
    words = traced.tree.words
    expect(panel.locator(".phrase").first).to_have_text(" ".join(words[slice(*node.span)]))
    present = [(i, i + 1) for i in range(len(words))]
    for choice in traced.tree.order[:2]:
        present[choice : choice + 2] = [(present[choice][0], present[choice + 1][1])]
    rival = slice(present[layer.runner_up][0], present[layer.runner_up + 1][1])
    # other bars, another legend
    legend = card(page, "sst2-100d").locator(".legend")
    expect(legend.get_by_text("Bars of a step are its candidates")).to_be_visible()
    expect(legend.get_by_text("Bars of the whole tree")).to_be_hidden()
    choice = panel.locator(".choice-part")
    expect(choice.locator(".phrase")).to_have_text(" ".join(words[rival]))
    expect(choice.locator(".facts")).to_have_text(f"lead{decimal(layer.lead)}")
    wins = 100 / (1 + math.exp(-layer.lead))
    expect(choice).to_contain_text(f"{wins:.0f}% of the time")
    other = trace(sst, FOOD, prefix=[*traced.tree.order[:2], layer.runner_up])
    both = [[bracketing(words, one.tree.spans, keep_punctuation=True)] for one in (other, traced)]
    score = f1(*both)
    led = choice.locator(".led")
    expect(led).to_contain_text(other.answer.label)
    assert score.corpus is not None
    expect(led).to_contain_text(f"F1 {100 * score.corpus:.0f}%")
    # the next step is another merge
    page.get_by_role("button", name="Next merge").click()
    expect(panel.get_by_role("heading").first).to_have_text("Merge 4")
    page.get_by_role("button", name="Previous merge").click()
    led.get_by_role("button", name="Compare with that tree").click()
    expect(card(page, "sst2-100d").locator("svg.tree")).to_have_count(2)
    expect_tree(tree(page, "sst2-100d", 1), other)


def test_the_prediction_belongs_to_the_sampled_tree(visit, sst):
    text = "it is not a bad film , but it is not good either ."
    page = visit.open(text=text, model="sst2-100d", temperature=10)
    page.get_by_role("switch", name="Sample", exact=True).check()
    sampled = trace(sst, text, seed=1, temperature=10.0)
    assert not sampled.greedy
    expect_tree(tree(page, "sst2-100d"), sampled)
    verdict = card(page, "sst2-100d").locator(".verdict")
    expect(verdict).to_contain_text("for the tree shown, not the model's own")
    expect_bars(verdict, sampled.answer.probabilities)
    # hollow bars belong to the whole tree
    key = card(page, "sst2-100d").locator(".legend .key.behind")
    expect(key).to_be_visible()
    page.get_by_role("button", name="Only the words").click()
    expect(key).to_be_hidden()


def test_the_prediction_of_a_pair_belongs_to_the_sampled_trees(visit, snli):
    pair = ("The food was good , but the service was slow .", "The service was slow .")
    view = {"text": pair[0], "second": pair[1], "temperature": 10}
    page = visit.open(model="snli-100d", seed=3, heat=1, **view)
    sampled = [trace(snli, text, seed=3, temperature=10.0) for text in pair]
    for which in (0, 1):
        expect_tree(tree(page, "snli-100d", which), sampled[which])
    (expected,) = predict_trees(snli, [pair[0]], [pair[1]], seed=3, temperature=10.0)
    (own,) = snli.predict([pair])
    change = expected.probabilities[own.label] - own.probabilities[own.label]
    assert abs(change) > 0.02
    verdict = card(page, "snli-100d").locator(".verdict")
    expect(verdict).to_contain_text("for the trees shown, not the model's own")
    expect_bars(verdict, expected.probabilities)
    drawn = sample_trees(snli, *pair, samples=100, seed=0, temperature=10.0).as_dict()
    panel = card(page, "snli-100d").get_by_role("region", name="Sampled trees")
    for label, answer in drawn["answers"].items():
        if answer["share"]:
            expect(panel).to_contain_text(f"{label} for {round(100 * answer['share'])}")
    # one of the two trees has no prediction, and brackets belong to the first sentence
    lists = panel.locator(".frequent")
    expect(lists).to_have_count(2)
    expect(lists.first).not_to_contain_text(own.label)
    assert lists.first.get_by_role("button").count() == lists.first.locator("li").count()
    expect(lists.last.get_by_role("button")).to_have_count(0)


def test_sampled_trees_show_whether_the_tree_matters(visit, sst):
    text = "The food was wonderful, but the service was painfully slow."
    page = visit.open(text=text, model="sst2-100d", heat=1)
    drawn = sample_trees(sst, text, samples=100, seed=0).as_dict()
    panel = card(page, "sst2-100d").get_by_role("region", name="Sampled trees")
    for label, answer in drawn["answers"].items():
        if answer["share"]:
            share = f"{label} for {round(100 * answer['share'])}"
            expect(panel).to_contain_text(share)
    expect(panel).to_contain_text(f"{drawn['distinct']} distinct trees")
    columns = panel.locator(".histogram .column").evaluate_all(
        "all => all.map(one => +one.getAttribute('height'))"
    )
    bins = [min(19, math.floor(20 * p)) for p in drawn["top"]]
    counts = [bins.count(number) for number in range(20)]
    assert columns == pytest.approx([54 * count / max(counts) for count in counts])
    items = panel.locator(".frequent li")
    often = [one for one in drawn["trees"] if one["greedy"] or one["share"] > 0.01]
    assert 0 < len(often) < len(drawn["trees"]), "some were drawn only once"
    listed = any(one["greedy"] for one in often)
    expect(items).to_have_count(len(often) + (not listed))
    expect(items.filter(has_text="own tree")).to_have_count(1)
    rest = drawn["distinct"] - len(often) - (not listed and drawn["greedy_share"] > 0)
    expect(panel).to_contain_text(f"{rest} further distinct trees, each drawn once.")
    for item, one in zip(items.all(), often, strict=False):
        shown = re.sub(r"(?<=\() | (?=\))", "", one["brackets"])
        expect(item.locator(".brackets")).to_have_text(shown)
        expect(item).to_contain_text(one["answer"]["label"])
    items.first.get_by_role("button").click()
    expect(tree(page, "sst2-100d", 1)).to_have_attribute(
        "aria-label", f"Tree: {drawn['trees'][0]['brackets']}"
    )


def test_most_probable_trees_are_listed(visit, sst):
    page = visit.open(text=FOOD, model="sst2-100d")
    shown = card(page, "sst2-100d")
    items = shown.locator(".probable li")
    expect(items).to_have_count(0)
    shown.get_by_text("Most probable trees").click()

    def expect_list(text):
        found = probable_trees(sst, text, 5)
        # the brackets of all entries tell this list from that of an earlier sentence
        brackets = [re.sub(r"(?<=\() | (?=\))", "", one["brackets"]) for one in found]
        expect(items.locator(".brackets")).to_have_text(brackets)
        expect(items).to_contain_text([one["answer"]["label"] for one in found])
        shares = [f"{100 * one['probability']:.0f}%" for one in found]
        expect(items.locator(".number")).to_have_text(shares)
        expect(items.filter(has_text="own tree")).to_have_count(sum(one["greedy"] for one in found))
        return found

    expect_list(FOOD)
    # an open list follows the sentence
    sentence(page).fill("The service was slow .")
    other = expect_list("The service was slow .")[1]
    items.nth(1).get_by_role("button").click()
    expect(tree(page, "sst2-100d", 1)).to_have_attribute("aria-label", f"Tree: {other['brackets']}")


def test_models_with_fixed_trees_have_no_most_probable_trees(browser):
    with serving({"left": tiny_model("single", trees="left")}) as address:
        visit = Visit(browser, address)
        page = visit.open(text="the dog sleeps now .")
        expect(card(page, "left").get_by_text("Merges as a table")).to_be_visible()
        expect(card(page, "left").get_by_text("Most probable trees")).to_be_hidden()
        visit.close()


def test_sampled_numbers_have_a_range(browser):
    with serving({"numbers": tiny_model("single_number")}) as address:
        visit = Visit(browser, address)
        page = visit.open(text="the dog sleeps now .", heat=1)
        panel = card(page, "numbers").get_by_role("region", name="Sampled trees")
        expect(panel).to_contain_text(re.compile(r"Mean over 100 trees: .*90% lie between"))
        expect(panel.locator(".histogram .own")).to_have_count(1)
        visit.close()


def test_cards_show_the_result_of_the_model_itself(visit, sst):
    page = visit.open(text="good .", model=BOTH)
    for name in BOTH:
        expect(card(page, name).locator("header")).to_contain_text("Measured accuracy")
        expect(card(page, name)).not_to_contain_text("Table 1")
