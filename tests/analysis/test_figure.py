"""Figures of trees, and the command `draw`."""

import dataclasses
import os
import re
import struct
import sys
from itertools import combinations, pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import gumbeltree
from gumbeltree.analysis.figure import (
    AGAINST,
    EXPLAINED,
    GREY,
    HOLLOW,
    RIM,
    YELLOW,
    Figure,
    about_merge,
    draw_trees,
    number,
    ramp,
    readable_on,
    remarks,
    runner_up,
)
from gumbeltree.analysis.trace import trace
from gumbeltree.answers import NumberPrediction, Prediction, TagsPrediction
from gumbeltree.cli.draw import printed
from gumbeltree.config import BagConfig
from gumbeltree.extras import install_command
from gumbeltree.model import SentenceModel
from gumbeltree.picture import BLUE, DOTTED, ROW, Scene, clip, text_width
from gumbeltree.tree import Tree
from tests.analysis.traces import made_trace, random_trace
from tests.commands import run
from tests.models import tiny_model

DOCS = Path(__file__).parent.parent.parent / "docs"
SENTENCE = "the dog that barked all night sleeps ."
# the second merge has the lower score
HAND = made_trace("a b c", [1, 0], [[-3.0, 1.0], [-1.0]])


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for kind in ("pair", "single"):
        gumbeltree.save(tiny_model(kind), folder / kind)
    return folder


def marks(figure, tag):
    return [mark.element for mark in figure.scene.marks if mark.element.tag == tag]


def texts(figure):
    return [element.text for element in marks(figure, "text")]


def discs(figure):
    """Return x, y and radius of the circles."""
    circles = marks(figure, "circle")
    return [tuple(float(circle.get(name)) for name in ("cx", "cy", "r")) for circle in circles]


def overlap(first, second) -> bool:
    """Return whether two boxes (left, top, right, bottom) share an inner point."""
    return all(first[i] < second[i + 2] and second[i] < first[i + 2] for i in (0, 1))


# layout


@pytest.mark.parametrize("count", [1, 2, 9, 25, 61])
def test_nothing_overlaps(count):
    figure = draw_trees([("model", random_trace(count))])
    circles = [(x - r, y - r, x + r, y + r) for x, y, r in discs(figure)]
    # vertical and horizontal lines of the brackets, corners and curves included
    lines = []
    for path in marks(figure, "path"):
        if path.get("stroke") is not None:
            points = re.findall(r"([\d.]+) ([\d.]+)", path.get("d"))
            points = [(float(x), float(y)) for x, y in points]
            lines += [(*map(min, a, b), *map(max, a, b)) for a, b in pairwise(points)]
    labels, words = [], []
    lowest = max((y for _, y, _ in discs(figure)), default=figure.scene.height)
    for element in marks(figure, "text")[1:]:
        x, y, size = (float(element.get(name)) for name in ("x", "y", "font-size"))
        width = text_width(element.text, size)
        if element.get("transform"):
            words.append((x, y, x + 0.8 * size, y + width))
        elif size in (9, 11) and "." in element.text and y < lowest + 30:
            labels.append((x - width / 2, y - 0.8 * size, x + width / 2, y))
        elif size == 15:
            words.append((x - width / 2, y - 0.8 * size, x + width / 2, y))
    assert len(words) == count
    assert not any(overlap(*pair) for pair in combinations([*circles, *words], 2))
    assert not any(overlap(label, other) for label in labels for other in [*circles, *lines])
    assert not any(overlap(*pair) for pair in combinations(labels, 2))
    # short sentences keep all their leads
    assert count > 12 or len(labels) >= count - 2
    frame = (0, 0, figure.scene.width, figure.scene.height)
    assert all(
        frame[0] < x and frame[1] < y and right < frame[2] and bottom < frame[3]
        for x, y, right, bottom in [*circles, *words]
    )
    assert count > 60 or figure.scene.width <= ROW + 40


def test_text_width_is_not_underestimated():
    font_manager = pytest.importorskip("matplotlib.font_manager")
    font = font_manager.get_font(font_manager.findfont("DejaVu Sans"))
    font.set_size(100, 72)
    words = "the movie wonderful which illicit MWW jumped, fill BBC NASA 12,345 -- we've @home %"
    for word in [*words.split(), "flibbertigibbet", "mammmw", "\u2212", "\u2026"]:
        font.set_text(word)
        assert text_width(word, 100) >= 0.97 * font.get_width_height()[0] / 64, word


def test_short_sentences_stand_side_by_side_and_long_ones_are_stacked():
    def roots(first, second):
        figure = draw_trees([("a", first), ("a longer name", second)])
        labels = marks(figure, "text")
        titles = [e for e in labels if e.text in ("a", "a longer name") and e.get("font-weight")]
        words = [float(e.get("x")) for e in labels if e.text == "word"]
        return [(float(e.get("x")), float(e.get("y"))) for e in titles], words

    (left, right), _ = roots(made_trace("x y z", [0, 0]), made_trace("x y z", [1, 0]))
    assert left[0] < right[0]
    assert left[1] == right[1]
    words = ["word"] * 20
    both = (made_trace(words, Tree.random(words, seed).order) for seed in (1, 2))
    (upper, lower), places = roots(*both)
    assert upper[0] == lower[0]
    assert upper[1] < lower[1]
    # each word is at the same x in both trees
    assert places[:20] == places[20:40]


def test_long_words_and_names_are_shortened():
    url = "https://example.org/" + "x" * 100
    figure = draw_trees([("folder/" * 20 + "model", made_trace([url, "b"], [0]))])
    assert clip(url, 24) in texts(figure)
    assert texts(figure)[0].startswith("\u2026")
    assert texts(figure)[0].endswith("folder/model")
    assert f"<title>{url}</title>" in figure.svg()
    assert figure.scene.width < 700


# marks


def luminance(colour):
    """Return the relative luminance as defined by WCAG 2."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def test_colours_darken_and_their_numbers_are_readable():
    assert (ramp(0), ramp(1)) == (YELLOW, BLUE)
    colours = [ramp(i / 40) for i in range(41)]
    lights = list(map(luminance, colours))
    assert lights == sorted(lights, reverse=True)
    for light, colour in zip(lights, colours, strict=True):
        text = luminance(readable_on(colour))
        assert (max(light, text) + 0.05) / (min(light, text) + 0.05) >= 4.5


def test_circles_show_order_and_lead():
    figure = draw_trees([("m", HAND)])
    # the last merge has no alternative
    assert [circle.get("fill") for circle in marks(figure, "circle")] == [BLUE, GREY]
    # the legend with its ends, and each circle's number with its lead
    assert texts(figure)[:11] == [
        *("m", "lead over runner-up", "0", "\u2265 1"),
        *("1", "4.00", "2", "a", "b", "c"),
        "a b c",
    ]
    assert " ".join(texts(figure)).endswith(EXPLAINED)
    assert (
        about_merge(HAND, 0) == "merge 1: b c · lead 4.00 over a b · score 1.00 among 2 candidates"
    )
    assert about_merge(HAND, 1) == "merge 2: a b c · score \u22121.00 among 1 candidate"
    assert marks(figure, "circle")[0].find("title").text == about_merge(HAND, 0)


@pytest.mark.parametrize(
    ("lead", "colour", "dotted"),
    [(0.0, YELLOW, True), (0.19, ramp(0.19), True), (0.21, ramp(0.21), False), (3.0, BLUE, False)],
)
def test_near_ties_are_dotted(lead, colour, dotted):
    traced = made_trace("a b c", [0, 0], [[lead, 0.0]])
    figure = draw_trees([("m", traced)])
    first, last = (e for e in marks(figure, "path") if "Q" in e.get("d"))
    assert (first.get("stroke-dasharray") == DOTTED) is dotted
    assert last.get("stroke-dasharray") is None
    assert marks(figure, "circle")[0].get("fill") == colour
    assert ("near tie" in about_merge(traced, 0)) is dotted
    assert ("Near ties: merges 1." in figure.scene.description) is dotted


def test_the_runner_up_consists_of_earlier_merges():
    traced = made_trace("a b c d", [1, 1, 0], [[0.0, 2.0, 1.0], [0.3, 0.4], [0.0]])
    assert [runner_up(traced, step) for step in range(3)] == ["c d", "a b c", ""]
    assert about_merge(traced, 1).startswith("merge 2: b c d · lead 0.10 over a b c, a near tie")


def test_remarks():
    answer = Prediction("good", {"bad": 0.25, "good": 0.75}, (0.0, 1.0))
    assert remarks(made_trace("a b", [0])) == ""
    assert remarks(made_trace("a b", [0], answer=answer)) == "good 75.0 %"
    sampled = made_trace("a b", [0], answer=answer, sampled=True, greedy=False, cut=True)
    assert remarks(sampled) == "good 75.0 % · sampled · text truncated"
    # before any verdict
    strange = made_trace("a b c", [0, 0], answer=answer, unknown=(True, False, True))
    assert remarks(strange) == "2 of 3 words unknown to the model · good 75.0 %"
    known = made_trace("a b", [0], answer=answer, unknown=(True, False))
    assert remarks(known) == "good 75.0 %"
    given = made_trace("a b", [0], answer=NumberPrediction(2.5), greedy=False)
    assert remarks(given) == "2.5000 · not the model's choice"
    tags = TagsPrediction(("plot", "cast"), {"plot": 0.9, "cast": 0.6, "music": 0.1}, ";")
    assert remarks(made_trace("a b", [0], answer=tags)) == "tags: plot, cast"


def test_the_verdict_is_that_of_the_tree():
    """With attention over all nodes, the class of the root alone is another one."""
    for options in ({}, {"tree": "left"}):
        traced = trace(tiny_model("single", attention=True), SENTENCE, **options)
        label = traced.answer.label
        assert remarks(traced).startswith(f"{label} {100 * traced.answer.probabilities[label]:.1f}")
        assert traced.answer.probabilities != traced.nodes[-1].classes


def test_fixed_trees_have_no_scores():
    fixed = made_trace("a b c", [0, 0], trees="left", classes={"good": 1.0})
    figure = draw_trees([("m", fixed)])
    assert texts(figure) == ["m", "fixed tree (left), no scores", *"12abc", "a b c"]
    assert {circle.get("fill") for circle in marks(figure, "circle")} == {GREY}
    assert about_merge(fixed, 0) == "merge 1: a b \u00b7 good 100.0 %"
    assert "Leads" not in figure.scene.description


# SVG


def test_svg_escapes_any_text():
    evil = ["<script>alert(1)</script>", 'x"onload="y', "&amp;", "a\x00\x1b[31m", "]]>", "\ud800"]
    order = Tree.left_branching(evil).order
    traced = made_trace(evil, order, classes={"<b>": 0.9, "c": 0.1}, unknown=(True,) * 6)
    text = draw_trees([("</title><script>", traced)]).svg()
    assert "<script" not in text
    root = ElementTree.fromstring(text.encode())
    shown = {element.text for element in root.iterfind(".//{*}text")}
    assert {clip(evil[0], 24), *evil[1:3], "a\u2400\u241b[31m", "]]>", "<U+D800>"} <= shown
    assert root.find("{*}title").text.startswith("</title><script>: <script>")
    assert not any("alert" in value for e in root.iter() for value in e.attrib.values())


def test_svg_is_accessible_and_follows_the_page():
    traced = dataclasses.replace(HAND, unknown=(False, True, False))
    figure = draw_trees([("one", traced), ("two", made_trace("a b c", [0, 0]))])
    root = ElementTree.fromstring(figure.svg())
    assert root.get("role") == "img"
    assert root.find("{*}title").text == "one, two: a b c"
    description = root.find("{*}desc").text
    assert description.startswith("one: ( a ( b c ) ). Leads over the runner-up, in order: 4.00.")
    assert "two: ( ( a b ) c )" in description
    assert "currentColor" in figure.svg()
    (italic,) = (e for e in root.iterfind(".//{*}text") if e.get("font-style") == "italic")
    assert (italic.text, italic[0].text) == ("b", "b (unknown to the model)")
    assert "italic: unknown to the model" in texts(figure)
    assert figure._repr_svg_() == figure.svg()
    assert repr(figure) == f"<Figure: {figure.scene.title}>"


# files


def test_saves_svg_and_png(tmp_path, recwarn):
    figure = draw_trees([("m", made_trace("a $b^$ \U00013000", [1, 0]))])
    figure.save(tmp_path / "tree.svg")
    assert (tmp_path / "tree.svg").read_text(encoding="utf-8") == figure.svg() + "\n"
    figure.save(str(tmp_path / "tree.PNG"))
    assert (tmp_path / "tree.PNG").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert sorted(os.listdir(tmp_path)) == ["tree.PNG", "tree.svg"]
    # characters without a glyph are boxes
    assert not [warning for warning in recwarn if "Glyph" in str(warning.message)]


def test_png_shows_the_circles_where_the_svg_does(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    figure = draw_trees([("m", HAND)])
    figure.save(tmp_path / "tree.png")
    dots = image.imread(tmp_path / "tree.png")
    for (x, y, radius), circle in zip(discs(figure), marks(figure, "circle"), strict=True):
        # left of the number, two dots per pixel
        dot = dots[round(2 * y), round(2 * (x - 0.75 * radius)), :3]
        expected = [int(circle.get("fill")[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        assert np.allclose(dot, expected, atol=0.01)
    assert (dots[0, 0, :3] == 1).all()


def test_large_png_files_are_scaled_down(tmp_path):
    pytest.importorskip("matplotlib")
    Figure(Scene(40_000, 5_000, "", "", ())).save(tmp_path / "wide.png")
    width, height = struct.unpack(">II", (tmp_path / "wide.png").read_bytes()[16:24])
    assert width * height <= 5.1e7
    assert width / height == pytest.approx(8, rel=0.01)


def test_rejects_other_formats_and_missing_matplotlib(tmp_path, monkeypatch):
    figure = draw_trees([("m", HAND)])
    for name in ("tree.pdf", "tree", ".svg", "tree.gif"):
        with pytest.raises(ValueError, match=r"must end in \.svg or \.png"):
            figure.save(tmp_path / name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=re.escape(install_command("plots"))):
        figure.save(tmp_path / "tree.png")
    assert not list(tmp_path.iterdir())


# the command


def test_command_prints_trees_and_leads(models):
    result = run("draw", models / "single", models / "pair", SENTENCE)
    assert (result.code, result.err) == (0, "")
    first, second = (trace(tiny_model(kind), SENTENCE) for kind in ("single", "pair"))
    upper, lower = result.out.split(f"\n{models / 'pair'}\n")
    ties = [[i for i, layer in enumerate(t.layers) if layer.near_tie] for t in (first, second)]
    assert ties[0]
    drawn = first.tree.draw(100, ties[0])
    assert drawn.count("≈") == len(ties[0])
    assert upper.startswith(f"{models / 'single'} · {remarks(first)}\n\n{drawn}\n\n")
    assert lower.startswith(f"\n{second.tree.draw(100, ties[1])}\n\n")
    *rows, explained = lower.splitlines()[-8:]
    assert "lead" in explained
    assert "0.2" in explained
    for step, (row, node) in enumerate(zip(rows[:-1], second.nodes[8:], strict=False)):
        shown = row.split(maxsplit=3)
        assert shown[0] == str(step + 1)
        # the same digits as in figures
        assert shown[1].replace("-", "\u2212") == number(node.score)
        assert shown[2].replace("-", "\u2212") == number(second.layers[step].lead)
        words = " ".join(second.tree.words[slice(*node.span)])
        other = f"  ≈ {runner_up(second, step)}" if step in ties[1] else ""
        assert shown[3] == words + other
    # the last merge has no lead
    assert rows[-1].split(maxsplit=2)[2] == SENTENCE


def test_command_prints_no_control_characters(models):
    result = run("draw", models / "pair", "the \x1b[31mdog\x07 \u202egood\u200b .")
    assert result.code == 0
    assert not {"\x1b", "\x07", "\u202e", "\u200b"} & set(result.out)
    strange = "\u241b[31mdog\u2407 <U+202E>good<U+200B>"
    assert result.out.splitlines()[-1] == f"unknown to the model: {strange}"
    assert f"\nthe {strange} .\n" in result.out, "below the tree"


def test_command_shortens_lines_only_on_terminals(models, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    text = " ".join(["the dog that barked sleeps ."] * 5)
    traced = trace(tiny_model("single"), text, tree="left")
    piped = run("draw", models / "single", text, "--tree", "left").out
    ties = [step for step, layer in enumerate(traced.layers) if layer.near_tie]
    assert traced.tree.draw(100, ties) in piped
    assert any((layer.lead or 0) < 0 for layer in traced.layers)
    shown = piped.splitlines()
    for step, layer in enumerate(traced.layers[:-1]):
        words = " ".join(traced.tree.words[: step + 2])
        mark = "  \u2248 " if layer.near_tie else "  against " if layer.lead < 0 else ""
        row = shown[len(traced.tree) + 4 + step]
        other = runner_up(traced, step) if mark else ""
        assert row.split(maxsplit=3)[3] == words + mark + other
        # on a terminal, too long lines keep the mark and the start of the runner-up
        short = list(printed("m", traced, 60, True))[5 + step]
        assert len(short) <= 66
        assert mark + other[:8] in short
    assert "\u2026" not in piped


def test_negative_leads_are_hollow_and_explained(models):
    traced = made_trace("a b c d", [0, 0, 0], [[-1.0, 0.0, -2.0], [-0.1, 0.0], [0.0]])
    figure = draw_trees([("m", traced)])
    circles = marks(figure, "circle")
    assert [circle.get("fill") for circle in circles] == [HOLLOW, HOLLOW, GREY]
    assert [circle.get("stroke") for circle in circles] == [RIM, RIM, "currentColor"]
    assert AGAINST in " ".join(texts(figure))
    assert AGAINST not in " ".join(texts(draw_trees([("m", HAND)])))
    assert "lead \u22121.00 over b c, against the scores" in about_merge(traced, 0)
    lines = list(printed("m", traced, 80, False))
    assert [line for line in lines if "  against b c" in line] == [lines[5]]
    assert lines[6].endswith("a b c  \u2248 c d")
    assert lines[-1].startswith("negative lead: ")


def test_command_writes_the_figure(models, tmp_path):
    out = tmp_path / "trees.svg"
    result = run("draw", models / "single", models / "pair", SENTENCE, "--out", out)
    assert (result.code, result.out) == (0, "")
    assert result.err == f"{out}: {out.stat().st_size:,} bytes\n"
    pairs = [(str(models / k), trace(tiny_model(k), SENTENCE)) for k in ("single", "pair")]
    assert out.read_text(encoding="utf-8") == draw_trees(pairs).svg() + "\n"
    options = ["--seed", 4, "--temperature", 2, "--pretokenized", "--quiet", "--out", out]
    assert run("draw", models / "single", SENTENCE, *options) == (0, "", "")
    options = {"seed": 4, "temperature": 2.0, "pretokenized": True}
    traced = trace(tiny_model("single"), SENTENCE, **options)
    expected = draw_trees([(str(models / "single"), traced)]).svg() + "\n"
    assert out.read_text(encoding="utf-8") == expected
    assert "sampled" in expected


def test_command_follows_a_given_tree(models):
    result = run("draw", models / "single", "the dog sleeps now", "--tree", "balanced")
    traced = trace(tiny_model("single"), "the dog sleeps now", tree="balanced")
    assert result.out.startswith(f"{models / 'single'} · {remarks(traced)}\n")
    assert "not the model's choice" in result.out
    message = run("draw", models / "single", "the dog", "--tree", "( the cat )").refused()
    assert "tree: must bracket the words of the sentence, 'the dog', got 'the cat'" in message


def test_command_prints_fixed_trees_without_scores(tmp_path):
    for trees in ("left", "random"):
        gumbeltree.save(tiny_model("single", trees=trees), tmp_path / trees)
    printed = run("draw", tmp_path / "left", "the dog sleeps").out.splitlines()
    assert printed[0].endswith(" \u00b7 fixed tree (left), no scores")
    assert printed[-3:] == ["merge  words", "    1  the dog", "    2  the dog sleeps"]
    sampled = run("draw", tmp_path / "random", "the dog sleeps", "--seed", 3).out
    assert "fixed tree (random), no scores \u00b7 sampled\n" in sampled


def test_command_rejects_models_without_trees_or_with_broken_weights(models, tmp_path):
    model = tiny_model("single")
    config = dataclasses.replace(model.config, encoder=BagConfig(5, 6))
    gumbeltree.save(SentenceModel(config, model.tokenizer), tmp_path / "bag")
    message = run("draw", models / "single", tmp_path / "bag", SENTENCE).refused()
    assert f"{tmp_path / 'bag'}: this model builds no tree" in message
    with torch.no_grad():
        model.encoder.query.fill_(torch.nan)
    gumbeltree.save(model, tmp_path / "broken")
    message = run("draw", tmp_path / "broken", SENTENCE, "--out", tmp_path / "a.svg").refused()
    assert "encoder.query contains NaN" in message
    assert not (tmp_path / "a.svg").exists()


def test_command_rejects_wrong_arguments(models, tmp_path):
    model = models / "pair"
    for arguments, message in [
        (["sst2-100d"], "'sst2-100d' is the only argument"),
        ([model, "  "], "must be the text, but it is empty"),
        ([model, models / "single"], f"{models / 'single'} is a model or path"),
        ([model, "snli-100d"], "snli-100d is a model or path"),
        ([model, "dog", SENTENCE], "dog is not a model folder"),
        ([model, "the", "dog"], "only the last argument, 'dog', is read as the text"),
        ([model, "dog", "--out", tmp_path / "a.pdf"], "a.pdf: the file name must end in .svg"),
        ([model, "dog", "--film", tmp_path / "a.png"], "a.png: the file name must end in .svg"),
        ([model, "dog", "--out", tmp_path / "no" / "a.svg"], str(tmp_path / "no")),
        (
            [model, "dog", "--out", tmp_path / "a.svg", "--film", tmp_path / "a.svg"],
            "two different files",
        ),
        ([model, "dog", "--temperature", "0.0"], "got 0.0"),
    ]:
        assert message in run("draw", *arguments).refused()
    assert not list(tmp_path.iterdir())


def test_the_page_shows_what_the_command_prints():
    page = (DOCS / "draw.md").read_text(encoding="utf-8")
    text = "i love this very much ."
    printed = run("draw", "sst2-100d", text).out
    assert f'$ gumbeltree draw sst2-100d "{text}"\n{printed}```' in page
    pairs = [(name, trace(gumbeltree.load(name), text)) for name in ("sst2-100d", "snli-100d")]
    picture = (DOCS / "images" / "draw-figure4.svg").read_text(encoding="utf-8")
    assert picture == draw_trees(pairs).svg() + "\n"
