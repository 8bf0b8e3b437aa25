"""The merges as a film: data, SVG that moves, GIF."""

import io
import json
import shutil
import sys
from contextlib import redirect_stderr
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

import gumbeltree
from gumbeltree.analysis.figure.layout import HEADER, MARGIN
from gumbeltree.analysis.figure.marks import BLUE, YELLOW, Label, PathMark, channels, ramp
from gumbeltree.analysis.film import MOST_WORDS, Film, draw_film, film
from gumbeltree.analysis.film.gif import palette
from gumbeltree.analysis.film.layout import BARS, CHOICE, RUNNER_UP, reel
from gumbeltree.analysis.trace import trace
from gumbeltree.cli.app import app
from gumbeltree.tree import Tree
from tests.analysis.test_figure import SENTENCE, SVG, made, models, random_trace  # noqa: F401
from tests.commands import Terminal, run
from tests.models import tiny_model

# b and c first: probabilities 0.2 and 0.8, since exp(ln 4) = 4
HAND = made("a b c", [1, 0], [[0.0, 1.3862943611198906], [-1.0]])


def at(shown, picture):
    """The marks that come and go which one picture shows."""
    return [mark for mark, (first, end) in shown.timed if first <= picture < end]


def bars(shown, picture):
    """The bars of a picture: left, top, right, bottom of each by the colour of its line."""
    found = {}
    for mark in at(shown, picture):
        # the small squares of the caption are 9 wide
        if isinstance(mark, PathMark) and mark.path[-1][0] == "Z":
            for i in range(0, len(mark.path), 5):
                (x, y), (right, _), (_, bottom) = (place for _, place in mark.path[i : i + 3])
                if abs(right - x - 9) > 1e-6:
                    found.setdefault(mark.stroke, []).append((x, y, right, bottom))
    return found


# data


def test_data_worked_by_hand():
    a, b, c = ({"node": i, "span": [i, i + 1], "words": [word]} for i, word in enumerate("abc"))
    both = {"node": 3, "span": [1, 3], "words": ["b", "c"]}
    about = film(HAND)
    assert about == {
        "text": "a b c",
        "words": ["a", "b", "c"],
        "unknown": [False, False, False],
        "sampled": False,
        "cut": False,
        "layers": [
            {
                "nodes": [a, b, c],
                "scores": [0.0, 1.3862943611198906],
                "probabilities": [pytest.approx(0.2), pytest.approx(0.8)],
                "choice": 1,
                "runner_up": 0,
                "made": 3,
            },
            {
                "nodes": [a, both],
                "scores": [-1.0],
                "probabilities": [1.0],
                "choice": 0,
                "runner_up": None,
                "made": 4,
            },
        ],
        "root": {"node": 4, "span": [0, 3], "words": ["a", "b", "c"]},
        "brackets": "( a ( b c ) )",
        "classes": None,
    }
    assert json.loads(json.dumps(about)) == film(HAND)


def test_data_of_a_sampled_trace_fit_together():
    found = trace(tiny_model("single"), SENTENCE, seed=2)
    about = film(found)
    assert about["sampled"]
    order = [layer["choice"] for layer in about["layers"]]
    assert str(Tree(about["words"], order)) == about["brackets"]
    for layer in about["layers"]:
        assert sum(layer["probabilities"]) == pytest.approx(1)
        assert len(layer["nodes"]) == len(layer["scores"]) + 1
        assert [word for node in layer["nodes"] for word in node["words"]] == about["words"]
        others = [p for i, p in enumerate(layer["probabilities"]) if i != layer["choice"]]
        if others:
            assert layer["probabilities"][layer["runner_up"]] == max(others)
    for layer, following in pairwise([*about["layers"], {"nodes": [about["root"]]}]):
        left, right = layer["nodes"][layer["choice"] : layer["choice"] + 2]
        (new,) = (node for node in following["nodes"] if node["node"] == layer["made"])
        assert new["words"] == left["words"] + right["words"]
    # the choice is sampled: here it is not always the most probable
    assert any(
        layer["runner_up"] is not None
        and layer["probabilities"][layer["runner_up"]] > layer["probabilities"][layer["choice"]]
        for layer in about["layers"]
    )


# pictures


def test_pictures_worked_by_hand():
    shown = reel([("m", HAND)])
    assert shown.seconds == (2.4, 2.4, 4.0)
    first, second = bars(shown, 0), bars(shown, 1)
    # 0.8 is the full height, 0.2 a quarter of it
    ((left, top, right, floor),) = first[CHOICE]
    ((low_left, low_top, low_right, low_floor),) = first[RUNNER_UP]
    assert floor == low_floor
    assert floor - top == pytest.approx(BARS)
    assert floor - low_top == pytest.approx(BARS / 4)
    # between the words: the columns are 46 wide
    assert (left + right) / 2 - (low_left + low_right) / 2 == pytest.approx(46)
    assert list(second) == [CHOICE]
    assert bars(shown, 2) == {}
    texts = [[m.text for m in at(shown, i) if isinstance(m, Label)] for i in range(3)]
    assert texts[0] == [
        *("80 %", "20 %", "layer 1 of 2: 2 candidates"),
        *("chosen, 80.0 %: b + c", "runner-up, 20.0 %: a + b"),
    ]
    assert texts[1][:3] == ["100 %", "layer 2 of 2: 1 candidate", "chosen, 100.0 %: a + b c"]
    # the first merge is there from the second picture on, the second in the last
    assert texts[1][3:] == ["1", "1.39"]
    assert texts[2] == ["finished", "( a ( b c ) )", "1", "1.39", "2", "\u22121.00"]


def test_lines_below_the_words_cover_them_at_all_times():
    found = random_trace(9)
    shown = reel([("m", found)])
    for picture in range(9):
        lines = sorted(
            (mark.path[0][1][0], mark.path[1][1][0])
            for mark in at(shown, picture)
            if isinstance(mark, PathMark) and mark.stroke == "muted"
        )
        assert len(lines) == 9 - picture
        assert all(left[1] < right[0] for left, right in pairwise(lines))


@pytest.mark.parametrize("count", [2, 7, 20, 60])
def test_bars_and_their_figures_never_touch(count):
    shown = reel([("m", random_trace(count))])
    for picture in range(count - 1):
        every = sorted(box for boxes in bars(shown, picture).values() for box in boxes)
        assert len(every) == count - 1 - picture
        assert all(left[2] < right[0] for left, right in pairwise(every))
        # every one may have one, the choice always does
        bold = [m for m in at(shown, picture) if isinstance(m, Label) and m.text.endswith(" %")]
        assert sum(mark.bold for mark in bold) == 1
    assert sum(shown.seconds) < 70


def test_sampled_merges_are_called_so():
    shown = reel([("m", made("a b c", [0, 0], [[0.0, 1.3862943611198906], [1]], sampled=True))])
    texts = [mark.text for mark in at(shown, 0) if isinstance(mark, Label)]
    assert texts[-2:] == ["sampled, 20.0 %: a + b", "best of the others, 80.0 %: b + c"]


def test_the_shorter_of_two_waits_at_its_end():
    shown = reel([("long", made("a b c d", [0, 0, 0])), ("short", made("a b", [0]))])
    assert len(shown.seconds) == 4
    finished = [sum(getattr(m, "text", "") == "finished" for m in at(shown, i)) for i in range(4)]
    assert finished == [0, 1, 1, 2]


# SVG


def test_svg_moves():
    text = draw_film([("<m>", HAND), ("n", HAND)]).svg()
    root = ElementTree.fromstring(text)
    assert root.find(f"{SVG}title").text == "<m>, n: a b c"
    assert "prefers-reduced-motion:reduce" in root.find(f"{SVG}style").text
    moves = list(root.iter(f"{SVG}animate"))
    assert moves
    for move in moves:
        times = [float(time) for time in move.get("keyTimes").split(";")]
        values = move.get("values").split(";")
        assert len(times) == len(values)
        assert (times[0], times[-1]) == (0, 1)
        assert times == sorted(times)
        assert move.get("dur") == "8.8s"
        assert move.get("repeatCount") == "indefinite"
    # without animation the finished trees are seen and nothing else
    for group in root.iter(f"{SVG}g"):
        kind = group.get("class")
        if kind:
            assert group.get("opacity") == {"gt-stays": "1", "gt-passes": "0"}[kind]
            values = group.find(f"{SVG}animate").get("values")
            assert values.endswith("1" if kind == "gt-stays" else "0")
    stays = [g for g in root.iter(f"{SVG}g") if g.get("class") == "gt-stays"]
    assert sum(len(list(group.iter(f"{SVG}circle"))) for group in stays) == 4
    assert Film((("<m>", HAND), ("n", HAND)))._repr_svg_() == text


def test_timing_worked_by_hand():
    root = ElementTree.fromstring(draw_film([("m", HAND)]).svg())
    # 2.4 s, 2.4 s and 4 s, fades of 0.2 s: layer 1 goes from 2.2 to 2.4 of 8.8 s
    (first,) = (
        group.find(f"{SVG}animate")
        for group in root.iter(f"{SVG}g")
        if any("layer 1 of 2" in (t.text or "") for t in group.findall(f"{SVG}text"))
        and group.get("class")
    )
    assert first.get("values") == "1;1;0;0"
    assert first.get("keyTimes") == "0;0.25;0.27273;1"


def test_less_motion_in_a_browser(tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    if browser_path is None:
        pytest.skip("needs Chromium")
    path = tmp_path / "film.svg"
    draw_film([("m", HAND)]).save(path)
    script = """() => {
        document.documentElement.setCurrentTime(1)
        return [...document.querySelectorAll('g[class]')].map(g => {
            const style = getComputedStyle(g)
            return [g.getAttribute('class'), style.display == 'none' ? 0 : Number(style.opacity)]
        })
    }"""
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        seen = {}
        for motion in ("reduce", "no-preference"):
            page = browser.new_page(reduced_motion=motion)
            page.goto(path.as_uri())
            seen[motion] = page.evaluate(script)
        browser.close()
    assert all(opacity == (kind == "gt-stays") for kind, opacity in seen["reduce"])
    # while the first layer is shown there is no merge yet
    assert all(opacity == 0 for kind, opacity in seen["no-preference"] if kind == "gt-stays")
    assert any(opacity == 1 for kind, opacity in seen["no-preference"] if kind == "gt-passes")


# files


def test_gif_has_a_frame_a_layer_and_the_tree(tmp_path):
    image = pytest.importorskip("PIL.Image")
    draw_film([("m", HAND), ("n", HAND)]).save(tmp_path / "film.gif")
    with image.open(tmp_path / "film.gif") as read:
        assert read.format == "GIF"
        assert read.n_frames == 3
        assert read.info["loop"] == 0
        durations, marked = [], []
        for frame in range(3):
            read.seek(frame)
            durations.append(read.info["duration"])
            dots = np.asarray(read.convert("RGB"), dtype=int)
            wanted = [int(CHOICE[i : i + 2], 16) for i in (1, 3, 5)]
            marked.append(int((abs(dots - wanted).max(axis=2) < 12).sum()))
    assert durations == [2400, 2400, 4000]
    # bars of the choice in both layers, none beside the finished trees
    assert min(marked[:2]) > 1000
    assert marked[2] == 0


def test_the_frames_of_a_gif_share_their_colours(tmp_path):
    image = pytest.importorskip("PIL.Image")
    shown = draw_film([("m", random_trace(5))])
    shown.save(tmp_path / "film.gif")
    with image.open(tmp_path / "film.gif") as read:
        frames = []
        for frame in range(read.n_frames):
            read.seek(frame)
            frames.append(np.asarray(read.convert("RGB"), dtype=int))
    one_number = [1, 256, 256**2]
    own = set((palette() @ one_number).tolist())
    assert len(own) <= 256
    assert {c for f in frames for c in np.unique(f @ one_number).tolist()} <= own
    # nothing moves above the tree: name and scale are in all frames what they are in the first
    scene = reel(shown.traces).scene
    scale = frames[0].shape[1] / np.ceil(scene.width)
    header = slice(0, int(scale * (MARGIN + HEADER - 16)))
    assert all((frame[header] == frames[0][header]).all() for frame in frames)
    # the two ends of the scale and the circles of these scores, in the last frame
    for colour in (YELLOW, BLUE, ramp(0.5)):
        apart = abs(frames[-1] - list(channels(colour))).max(axis=2)
        assert (apart <= 4).sum() > 20, colour


def test_progress_is_told(tmp_path):
    pytest.importorskip("matplotlib")
    shown = draw_film([("m", HAND), ("n", made("a b", [0]))])
    told = []
    shown.save(tmp_path / "film.gif", told.append)
    assert told == [1] * shown.pictures == [1, 1, 1]


def test_the_command_shows_progress_on_a_terminal(models, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("TERM", "xterm")
    path = tmp_path / "film.gif"
    found = []
    for options in ([], ["--quiet"]):
        stream = Terminal(io.BytesIO(), encoding="utf-8")
        command = ["draw", models / "single", "the dog sleeps", "--film", path, *options]
        with redirect_stderr(stream):
            app(list(map(str, command)), standalone_mode=False)
        stream.flush()
        found.append(stream.buffer.getvalue().decode())
    assert "3 of 3 pictures" in found[0]
    assert found[0].endswith(f"{path}: {path.stat().st_size:,} bytes\n")
    assert found[1] == ""


def test_saved_data_and_one_word(tmp_path):
    shown = draw_film([("m", HAND), ("n", made("alone", []))])
    shown.save(tmp_path / "film.json")
    about = json.loads((tmp_path / "film.json").read_text(encoding="utf-8"))
    assert about == {
        "films": [{"model": "m", **film(HAND)}, {"model": "n", **film(shown.traces[1][1])}]
    }
    assert about["films"][1]["layers"] == []
    one = draw_film(shown.traces[1:])
    one.save(tmp_path / "one.gif")
    assert (tmp_path / "one.gif").read_bytes()[:4] == b"GIF8"
    assert "<animate" not in one.svg()


def test_films_that_cannot_be_made(tmp_path):
    with pytest.raises(ValueError, match=r"ends in \.json, \.svg or \.gif, got 'film\.png'"):
        draw_film([("m", HAND)]).save(tmp_path / "film.png")
    with pytest.raises(ValueError, match="got none"):
        draw_film([])
    long = draw_film([("m", random_trace(MOST_WORDS + 1))])
    with pytest.raises(ValueError, match=f"{MOST_WORDS} words at most, got {MOST_WORDS + 1}; take"):
        long.save(tmp_path / "film.svg")
    assert long.check(tmp_path / "film.JSON") == ".json"
    long.save(tmp_path / "film.json")
    with pytest.raises(ValueError, match=r"fixed: expected .* trees are fixed \(left\), so that"):
        draw_film([("m", HAND), ("fixed", made("a b c", [0, 0], trees="left"))])
    assert [path.name for path in tmp_path.iterdir()] == ["film.json"]


def test_the_command_writes_films(models, tmp_path):  # noqa: F811
    paths = [tmp_path / f"film.{suffix}" for suffix in ("json", "svg", "gif")]
    arguments = [models / "single", models / "pair", "the dog sleeps"]
    for path in paths:
        result = run("draw", *arguments, "--film", path)
        assert (result.code, result.out) == (0, "")
        assert result.err == f"{path}: {path.stat().st_size:,} bytes\n"
    pairs = [
        (str(models / kind), trace(tiny_model(kind), "the dog sleeps"))
        for kind in ("single", "pair")
    ]
    assert json.loads(paths[0].read_text(encoding="utf-8")) == draw_film(pairs).data()
    assert paths[1].read_text(encoding="utf-8") == draw_film(pairs).svg() + "\n"
    both = run("draw", *arguments, "--film", paths[0], "--out", tmp_path / "tree.svg")
    assert both.err.count("bytes") == 2


def test_a_refused_film_leaves_no_drawing(models, tmp_path, monkeypatch):  # noqa: F811
    out = ["--out", tmp_path / "tree.svg", "--film"]
    long = "dog " * (MOST_WORDS + 1)
    for suffix in ("svg", "gif"):
        refused = run("draw", models / "pair", long, *out, tmp_path / f"film.{suffix}").refused()
        assert f"{MOST_WORDS} words at most" in refused
    gumbeltree.save(tiny_model("single", trees="left"), tmp_path / "left")
    command = ["draw", tmp_path / "left", SENTENCE, *out, tmp_path / "film.json"]
    assert "trees are fixed (left)" in run(*command).refused()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    command = ["draw", models / "pair", SENTENCE, *out, tmp_path / "film.gif"]
    assert "pip install 'gumbeltree[plots]'" in run(*command).refused()
    assert [path.name for path in tmp_path.iterdir()] == ["left"]
