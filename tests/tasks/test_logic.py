"""Test propositional logic: formulas, relations, trees, bad lines, splits."""

import gzip
import itertools

import pytest

from gumbeltree.tasks.logic import HELD_OUT, LABELS, VARIABLES, Logic, read_formula, relation
from gumbeltree.text.files import BadLineError, Report
from tests.commands import run


def truth(text, world):
    """Evaluate a formula with Python's own operators."""
    words = {name: str(value) for name, value in zip(VARIABLES, world, strict=True)}
    code = " ".join(words.get(token, token) for token in text.split())
    # "( x ( and y ) )" in Python: "( x and ( y ) )"
    return eval(code.replace("( and", "and (").replace("( or", "or ("))


FORMULAS = (
    *("a", "( not a )", "( a ( and b ) )", "( a ( or ( not b ) ) )"),
    *("( ( not ( a ( or c ) ) ) ( and ( not ( f ( and ( d ( or e ) ) ) ) ) ) )", "( b ( or a ) )"),
    *("( a ( and ( not a ) ) )", "( ( not a ) ( and ( not b ) ) )", "( ( not a ) ( or a ) )"),
)


@pytest.mark.parametrize("text", FORMULAS)
def test_worlds_of_a_formula(text):
    worlds = list(itertools.product((False, True), repeat=len(VARIABLES)))
    # bit i of a world's number is the value of variable i
    wanted = sum(
        1 << number
        for number, world in enumerate(tuple(reversed(world)) for world in worlds)
        if truth(text, world)
    )
    formula = read_formula(text)
    assert formula.worlds == wanted
    assert formula.operations == sum(token in ("and", "or", "not") for token in text.split())


def test_relations():
    found = {
        relation(read_formula(x).worlds, read_formula(y).worlds): (x, y)
        for x, y in itertools.product(FORMULAS, repeat=2)
    }
    assert set(found) == set(LABELS)
    wanted = {"=": ("a", "a"), "<": ("( a ( and b ) )", "a"), ">": ("a", "( a ( and b ) )")}
    wanted |= {"^": ("a", "( not a )"), "|": ("( a ( and b ) )", "( not a )"), "#": ("a", "b")}
    wanted["v"] = ("( b ( or a ) )", "( not a )")
    for name, (x, y) in wanted.items():
        assert relation(read_formula(x).worlds, read_formula(y).worlds) == name


def test_reads_pairs_and_trees(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("|\t( a ( and b ) )\t( not a )\n")
    (example,) = Logic().read(path, "test", Report())
    assert example.texts == ("( a ( and b ) )", "( not a )")
    assert example.label == "|"
    left, right = (str(tree).replace("-LRB-", "L").replace("-RRB-", "R") for tree in example.trees)
    assert left == "( ( L ( a ( ( L ( and b ) ) R ) ) ) R )"
    assert right == "( ( L ( not a ) ) R )"
    task = Logic()
    task.trees = False
    assert next(task.read(path, "test", Report())).trees == (None, None)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("=\ta\tb", "the relation #"),
        ("?\ta\tb", "one of the labels"),
        ("=\ta", "3 columns"),
        ("=\ta\t", "text as formula"),
        *(
            (f"=\ta\t{text}", "a formula of a..f")
            for text in ("g", "( a", "a )", "( a b )", "( and a )", "( not a b )", "a b", "( )")
        ),
    ],
)
def test_rejects_bad_lines(tmp_path, line, match):
    path = tmp_path / "a.tsv"
    path.write_text(f"=\ta\ta\n{line}\n")
    with pytest.raises(BadLineError, match=match):
        list(Logic().read(path, "test", Report()))


def test_command_makes_splits(tmp_path):
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    plain = ["=\ta\ta", "#\ta\tb", ">\ta\t( a ( and b ) )", "^\ta\t( not a )"]
    held = "#\tb\t( a ( and ( not c ) ) )"
    trained = ["#\tb\t( a ( or ( not c ) ) )", "#\tb\t( d ( and ( not c ) ) )"]
    for i in range(7):
        with gzip.open(source / f"train{i}.gz", "wt") as file:
            file.write("\n".join([*plain, *trained, held]) + "\n")
    for i in range(13):
        (source / f"test{i}").write_text(f"{held}\n" if i in (3, 9) else "=\tb\tb\n")
    result = run("data", "make", "logic", "--from", source, "--out", out)
    assert result.code == 0, result
    count = {
        path.relative_to(out).as_posix(): len(path.read_text().splitlines())
        for path in out.rglob("*.tsv")
    }
    # the pair that is also in test is dropped: 42 of 49 lines remain, every tenth for development
    assert (count["train.tsv"], count["dev.tsv"]) == (38, 4)
    assert (count["split-c/train.tsv"], count["split-c/dev.tsv"]) == (26, 2)
    assert count["split-c/test.tsv"] == 1
    assert (out / "split-c/dev-held-out.tsv").read_text().strip() in trained
    assert not any(
        HELD_OUT.search((out / f"split-c/{x}.tsv").read_text()) for x in ("train", "dev")
    )
    (source / "test7").write_text("=\ta\ta\n=\ta\n")
    message = run("data", "make", "logic", "--from", source, "--out", tmp_path / "b").refused()
    assert "test7, line 2: expected" in message
    assert "get the published files again" in message
    (source / "test7").write_text("")
    message = run("data", "make", "logic", "--from", source, "--out", tmp_path / "b").refused()
    assert "test7 contains no pairs" in message
    assert not (tmp_path / "b").exists()
    assert sum(f"test-{i}.tsv" in count for i in range(13)) == 13
    assert "train.tsv: 38 examples, 7 dropped" in result.out
