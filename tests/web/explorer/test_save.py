"""Files that the explorer saves."""

import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from gumbeltree.analysis.trace import trace
from tests.web.explorer.visit import (
    FOOD,
    card,
    expect,
    expect_tree,
    needs_browser,
    save,
    tree,
    wait_until,
)

pytestmark = needs_browser


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
    # they explain themselves
    assert texts[0] == FOOD
    label = traced.answer.label
    assert re.match(rf"sst2-100d: {label} [<>]?[\d.]+%\.", texts[1])
    assert {"negative", "positive", "near tie"} <= set(texts)
    assert "log-odds" in " ".join(text for text in texts if text)
    picture = image.imread(save(page, "the picture as PNG", tmp_path))
    assert picture.shape[:2] == (2 * int(root.get("height")), 2 * int(root.get("width")))
    colours = (255 * picture[..., :3]).round().astype(int).reshape(-1, 3)
    assert np.all(np.median(colours, axis=0) == 255)
    for ink in ([34, 37, 43], [169, 173, 181]):
        assert np.all(colours == ink, axis=1).sum() > 100, "letters and lines"


@pytest.mark.parametrize("what", ["the picture as SVG", "the film"])
def test_pictures_state_what_their_predictions_depend_on(visit, tmp_path, what):
    def heading(**view):
        page = visit.open(**view)
        expect(tree(page, view["model"]).locator(".node").first).to_be_visible()
        root = ElementTree.parse(save(page, what, tmp_path)).getroot()
        return " ".join(one.text or "" for one in root.iter("{http://www.w3.org/2000/svg}text"))

    drawn = {"seed": 7, "temperature": 3}
    texts = heading(text=FOOD, model="sst2-100d", **drawn)
    assert "% for the tree shown, sampled with seed 7 and temperature 3." in texts
    texts = heading(text=FOOD, second="It is bad .", model="snli-100d", **drawn)
    assert "% for the trees shown, sampled with seed 7 and temperature 3." in texts
    texts = heading(text=FOOD, model="snli-100d", **drawn)
    assert "snli-100d: tree sampled with seed 7 and temperature 3." in texts
    texts = heading(text="zxqv blorp gnarfy good .", model="sst2-100d")
    assert "%. Only 2 of the 5 words are in the vocabulary of this model" in texts
    assert "shown" not in texts


def test_saves_valid_xml_for_any_text(visit, tmp_path):
    page = visit.open(text="a go\x01od film\ufffe .", model="sst2-100d")
    expect(tree(page, "sst2-100d").locator(".node").first).to_be_visible()
    root = ElementTree.parse(save(page, "the picture as SVG", tmp_path)).getroot()
    assert "go\u2401od" in " ".join(root.itertext())


def test_downloads_are_offered_once_there_is_a_tree(visit):
    page, held = visit.page, []
    page.route("**/api/parse", lambda route: held.append(route))
    visit.open(text=FOOD, model="sst2-100d")
    buttons = card(page, "sst2-100d").get_by_role("button", name="Download")
    wait_until(page, lambda: held)
    expect(buttons).to_have_count(0)
    for route in held:
        route.continue_()
    expect(page.locator("svg.tree")).to_have_count(1)
    expect(buttons).to_have_count(5)


def test_the_picture_can_be_copied(visit):
    page = visit.open(text="good .", model="sst2-100d")
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy the picture").click()
    expect(page.locator("#toast")).to_have_text("Picture copied")
    start = page.evaluate(
        """async () => {
             const [item] = await navigator.clipboard.read();
             const blob = await item.getType("image/png");
             return [...new Uint8Array(await blob.arrayBuffer())].slice(0, 4);
           }"""
    )
    assert bytes(start) == b"\x89PNG"


def test_the_film_shows_every_step(visit, sst, tmp_path):
    page = visit.open(text=FOOD, model="sst2-100d", step=2)
    traced = trace(sst, FOOD)
    expect(page.locator("#step-value")).to_have_text("merge 3 of 6")
    file = save(page, "the film", tmp_path)
    assert file.name.endswith("-film.svg")
    root = ElementTree.parse(file).getroot()
    space = "{http://www.w3.org/2000/svg}"
    frames = [one for one in root.iter(f"{space}g") if one.get("class") in ("passes", "stays")]
    assert [one.get("class") for one in frames] == ["passes"] * 6 + ["stays"]
    for step, frame in enumerate(frames):
        assert len(list(frame.iter(f"{space}circle"))) > 0 or step == 0
        texts = [one.text for one in frame.iter(f"{space}text")]
        assert [text for text in texts if text in traced.tree.words] == list(traced.tree.words)
        assert ("chosen" in texts) == (step < 6)
        times = frame.find(f"{space}animate").get("keyTimes").split(";")
        assert [float(time) for time in times] == sorted(map(float, times))
    assert FOOD in " ".join(root.itertext())
    # one legend for the steps and the whole tree
    assert all(
        f"Bars of {part}" in " ".join(root.itertext()) for part in ("a step", "the whole tree")
    )
    # the page still shows the same step
    expect(page.locator("#step-value")).to_have_text("merge 3 of 6")
    expect(tree(page, "sst2-100d").locator(".merge.next")).to_have_count(1)
