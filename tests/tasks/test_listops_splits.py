"""Test the ListOps splits: exact distribution of lengths, answers, limits, bytes, leaks."""

import hashlib
import itertools
import random
import re
from fractions import Fraction

import pytest

from gumbeltree.tasks import make
from gumbeltree.tasks.listops import ListOps, tree_of
from gumbeltree.tasks.listops_splits import PLANS, Grammar, Sampler, SplitPlan, draw_split, lines
from gumbeltree.text.files import Report
from tests.commands import run

SMALL = Grammar(Fraction(1, 2), arguments=3, levels=3)


def shapes(grammar, levels):
    """Yield the probability and the number of tokens of all trees, without the kinds of nodes."""
    q = grammar.operator if levels > 1 else Fraction(0)
    yield 1 - q, 1
    if levels == 1:
        return
    for count in range(2, grammar.arguments + 1):
        for parts in itertools.product(list(shapes(grammar, levels - 1)), repeat=count):
            probability = q / (grammar.arguments - 1)
            for p, _ in parts:
                probability *= p
            yield probability, 2 + sum(n for _, n in parts)


def value_of(tokens):
    """Evaluate an expression with Python's own parser."""
    names = {"[MIN": "min([", "[MAX": "max([", "[SM": "sm([", "[MED": "med(["}
    code = "".join("])," if t == "]" else names.get(t, f"{t},") for t in tokens)
    known = {"min": min, "max": max, "sm": lambda x: sum(x) % 10}
    known["med"] = lambda x: (sorted(x)[(len(x) - 1) // 2] + sorted(x)[len(x) // 2]) // 2
    return eval(code.rstrip(","), {"__builtins__": {}}, known)


def test_lengths_have_the_probabilities_of_all_trees():
    sampler = Sampler(SMALL, 40)
    wanted = dict.fromkeys(range(41), Fraction(0))
    for probability, length in shapes(SMALL, SMALL.levels):
        wanted[length] += probability
    assert sum(wanted.values()) == 1
    for length, probability in wanted.items():
        assert sampler.probability(length, length) == pytest.approx(float(probability), abs=1e-20)


def test_expressions_of_a_length_have_the_probabilities_of_the_generator():
    generator, sampler = random.Random(1), Sampler(SMALL, 12)
    drawn = [sampler.draw(generator, 8, 8).tokens for _ in range(4000)]
    shape = [re.sub(r"\d", "0", re.sub(r"\[\w+", "[", " ".join(tokens))) for tokens in drawn]
    # two and three arguments are equally likely; a digit at the second level has probability 1/2
    one, two = Fraction(1, 2), Fraction(1, 4)
    weight = {"[ 0 [ 0 0 0 ] ]": one, "[ [ 0 0 0 ] 0 ]": one}
    weight |= {"[ 0 0 [ 0 0 ] ]": two, "[ 0 [ 0 0 ] 0 ]": two, "[ [ 0 0 ] 0 0 ]": two}
    assert set(shape) == set(weight)
    for form, x in weight.items():
        share = shape.count(form) / len(shape)
        assert share == pytest.approx(float(x / sum(weight.values())), abs=0.03)


def test_published_probabilities_of_long_expressions():
    sampler = Sampler(Grammar(), 999)
    assert sampler.probability(201, 299) == pytest.approx(4.8e-3, rel=0.02)
    assert sampler.probability(501, 599) == pytest.approx(4.1e-4, rel=0.02)
    assert sampler.probability(901, 999) == pytest.approx(1.3e-5, rel=0.02)


@pytest.mark.parametrize("name", PLANS)
def test_splits_keep_their_limits_and_have_correct_answers(name):
    plan = PLANS[name]._replace(size=3)
    expressions, leaks = draw_split(plan, "any", set())
    assert leaks == 0
    for tokens, value, depth in expressions:
        assert plan.shortest <= len(tokens) <= plan.longest
        assert value_of(tokens) == value
        opened = itertools.accumulate((t[0] == "[") - (t == "]") for t in tokens)
        assert max(opened) + 1 == depth <= plan.grammar.levels
        assert plan.shallowest <= depth <= plan.deepest
        counts = re.findall(r"\[\w+((?: \d)+) \]", " ".join(tokens))
        assert all(2 <= len(found.split()) <= plan.grammar.arguments for found in counts)
        assert len(tree_of(tokens).words) == len(tokens)


def test_same_bytes_on_every_machine():
    plan = PLANS["300-400"]._replace(size=4)
    text = "".join(lines(draw_split(plan, "300-400 0", set())[0]))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "707e958f0f81c914"


def test_expressions_of_other_splits_are_dropped_and_counted():
    plan = SplitPlan(SMALL, 30, 4, 4)
    first, _ = draw_split(plan, "a", set())
    taken = {" ".join(x.tokens) for x in first}
    assert len(taken) == 30
    second, leaks = draw_split(plan, "a", taken)
    assert leaks >= 30
    assert not taken & {" ".join(x.tokens) for x in second}


@pytest.fixture
def few(monkeypatch):
    """Draw few expressions."""
    monkeypatch.setattr(make, "DRAWN", 300)
    monkeypatch.setattr(make, "DEV", 20)
    small = {name: PLANS[name]._replace(size=4) for name in ("200-300", "depth-dev")}
    monkeypatch.setattr(make, "PLANS", small)


def read(path):
    return list(ListOps().read(path, "test", Report()))


def test_command_writes_splits_that_share_nothing(few, tmp_path):
    result = run("data", "make", "listops", "--out", tmp_path / "a", "--seed", 3)
    assert result.code == 0, result
    names = ("train.tsv", "dev.tsv", "test.tsv", "test-200-300.tsv", "depth/dev.tsv")
    parts = {name: [x.texts[0] for x in read(tmp_path / "a" / name)] for name in names}
    assert {name: len(x) for name, x in parts.items() if name != "train.tsv"} == dict(
        zip(names[1:], (20, 30, 4, 4), strict=True)
    )
    every = [text for part in parts.values() for text in part]
    assert len(every) == len(set(every))
    assert max(len(text.split()) for text in parts["train.tsv"]) <= 100
    assert f"train.tsv: {len(parts['train.tsv'])} examples" in result.out
    again = run("data", "make", "listops", "--out", tmp_path / "b", "--seed", 3)
    for name in (*names, "splits.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert again.code == 0
    assert "already exists" in run("data", "make", "listops", "--out", tmp_path / "a").refused()


def test_published_test_file_is_kept_out_of_training(few, tmp_path):
    run("data", "make", "listops", "--out", tmp_path / "a")
    known = (tmp_path / "a/train.tsv").read_text().splitlines()[:7]
    test = tmp_path / "test_d20s.tsv"
    test.write_text("\n".join(known) + "\n")
    result = run("data", "make", "listops", "--out", tmp_path / "b", "--test", test)
    assert "7 dropped: in another split" in result.out
    left = (tmp_path / "b/train.tsv").read_text() + (tmp_path / "b/dev.tsv").read_text()
    assert not any(line in left.splitlines() for line in known)
    assert not (tmp_path / "b/test.tsv").exists()


def test_command_rejects_unknown_names_and_missing_files(few, tmp_path):
    out = ("--out", tmp_path / "a")
    assert "Did you mean 'listops'?" in run("data", "make", "listop", *out).refused()
    assert "--from" in run("data", "make", "logic", *out).refused()
    message = run("data", "make", "logic", "--from", tmp_path, *out).refused()
    assert "has no file train0 or train0.gz" in message
    empty = tmp_path / "test_d20s.tsv"
    empty.touch()
    message = run("data", "make", "listops", "--test", empty, *out).refused()
    assert "contains no expressions; pass the published" in message
    assert not (tmp_path / "a").exists()


def test_command_rejects_options_of_the_other_data_and_files_in_its_way(tmp_path):
    out = ("--out", tmp_path / "a")
    for option in (("--test", "test_d20s.tsv"), ("--seed", 0)):
        message = run("data", "make", "logic", "--from", tmp_path, *option, *out).refused()
        assert f"{option[0]} has no effect on logic; omit it" in message
    message = run("data", "make", "listops", "--from", tmp_path, *out).refused()
    assert "--from has no effect on listops; omit it" in message
    assert not (tmp_path / "a").exists()
    # before any work is done
    (tmp_path / "a").write_text("")
    assert "a already exists" in run("data", "make", "listops", *out).refused()
    (tmp_path / "a").unlink()
    (tmp_path / "a" / "depth").mkdir(parents=True)
    (tmp_path / "a" / "depth" / "test.tsv").write_text("")
    assert "test.tsv already exists" in run("data", "make", "listops", *out).refused()
