"""Drawings of trees: where things stand, SVG, PNG, and the command `draw`."""

import dataclasses
import io
import math
import os
import random
import struct
import sys
from contextlib import redirect_stdout
from itertools import combinations, pairwise
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import gumbeltree
from gumbeltree.analysis.figure import Figure, draw_trees, told
from gumbeltree.analysis.figure.layout import GAP, ROW, lay_out, remarks
from gumbeltree.analysis.figure.marks import (
    BLUE,
    GREY,
    YELLOW,
    Disc,
    Label,
    luminance,
    number,
    percent,
    ramp,
    readable_on,
    shortened,
    text_width,
)
from gumbeltree.analysis.trace import Layer, Node, Trace, trace
from gumbeltree.cli.app import app
from gumbeltree.config import BagConfig
from gumbeltree.model import SentenceModel
from gumbeltree.tree import Tree
from tests.commands import Terminal, run
from tests.models import tiny_model

DOCS = Path(__file__).parent.parent.parent / "docs"
SVG = "{http://www.w3.org/2000/svg}"
SENTENCE = "the dog that barked all night sleeps ."


def made(words, order, scores=None, classes=None, **changes) -> Trace:
    """A trace without a model; `scores` has a row a layer, else they are random."""
    tree = Tree(words, order)
    T = len(tree)
    generator = random.Random(T)
    rows = scores or [[generator.gauss(0, 1) for _ in range(T - 1 - s)] for s in range(T - 1)]
    nodes = [Node((i, i + 1), None, None, None, None, classes) for i in range(T)]
    present, layers = list(range(T)), []
    for step, (choice, span, row) in enumerate(zip(tree.order, tree.spans, rows, strict=True)):
        weights = [math.exp(score) for score in row]
        shares = [weight / sum(weights) for weight in weights]
        others = [i for i in range(len(row)) if i != choice]
        runner_up = max(others, key=lambda i: row[i], default=None)
        layers.append(Layer(tuple(row), tuple(shares), choice, runner_up))
        children = tuple(present[choice : choice + 2])
        nodes.append(Node(span, children, step, row[choice], shares[choice], classes))
        present[choice : choice + 2] = [T + step]
    states = np.arange(2 * (2 * T - 1), dtype=np.float32).reshape(-1, 2)
    about = {
        "text": " ".join(tree.words),
        "offsets": (),
        "unknown": (False,) * T,
        "vector": states[-1],
        "states": states,
        "sampled": False,
        "cut": False,
        **changes,
    }
    return Trace(tree=tree, layers=tuple(layers), nodes=tuple(nodes), **about)


def random_trace(count: int, seed: int = 0) -> Trace:
    generator = random.Random(1000 * seed + count)
    letters = "abcdefghijklmnopqrstuvwxyzMWQ"
    sizes = [generator.choice([1, 2, 3, 4, 5, 7, 11]) for _ in range(count)]
    words = ["".join(generator.choices(letters, k=size)) for size in sizes]
    return made(words, Tree.random(words, count).order)


def overlap(first, second) -> bool:
    """Whether two boxes (left, top, right, bottom) share an inner point."""
    return (
        first[0] < second[2]
        and second[0] < first[2]
        and first[1] < second[3]
        and second[1] < first[3]
    )


# places


def test_places_worked_by_hand():
    # short words have columns of 46; name and legend need 15 * 1.1 * 1 + 24 + 112 = 152.5, the
    # tree 138, so that it starts 7.25 after the margin of 20
    layout = lay_out([("m", made("a b c", [1, 0]))])
    (panel,) = layout.panels
    assert panel.columns == (46, 46, 46)
    assert panel.width == 152.5
    # margin 20, header 62, two levels of 46, and the root's radius of 10
    assert panel.base == 184
    assert panel.places == (
        *((50.25, 184), (96.25, 184), (142.25, 184)),
        *((119.25, 138), (84.75, 92)),
    )
    assert panel.heights == (0, 0, 0, 1, 2)
    assert (layout.width, layout.height) == (192.5, 230)
    # under the arch: 10 of the circle, 2, and 0.8 of the size of 11
    assert panel.scores == ((119.25, pytest.approx(158.8)), (84.75, pytest.approx(112.8)))
    # what would have stood above the first two words
    assert panel.above(0, 1) == (73.25, 138)


@pytest.mark.parametrize("count", [*range(1, 26), 30, 40, 50, 60, 61, 120])
@pytest.mark.parametrize("turn", [60, 90])
def test_nothing_touches_for_any_length(count, turn):
    layout = lay_out([("model", random_trace(count))], turn=turn)
    (panel,) = layout.panels
    style = panel.style
    xs = [x for x, _ in panel.places[:count]]
    assert all(y == panel.base for _, y in panel.places[:count])
    widths = [text_width(word, style.word_size) for word in panel.words]
    if style.turn:
        # neighbouring lines of text are this far apart; capitals and tails take 0.95 of a size
        apart = min(b - a for a, b in pairwise(xs)) * math.sin(math.radians(style.turn))
        assert apart >= 0.95 * style.word_size
    else:
        ends = [(x - w / 2, x + w / 2) for x, w in zip(xs, widths, strict=True)]
        assert all(left[1] + 4 <= right[0] for left, right in pairwise(ends))
    lean = math.cos(math.radians(style.turn)) if style.turn else 0.5
    assert min(xs) >= panel.x
    assert all(x + w * lean <= layout.width for x, w in zip(xs, widths, strict=True))
    circles, lines = [], []
    for number_, node in enumerate(panel.trace.nodes):
        x, y = panel.places[number_]
        if node.children is None:
            continue
        (left, low), (right, low2) = (panel.places[child] for child in node.children)
        assert left < x < right
        assert y <= min(low, low2) - 2 * style.radius
        circles.append((x - style.radius, y - style.radius, x + style.radius, y + style.radius))
        lines += [(left, y, right, y), (left, y, left, low), (right, y, right, low2)]
    assert not any(overlap(a, b) for a, b in combinations(circles, 2))
    texts = []
    for step, place in enumerate(panel.scores):
        if place is not None:
            half = text_width(number(panel.trace.nodes[count + step].score), style.score_size) / 2
            x, y = place
            texts.append((x - half, y - 0.8 * style.score_size, x + half, y))
            assert y < panel.base
    assert not any(overlap(text, other) for text in texts for other in [*circles, *lines])
    assert not any(overlap(a, b) for a, b in combinations(texts, 2))
    # a sentence of a line or two keeps all its figures
    assert count > 12 or len(texts) == count - 1
    assert len(texts) >= (count - 1) / 3
    if count <= 60:
        assert layout.width <= ROW + 140


def test_widths_are_not_underestimated():
    font_manager = pytest.importorskip("matplotlib.font_manager")
    font = font_manager.get_font(font_manager.findfont("DejaVu Sans"))
    font.set_size(100, 72)
    words = "the movie wonderful which illicit MWW jumped, fill BBC NASA 12,345 -- we've @home %"
    for word in [*words.split(), "flibbertigibbet", "mammmw", "\u2212", "\u2026"]:
        font.set_text(word)
        assert text_width(word, 100) >= 0.97 * font.get_width_height()[0] / 64, word


def test_short_sentences_stand_side_by_side_and_long_ones_below_each_other():
    left, right = lay_out([("a", random_trace(6)), ("b", made("x y", [0]))]).panels
    assert right.x == left.x + left.width + GAP
    assert (left.y, left.base) == (right.y, right.base)
    words = ["word"] * 20
    first, second = (made(words, Tree.random(words, seed).order) for seed in (1, 2))
    upper, lower = lay_out([("a", first), ("a longer name", second)]).panels
    assert lower.y == upper.y + upper.height + GAP
    assert [x for x, _ in upper.places[:20]] == [x for x, _ in lower.places[:20]]
    # also where one model read less of the text
    less = made(words[:17], Tree.random(words[:17], 3).order)
    upper, lower = lay_out([("a", first), ("b", less)]).panels
    assert [x for x, _ in upper.places[:17]] == [x for x, _ in lower.places[:17]]


def test_long_words_and_names_are_shortened():
    url = "https://example.org/" + "x" * 100
    drawn = draw_trees([("folder/" * 20 + "model", made([url, "b"], [0]))])
    texts = [mark.text for mark in drawn.scene.marks if isinstance(mark, Label)]
    assert "https://example.org/xxx\u2026" in texts
    assert any(text.startswith("\u2026") and text.endswith("folder/model") for text in texts)
    assert f"<title>{url}</title>" in drawn.svg()
    assert drawn.scene.width < 700
    assert shortened("abc", 10, 100) == "abc"
    assert shortened("abcdefgh", 10, 40) == "abcd\u2026"


# marks


def test_the_colours_get_darker_and_their_figures_can_be_read():
    assert (ramp(0), ramp(1), ramp(-1), ramp(7)) == (YELLOW, BLUE, YELLOW, BLUE)
    lights = [luminance(ramp(i / 20)) for i in range(21)]
    assert all(a > b for a, b in pairwise(lights))
    for light, colour in zip(lights, (ramp(i / 20) for i in range(21)), strict=True):
        text = luminance(readable_on(colour))
        assert (max(light, text) + 0.05) / (min(light, text) + 0.05) >= 4.5


def test_circles_have_the_order_the_scores_and_their_colours():
    drawn = draw_trees([("m", made("a b c", [1, 0], [[-3.0, 1.0], [-1.0]]))])
    discs = [mark for mark in drawn.scene.marks if isinstance(mark, Disc)]
    assert [disc.fill for disc in discs] == [BLUE, YELLOW]
    texts = [mark.text for mark in drawn.scene.marks if isinstance(mark, Label)]
    # the legend's ends, and each circle's number with its score
    assert texts == [
        *("m", "validity score", "\u22121.00", "1.00"),
        *("1", "1.00", "2", "\u22121.00", "a", "b", "c"),
    ]
    # exp(1) / (exp(1) + exp(-3)) = 0.982
    assert discs[0].title == "merge 1: b c · score 1.00 · 98.2 % of 2 candidates"
    assert discs[1].title == "merge 2: a b c · score \u22121.00 · 100.0 % of 1 candidate"


def test_figures_for_people():
    assert [number(x) for x in (-0.001, 0.005001, -12.345, 12345.0)] == [
        *("0.00", "0.01", "\u221212.35", "1.23e+04")
    ]
    assert [percent(x) for x in (0.0, 0.1234, 0.99949, 0.9996, 1.0)] == [
        *("0.0 %", "12.3 %", "99.9 %", "> 99.9 %", "100.0 %")
    ]


def test_remarks():
    classes = {"bad": 0.25, "good": 0.75}
    assert remarks(made("a b", [0])) == ""
    assert remarks(made("a b", [0], classes=classes)) == "good 75.0 %"
    sampled = made("a b", [0], classes=classes, sampled=True, cut=True)
    assert remarks(sampled) == "good 75.0 % · sampled · end of the text left out"
    # with attention the class of the root is not that of the sentence
    attending = made("a b", [0], classes=classes, vector=np.float32([9, 9]))
    assert remarks(attending) == "root alone: good 75.0 %"
    assert told(sampled, 2).endswith("· good 75.0 %")


# SVG


def test_svg_holds_any_text_safely():
    evil = ["<script>alert(1)</script>", 'x"onload="y', "&amp;", "a\x00\x1b[31m", "]]>", "\ud800"]
    classes = {"<b>": 0.9, "c": 0.1}
    found = made(evil, Tree.left_branching(evil).order, classes=classes, unknown=(True,) * 6)
    text = draw_trees([("</title><script>", found)]).svg()
    assert "<script" not in text
    assert "\x00" not in text
    assert "\x1b" not in text
    root = ElementTree.fromstring(text.encode())
    texts = [(element.text or "") for element in root.iter() if element.tag == f"{SVG}text"]
    shown = "".join("".join(element.itertext()) for element in root.iter(f"{SVG}text"))
    assert texts
    for word in ("<script>alert(1)</script>"[:20], 'x"onload="y', "&amp;", "]]>"):
        assert word in shown
    assert "a\ufffd\ufffd[31m" in shown
    assert root.find(f"{SVG}title").text.startswith("</title><script>: <script>")
    allowed = {"path", "circle", "text", "title", "desc", "style", "rect", "g", "svg"}
    assert {element.tag.removeprefix(SVG) for element in root.iter()} == allowed
    assert not any("alert" in value for e in root.iter() for value in e.attrib.values())


def test_svg_says_what_it_shows_and_follows_the_page():
    found = made("a b c", [1, 0], [[-3.0, 1.0], [-1.0]], unknown=(False, True, False))
    drawn = draw_trees([("one", found), ("two", made("a b c", [0, 0]))])
    root = ElementTree.fromstring(drawn.svg())
    assert root.find(f"{SVG}title").text == "one, two: a b c"
    description = root.find(f"{SVG}desc").text
    assert description.startswith(
        "one · ( a ( b c ) ). Scores of the merges, in order: 1.00, \u22121.00. two · ( ( a b ) c )"
    )
    assert root.get("role") == "img"
    assert "prefers-color-scheme:dark" in root.find(f"{SVG}style").text
    colours = {value for e in root.iter() for k, value in e.attrib.items() if k == "fill"}
    assert "currentColor" in colours
    assert "url(" not in drawn.svg()
    assert "href" not in drawn.svg()
    slanted = [e for e in root.iter(f"{SVG}text") if e.get("font-style") == "italic"]
    assert ["".join(e.itertext()) for e in slanted] == ["b (unknown to the model)b"]
    assert drawn._repr_svg_() == drawn.svg()


def test_one_word():
    drawn = draw_trees([("m", made("alone", []))])
    assert [mark.text for mark in drawn.scene.marks] == ["m", "alone"]
    ElementTree.fromstring(drawn.svg())


def test_a_model_s_own_traces():
    model = tiny_model("single")
    best, sampled = (trace(model, SENTENCE, seed=seed) for seed in (None, 5))
    drawn = draw_trees([("best", best), ("sampled", sampled)])
    label = model.predict([SENTENCE])[0].label
    text = drawn.svg()
    assert f">{label} " in text
    assert "· sampled<" in text
    assert text.count("<circle") == 2 * 7


@pytest.mark.parametrize(
    ("traces", "error", "message"),
    [
        ([], ValueError, "expected one pair of a name and a trace or more, got none"),
        ([made("a b", [0])], TypeError, "expected pairs of a name and a trace, got Trace"),
        ([("m", "a b")], TypeError, "expected pairs of a name and a trace, got tuple"),
    ],
)
def test_what_cannot_be_drawn(traces, error, message):
    with pytest.raises(error, match=message):
        draw_trees(traces)


# files


def test_saved_files(tmp_path):
    drawn = draw_trees([("m", made("a $b^$ c", [1, 0]))])
    drawn.save(tmp_path / "tree.svg")
    assert (tmp_path / "tree.svg").read_text(encoding="utf-8") == drawn.svg() + "\n"
    drawn.save(str(tmp_path / "tree.PNG"))
    content = (tmp_path / "tree.PNG").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    # two dots a pixel
    assert struct.unpack(">II", content[16:24]) == (386, 460)
    assert sorted(os.listdir(tmp_path)) == ["tree.PNG", "tree.svg"]


def test_png_shows_the_circles_where_the_svg_does(tmp_path):
    image = pytest.importorskip("matplotlib.image")
    drawn = draw_trees([("m", made("a b c", [1, 0], [[-3.0, 1.0], [-1.0]]))])
    drawn.save(tmp_path / "tree.png")
    dots = image.imread(tmp_path / "tree.png")
    for disc in (mark for mark in drawn.scene.marks if isinstance(mark, Disc)):
        # left of the number, two dots a pixel
        dot = dots[round(2 * disc.y), round(2 * (disc.x - 0.75 * disc.radius)), :3]
        wanted = [int(disc.fill[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        assert np.allclose(dot, wanted, atol=0.01)
    assert (dots[0, 0, :3] == 1).all()


def test_files_that_cannot_be_written(tmp_path, monkeypatch):
    drawn = draw_trees([("m", made("a b", [0]))])
    for name in ("tree.pdf", "tree", ".svg"):
        with pytest.raises(ValueError, match=r"expected a file that ends in \.svg or \.png, got"):
            drawn.save(tmp_path / name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'gumbeltree\[plots\]'"):
        drawn.save(tmp_path / "tree.png")
    assert not list(tmp_path.iterdir())


def test_a_picture_of_many_words_stays_within_memory(tmp_path):
    drawn = Figure(draw_trees([("m", made(["w"] * 3, [0, 0]))]).scene)
    wide = Figure(type(drawn.scene)(40_000, 5_000, "", "", drawn.scene.marks))
    wide.save(tmp_path / "wide.png")
    width, height = struct.unpack(">II", (tmp_path / "wide.png").read_bytes()[16:24])
    assert width * height <= 5.1e7
    assert width / height == pytest.approx(8, rel=0.01)


# the command


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    gumbeltree.save(tiny_model("pair"), folder / "pair")
    gumbeltree.save(tiny_model("single"), folder / "single")
    return folder


def test_draw_prints(models):
    result = run("draw", models / "single", models / "pair", SENTENCE)
    assert (result.code, result.err) == (0, "")
    first, second = (trace(tiny_model(kind), SENTENCE) for kind in ("single", "pair"))
    upper, lower = result.out.split(f"\n{models / 'pair'}\n")
    assert upper.startswith(f"{models / 'single'} · {remarks(first)}\n\n{first.tree.draw(100)}\n\n")
    assert lower.startswith(f"\n{second.tree.draw(100)}\n\nmerge    score  probability  words\n")
    rows = lower.splitlines()[-7:]
    for step, (row, node) in enumerate(zip(rows, second.nodes[8:], strict=True), 1):
        start, end = node.span
        shown = row.split(maxsplit=3)
        assert shown[0] == str(step)
        assert float(shown[1]) == pytest.approx(node.score, abs=6e-4)
        assert float(shown[2]) == pytest.approx(node.probability, abs=6e-4)
        assert shown[3] == " ".join(second.tree.words[start:end])


def test_draw_prints_no_commands_for_the_terminal(models):
    result = run("draw", models / "pair", "the \x1b[31mdog\x07 .")
    assert result.code == 0
    assert "\x1b" not in result.out
    assert "\x07" not in result.out
    assert result.out.splitlines()[-1] == "unknown to the model: \ufffd[31mdog\ufffd"


@pytest.mark.parametrize("command", [["draw"], ["parse", "--draw"]])
def test_ascii_is_printed_where_the_terminal_has_nothing_else(models, command):
    given = [*command, str(models / "single"), "the na\u00efve dog \u732b ."]
    found = {}
    for encoding in ("ascii", "latin-1", "utf-8"):
        stream = Terminal(io.BytesIO(), encoding=encoding, newline="")
        with redirect_stdout(stream), mock.patch.dict("os.environ", COLUMNS="100"):
            app(given, standalone_mode=False)
        stream.flush()
        found[encoding] = stream.buffer.getvalue().decode(encoding)
    assert found["utf-8"] == run(*given).out
    drawn = found["ascii"].splitlines()
    assert "the na?ve dog ? ." in drawn
    assert any(set(line) == set(" +-|") for line in drawn)
    assert "the na\u00efve dog ? ." in found["latin-1"]
    if command == ["draw"]:
        assert f"{models / 'single'} \u00b7 " in found["latin-1"]


def test_letters_that_no_font_has_are_no_warning(models, tmp_path, recwarn):
    out = tmp_path / "tree.png"
    run("draw", models / "single", "\U00013000 \u2d63 .", "--out", out, "--quiet")
    assert out.exists()
    assert not [each for each in recwarn if "Glyph" in str(each.message)]


def test_models_without_scores_or_trees(models, tmp_path):
    for trees in ("left", "random"):
        gumbeltree.save(tiny_model("single", trees=trees), tmp_path / trees)
    printed = run("draw", tmp_path / "left", "the dog sleeps").out.splitlines()
    assert printed[0].endswith(" \u00b7 fixed tree (left), no scores")
    assert printed[-3:] == ["merge  words", "    1  the dog", "    2  the dog sleeps"]
    seeded = run("draw", tmp_path / "left", "the dog sleeps", "--seed", 3).out.splitlines()
    assert seeded == printed
    sampled = run("draw", tmp_path / "random", "the dog sleeps", "--seed", 3).out
    assert "fixed tree (random), no scores \u00b7 sampled\n" in sampled
    encoder = BagConfig(5, 6)
    old = tiny_model("single")
    bag = SentenceModel(dataclasses.replace(old.config, encoder=encoder), old.tokenizer)
    gumbeltree.save(bag, tmp_path / "bag")
    refused = run("draw", models / "single", tmp_path / "bag", SENTENCE).refused()
    assert f"{tmp_path / 'bag'}: this model builds no tree: its encoder is 'bag'" in refused
    with torch.no_grad():
        old.encoder.query.fill_(torch.nan)
    gumbeltree.save(old, tmp_path / "broken")
    refused = run("draw", tmp_path / "broken", SENTENCE, "--out", tmp_path / "a.svg").refused()
    assert "encoder.query contains NaN" in refused
    assert not (tmp_path / "a.svg").exists()


def test_fixed_trees_are_drawn_without_scores():
    found = made("a b c", [0, 0], [[-3.0, 1.0], [-1.0]], trees="left", classes={"good": 1.0})
    drawn = draw_trees([("m", found)])
    texts = [mark.text for mark in drawn.scene.marks if isinstance(mark, Label)]
    assert texts == ["m", "good 100.0 % \u00b7 fixed tree (left), no scores", *"12abc"]
    assert {mark.fill for mark in drawn.scene.marks if isinstance(mark, Disc)} == {GREY}
    # no room for a scale
    assert drawn.scene.width == pytest.approx(40 + text_width(texts[1], 12))
    assert told(found, 3) == "merge 1: a b \u00b7 good 100.0 %"
    assert "core" not in drawn.scene.description.replace("no scores", "")


def test_draw_writes(models, tmp_path):
    out = tmp_path / "trees.svg"
    result = run("draw", models / "single", models / "pair", SENTENCE, "--out", out)
    assert (result.code, result.out) == (0, "")
    assert result.err == f"{out}: {out.stat().st_size:,} bytes\n"
    pairs = [(str(models / k), trace(tiny_model(k), SENTENCE)) for k in ("single", "pair")]
    assert out.read_text(encoding="utf-8") == draw_trees(pairs).svg() + "\n"
    options = ["--seed", 4, "--temperature", 2, "--pretokenized", "--quiet", "--out", out]
    assert run("draw", models / "single", SENTENCE, *options) == (0, "", "")
    options = {"seed": 4, "temperature": 2.0, "pretokenized": True}
    found = trace(tiny_model("single"), SENTENCE, **options)
    expected = draw_trees([(str(models / "single"), found)]).svg() + "\n"
    assert out.read_text(encoding="utf-8") == expected
    assert "sampled" in expected


def test_draw_says_that_it_reads_the_beginning_only(models):
    result = run("draw", models / "pair", "dog " * 1030)
    assert result.code == 0
    message = "the first 1,024 words are read, the rest of the text is not"
    assert result.err == f"{models / 'pair'}: {message}\n"
    assert "end of the text left out" in result.out.splitlines()[0]
    assert run("draw", models / "pair", "dog " * 1030, "--quiet").err == ""


def test_errors_of_use(models, tmp_path, tmp_path_factory):
    model, run_folder = models / "pair", tmp_path_factory.mktemp("run")
    (run_folder / "model").mkdir()
    (run_folder / "model" / "config.json").touch()
    for arguments, message in [
        (["sst2-100d"], "expected a model and a text, got only 'sst2-100d'; write gumbeltree draw"),
        ([model, "  "], "expected a text as the last argument, got an empty one"),
        ([model, models / "single"], "expected a text as the last argument, got the model"),
        ([model, "snli-100d"], "got the model snli-100d; add a sentence, in quotes"),
        ([model, run_folder], "got the model"),
        ([model, models / "single" / "model.safetensors"], "got the path"),
        ([model, models], "got the path"),
        ([model, "dog", SENTENCE], "dog is no model folder"),
        ([model, "dog", "--out", tmp_path / "a.pdf"], "expected a file that ends in .svg or .png"),
        ([model, "dog", "--film", tmp_path / "a.mp4"], "ends in .json, .svg or .gif, got 'a.mp4'"),
        ([model, "dog", "--out", tmp_path / "no" / "a.svg"], "to write to, got none; make it"),
        *(
            ([model, "dog", "--temperature", value], f"from 0.000001 to 1,000,000, got {value}; 1")
            for value in ("0.0", "-1.0", "inf", "nan", "1e+300")
        ),
    ]:
        assert message in run("draw", *arguments).refused()
    assert not list(tmp_path.iterdir())


# the page


def test_the_page_shows_what_the_command_prints():
    page = (DOCS / "draw.md").read_text(encoding="utf-8")
    text = "i love this very much ."
    printed = run("draw", "sst2-100d", text).out
    assert f'$ gumbeltree draw sst2-100d "{text}"\n{printed}```' in page
    pairs = [(name, trace(gumbeltree.load(name), text)) for name in ("sst2-100d", "snli-100d")]
    picture = (DOCS / "images" / "draw-figure4.svg").read_text(encoding="utf-8")
    assert picture == draw_trees(pairs).svg() + "\n"
    lower, higher = sorted(pairs[0][1].layers[3].probabilities)
    assert f'"much ." had {100 * higher:.2f} %' in page
    assert f"{100 * lower:.2f} %." in page


def test_long_words_are_shortened_as_before() -> None:
    from gumbeltree.analysis.figure.marks import shortened, text_width

    for text in (
        "short",
        "a rather long caption of a node",
        "iiiiWWWWiiiiWWWW",
        "Ünï\u0301cödé text",
    ):
        for room in (1.0, 20.0, 45.5, 80.0, 1000.0):
            found = shortened(text, 12, room)
            if text_width(text, 12) <= room:
                assert found == text
                continue
            assert found.endswith("\u2026")
            kept = found.removesuffix("\u2026")
            assert text.startswith(kept)
            assert text_width(found, 12) <= room or len(kept) == 1
            # one more letter would not fit
            more = text[: len(text[: len(kept)]) + 1].rstrip()
            longer = text[: len(kept) + 1] + "\u2026"
            assert text_width(longer, 12) > room or len(more) == len(kept)
    assert len(shortened("x" * 1_000_000, 12, 100)) < 100


def test_a_text_may_be_the_name_of_a_folder(models, tmp_path, monkeypatch) -> None:
    (tmp_path / "dog").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run("draw", models / "pair", "dog").code == 0


def test_one_file_for_two_pictures_is_refused(tmp_path) -> None:
    file = tmp_path / "x.svg"
    code, _, err = run("draw", "sst2-100d", "good film", "--out", file, "--film", file)
    assert code == 1
    assert "--out and --film must be two files" in err
    assert not file.exists()


def test_a_text_without_quotes_gets_a_hint() -> None:
    err = run("draw", "sst2-100d", "i", "love", "film").refused()
    assert "i is no model folder" in err
    assert "only the last argument, 'film', is the text; put all of it in quotes" in err
    assert "quotes" not in run("draw", "no-such-model", "film").refused()
