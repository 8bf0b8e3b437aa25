"""The tables of docs/trees.md come from benchmarks/results/trees.json."""

import json

import write_trees


def test_page_is_up_to_date():
    result = json.loads(write_trees.RESULTS.read_text(encoding="utf-8"))
    page = write_trees.PAGE.read_text(encoding="utf-8")
    assert all(f"<!-- trees: {name} -->" in page for name in write_trees.SECTIONS)
    assert write_trees.fill(page, result) == page
    wrong = page.replace("| left |", "| wrong |")
    assert write_trees.fill(wrong, result) == page
