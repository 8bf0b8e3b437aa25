"""benchmarks/logic_groups.py: groups of formulas, and the share of a model's trees."""

import json
import sys
from pathlib import Path

import pytest
from benchmarks import logic_groups

import gumbeltree
from gumbeltree import Tree

FORMULA = "( a ( and ( not b ) ) )"


def test_groups_are_all_pairs_of_brackets() -> None:
    assert logic_groups.groups(FORMULA.split()) == {(0, 10), (2, 9), (4, 8)}


def test_share_over_the_distinct_formulas_of_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data = tmp_path / "test.tsv"
    data.write_text(f"#\t{FORMULA}\ta\n=\t{FORMULA}\t( not b )\n")

    class Model:
        """Left-branching trees keep only the groups from the first word on."""

        def parse_many(self, texts: list[str]) -> list[Tree]:
            return [Tree.left_branching(text.split()) for text in texts]

        def parse(self, text: str) -> Tree:
            return self.parse_many([text])[0]

    monkeypatch.setattr(gumbeltree, "load", lambda folder: Model())
    out = tmp_path / "groups.json"
    monkeypatch.setattr(sys, "argv", ["logic_groups", str(out), "--data", str(data), "runs/seed-0"])
    logic_groups.main()
    found = json.loads(out.read_text())
    assert found["formulas"] == 2
    (row,) = found["rows"]
    assert (row["model"], row["share"]) == ("seed-0", 2 / 4)
    assert row["tree"].startswith("( ( (")
    monkeypatch.setattr(sys, "argv", ["logic_groups", str(out), "--data", "no.tsv", "runs/seed-0"])
    with pytest.raises(SystemExit, match=r"logic_groups: error: .*no\.tsv"):
        logic_groups.main()
