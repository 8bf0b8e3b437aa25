"""Films of the merges as animated SVG and GIF."""

import sys
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest

from gumbeltree.analysis.figure import EXPLAINED
from gumbeltree.analysis.film import (
    BARS,
    BARS_EXPLAINED,
    CHOICE,
    MOST_WORDS,
    RUNNER_UP,
    draw_film,
)
from gumbeltree.analysis.trace import trace
from gumbeltree.extras import install_command
from gumbeltree.picture import DOTTED
from tests.analysis.test_figure import SENTENCE, models  # noqa: F401
from tests.analysis.traces import made_trace, random_trace
from tests.commands import run
from tests.models import tiny_model

# b and c first: probabilities 0.2 and 0.8, since exp(ln 4) = 4
HAND = made_trace("a b c", [1, 0], [[0.0, 1.3862943611198906], [-1.0]])


def shown(film, frame):
    """Return the elements that appear or disappear and are visible in a frame."""
    timed = [mark for mark in film.scene.marks if mark.frames is not None]
    return [mark.element for mark in timed if mark.frames[0] <= frame < mark.frames[1]]


def texts(film, frame):
    return [element.text for element in shown(film, frame) if element.tag == "text"]


def bars(film, frame):
    """Return left, top, right and bottom of the bars by colour."""
    boxes = {}
    for element in shown(film, frame):
        for path in element.get("d", "").split("Z")[:-1]:
            corners = path.replace("L", "M").split("M")[1:]
            (left, top), _, (right, bottom), _ = (map(float, x.split()) for x in corners)
            # the swatches of the caption are 9 wide
            if abs(right - left - 9) > 1e-6:
                boxes.setdefault(element.get("stroke"), []).append((left, top, right, bottom))
    return boxes


# frames


def test_frames_worked_by_hand():
    film = draw_film([("m", HAND)])
    assert film.scene.seconds == (2.4, 2.4, 4.0)
    first, second = bars(film, 0), bars(film, 1)
    # 0.8 has the full height and 0.2 a quarter of it
    ((left, top, right, floor),) = first[CHOICE]
    ((low_left, low_top, low_right, low_floor),) = first[RUNNER_UP]
    assert floor == low_floor
    assert floor - top == pytest.approx(BARS)
    assert floor - low_top == pytest.approx(BARS / 4)
    # between the words: the columns are 46 wide
    assert (left + right) / 2 - (low_left + low_right) / 2 == pytest.approx(46)
    # the last merge has no alternative
    assert second == bars(film, 2) == {}
    assert texts(film, 0) == [
        *("\u22121.39", "layer 1 of 2: 2 candidates, lead 1.39"),
        *("chosen: b + c", "runner-up: a + b"),
    ]
    # the first merge appears in the second frame and the second merge in the last one
    assert texts(film, 1) == [
        *("layer 2 of 2: no alternative", "chosen: a + b c"),
        *("1", "1.39"),
    ]
    assert texts(film, 2) == ["1", "1.39", "2"]


def test_near_ties_are_named_and_stay_dotted():
    film = draw_film([("m", made_trace("a b c", [1, 0], [[0.0, 0.15]]))])
    assert texts(film, 0)[1] == "layer 1 of 2: 2 candidates, lead 0.15, near tie"
    dashes = [[e.get("stroke-dasharray") for e in shown(film, frame)] for frame in range(3)]
    assert [DOTTED in frame for frame in dashes] == [False, True, True]


def test_the_film_explains_itself_below():
    film = draw_film([("m", HAND), ("n", HAND)])
    still = [m.element.text for m in film.scene.marks if m.frames is None and m.element.text]
    assert f"{HAND.text} {EXPLAINED} {BARS_EXPLAINED}" in " ".join(still)


@pytest.mark.parametrize("count", [2, 20])
def test_each_candidate_has_its_bar(count):
    film = draw_film([("m", random_trace(count))])
    for frame in range(count - 1):
        boxes = sorted(box for same in bars(film, frame).values() for box in same)
        assert len(boxes) == (count - 1 - frame if frame < count - 2 else 0)
        assert all(left[2] < right[0] for left, right in pairwise(boxes))
    assert sum(film.scene.seconds) < 70


def test_captions_of_sampled_merges():
    film = draw_film(
        [("m", made_trace("a b c", [0, 0], [[0.0, 1.3862943611198906]], sampled=True))]
    )
    assert texts(film, 0)[-3:] == [
        "layer 1 of 2: 2 candidates, lead \u22121.39",
        *("sampled: a + b", "best of the others: b + c"),
    ]


def test_the_shorter_sentence_waits():
    film = draw_film(
        [("long", made_trace("a b c d", [0, 0, 0])), ("short", made_trace("a b", [0]))]
    )
    assert len(film.scene.seconds) == 4
    layers = [sum("layer" in text for text in texts(film, frame)) for frame in range(4)]
    assert layers == [2, 1, 1, 0]


# SVG


def test_svg_animation():
    root = ElementTree.fromstring(draw_film([("<m>", HAND), ("n", HAND)]).svg())
    assert root.find("{*}title").text == "<m>, n: a b c"
    assert "prefers-reduced-motion:reduce" in root.find("{*}style").text
    groups = [group for group in root.iterfind(".//{*}g") if group.get("class")]
    for group in groups:
        animation = group.find("{*}animate")
        times = [float(time) for time in animation.get("keyTimes").split(";")]
        values = animation.get("values").split(";")
        assert len(times) == len(values)
        assert (times[0], times[-1]) == (0, 1)
        assert times == sorted(times)
        assert animation.get("dur") == "8.8s"
        # viewers without animation show the finished trees
        stays = group.get("class") == "gt-stays"
        assert group.get("opacity") == values[-1] == str(int(stays))
    stays = [group for group in groups if group.get("class") == "gt-stays"]
    assert sum(len(list(group.iterfind("{*}circle"))) for group in stays) == 4
    # 2.4 s, 2.4 s and 4 s with fades of 0.2 s: layer 1 disappears from 2.2 to 2.4 of 8.8 s
    first = groups[0].find("{*}animate")
    assert first.get("values") == "1;1;0;0"
    assert first.get("keyTimes") == "0;0.25;0.27273;1"


# files


def test_gif_frames(tmp_path):
    image = pytest.importorskip("PIL.Image")
    draw_film([("m", HAND), ("n", HAND)]).save(tmp_path / "film.gif")
    frames, durations = [], []
    with image.open(tmp_path / "film.gif") as read:
        assert (read.format, read.n_frames, read.info["loop"]) == ("GIF", 3, 0)
        for frame in range(3):
            read.seek(frame)
            durations.append(read.info["duration"])
            frames.append(np.asarray(read.convert("RGB"), dtype=int))
    assert durations == [2400, 2400, 4000]
    # bars of the choice in the first layer, edges in both, nothing next to the finished trees
    orange = [int(CHOICE[i : i + 2], 16) for i in (1, 3, 5)]
    counts = [int((abs(frame - orange).max(axis=2) < 8).sum()) for frame in frames]
    assert counts[0] > 2 * counts[1] > 1000
    assert counts[2] == 0
    # the header is the same in all frames, on pure white
    assert all((frame[:90] == frames[0][:90]).all() for frame in frames)
    assert (frames[0][0, 0] == 255).all()


def test_film_of_one_word(tmp_path):
    pytest.importorskip("matplotlib")
    film = draw_film([("n", made_trace("alone", []))])
    film.save(tmp_path / "one.gif")
    assert (tmp_path / "one.gif").read_bytes()[:4] == b"GIF8"
    assert "<animate" not in film.svg()


def test_rejects_what_cannot_be_filmed(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.svg or \.gif"):
        draw_film([("m", HAND)]).save(tmp_path / "film.png")
    with pytest.raises(ValueError, match="nothing to draw"):
        draw_film([])
    with pytest.raises(ValueError, match=f"limited to {MOST_WORDS} words .* {MOST_WORDS + 1}"):
        draw_film([("m", random_trace(MOST_WORDS + 1))])
    with pytest.raises(ValueError, match=r"fixed builds fixed trees \(left\)"):
        draw_film([("m", HAND), ("fixed", made_trace("a b c", [0, 0], trees="left"))])


# the command


def test_command_writes_films(models, tmp_path):  # noqa: F811
    arguments = [models / "single", models / "pair", "the dog sleeps"]
    film, tree = tmp_path / "film.svg", tmp_path / "tree.svg"
    result = run("draw", *arguments, "--film", film, "--out", tree)
    assert (result.code, result.out) == (0, "")
    assert result.err.count("bytes") == 2
    pairs = [
        (str(models / kind), trace(tiny_model(kind), "the dog sleeps"))
        for kind in ("single", "pair")
    ]
    assert film.read_text(encoding="utf-8") == draw_film(pairs).svg() + "\n"
    assert tree.exists()


def test_a_rejected_film_leaves_no_figure(models, tmp_path, monkeypatch):  # noqa: F811
    out = ["--out", tmp_path / "tree.svg", "--film"]
    long = "dog " * (MOST_WORDS + 1)
    message = run("draw", models / "pair", long, *out, tmp_path / "film.svg").refused()
    assert f"{MOST_WORDS} words" in message
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    command = ["draw", models / "pair", SENTENCE, *out, tmp_path / "film.gif"]
    assert install_command("plots") in run(*command).refused()
    assert not list(tmp_path.iterdir())
