"""The commands on random text: they print a result or an error of one line."""

import dataclasses
import json
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gumbeltree
from gumbeltree.model import SentenceModel
from gumbeltree.text.ids import max_characters
from gumbeltree.text.tokenizer import treebank_tokenizer
from tests.commands import Result, run
from tests.models import WORDS, tiny_config

FUZZ = settings(max_examples=8, deadline=None)
MAX_WORDS = 64
ODD = [
    "a\0b \0",
    "👩‍👩‍👧 \U0001f1e9\U0001f1ea",
    "e\u0301\u0327\u0302 \u0301",
    "שלום \u202eעולם\u202c مرحبا",
    "\u200b \u200d \ufeff",
    "\ufffe\uffff \U0010ffff",
    "-LRB- -RRB- ( ) -LRB-",
    "<unk> <pad> <unk>",
    "İSTANBUL ŞİŞ ß ﬁ",
    "\"'`''``\"\" can't. Mr. X. ...",
    "[bold]red[/bold] [/] {x} %s \\ \\n \\/",
    "\x1b[31mred\x1b[0m \x07 \x7f",
    "\x0b\x0cnow\x85now\u2028now\u2029now",
    "NaN null true 1e999",
    "--help -q --",
    "a" * 300,
    " ".join(["word"] * 150),
    "喜欢 " * 40,
]
texts = st.text(min_size=1, max_size=30)
lines = st.lists(texts | st.sampled_from(ODD), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    tokenizer = treebank_tokenizer(WORDS, lower=True)
    for kind in ("pair", "single"):
        config = dataclasses.replace(tiny_config(kind), max_words=MAX_WORDS)
        gumbeltree.save(SentenceModel(config, tokenizer), folder / kind)
    return folder


def check(result: Result) -> bool:
    """Return whether the command succeeded; assert that it otherwise printed one line."""
    if result.code == 0:
        assert re.fullmatch(r"(.*float32\n)?\d[\d,]* texts?(, .*)?\n(.* skipped:\n(  .*\n)*)?",
                            result.err), result.err  # fmt: skip
        return True
    assert result.code == 1, result
    assert result.err.startswith("gumbeltree: error: "), result
    assert re.fullmatch(r"[^\n]*\n", result.err), result
    assert len(result.err) < 600
    return False


def is_blank(line: str) -> bool:
    return not line.strip()


@FUZZ
@given(lines)
@example(ODD)
@example(["caf\udce9"])
@example([" "])
def test_texts_as_arguments(models, given_texts):
    good = not any(is_blank(text) for text in given_texts) and "\udce9" not in given_texts[0]
    for command in (["parse", "--format", "json"], ["predict", "--json"], ["parse", "--draw"]):
        result = run(*command, models / "single", "--", *given_texts)
        assert check(result) == good
        if good and "--draw" not in command:
            # texts may contain other line separators than LF
            objects = [json.loads(line) for line in result.out.split("\n")[:-1]]
            assert [about["text"] for about in objects] == given_texts


@FUZZ
@given(lines)
@example(ODD)
@example(["\ufeffnow", "\ufeff", "now"])
def test_lines_of_standard_input(models, given_texts):
    given_texts = [text.replace("\n", " ").rstrip("\r") for text in given_texts]
    stdin = "\n".join(given_texts).encode()
    kept = [text.removeprefix("\ufeff") if not i else text for i, text in enumerate(given_texts)]
    result = run("predict", models / "single", stdin=stdin)
    strict = check(result)
    rows = kept if kept[-1] else kept[:-1]
    assert strict == (not any(map(is_blank, rows)))
    lenient = run("predict", models / "single", "--skip-bad", "--json", stdin=stdin)
    assert check(lenient)
    answers = [json.loads(line)["text"] for line in lenient.out.split("\n")[:-1]]
    assert answers == [row for row in rows if not is_blank(row)]
    if strict:
        assert result.out.count("\n") == len(rows)


@FUZZ
@given(st.binary(max_size=60))
@example(b"\xff\xfen\0o\0w\0")
@example(b"\xed\xa0\x80")
@example(b"now\xc3")
@example(b"\0\0\n\0")
@example(b"\r\n\r\r\n")
@example(b"\xef\xbb\xbf")
@example(b"a\tb\tc\n\t\n")
def test_any_bytes(models, stdin):
    for command, model in (("parse", "single"), ("predict", "pair")):
        check(run(command, models / model, stdin=stdin))
        assert check(run(command, models / model, "--skip-bad", stdin=stdin))


@FUZZ
@given(st.binary(max_size=60) | lines.map(lambda x: "\n".join(x).encode()))
def test_encode_any_bytes(models, tmp_path_factory, stdin):
    out = tmp_path_factory.mktemp("out") / "x.npy"
    if check(run("encode", models / "single", "--out", out, stdin=stdin)):
        assert np.isfinite(np.load(out)).all()
    else:
        assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("unit", "limit"),
    [
        ("the dog ", f"{MAX_WORDS} words"),
        ("x", f"{max_characters(MAX_WORDS):,} characters"),
        ('"', f"{MAX_WORDS} words"),
    ],
    ids=["words", "one word", "quotes"],
)
def test_line_of_3_megabytes(models, tmp_path, unit, limit):
    line = (unit * (3_000_000 // len(unit))).encode()
    result = run("parse", models / "single", stdin=b"now\n" + line + b"\none\n")
    assert result.code == 0
    assert result.out.startswith("now\n")
    assert result.out.endswith("\none\n")
    assert f"1 text truncated to {limit}\n" in result.err
    assert len(result.out) < 100_000
    path = tmp_path / "x.txt"
    path.write_bytes(b"now\n" + line + b"\none\n")
    assert run("parse", models / "single", "--input", path) == result
