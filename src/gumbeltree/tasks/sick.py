"""SICK (Marelli et al. 2014): entailment and relatedness of pairs of sentences."""

from typing import Any, ClassVar

from gumbeltree.tasks.checks import (
    checked_columns,
    checked_label,
    checked_number,
    checked_text,
    column_of,
)
from gumbeltree.tasks.task import Example, FileNames, Task
from gumbeltree.text.files import MismatchError, Report, shown

_FIELDS = ("entailment_judgment", "sentence_A", "sentence_B")
_TEST = ("SICK_test_annotated.txt", "SICK_test.txt")


class SICK(Task):
    """Pairs of raw sentences.

    A file has the columns label, premise and hypothesis without a header, or is one of the SemEval
    2014 files, whose header begins with `pair_ID`. Labels are case-insensitive.
    """

    name = "sick"
    labels = ("entailment", "neutral", "contradiction")
    pair = True
    pretokenized = False
    file_names: ClassVar[FileNames] = {
        "train": ("train.tsv", "SICK_train.txt"),
        "dev": ("dev.tsv", "SICK_trial.txt"),
        "test": ("test.tsv", *_TEST),
    }

    def header(self, line: str) -> list[str]:
        """Return the columns of a SemEval file; see `Task.header`."""
        if not line.startswith("pair_ID\t"):
            return []
        header = line.split("\t")
        for name in _FIELDS:
            column_of(name, header)
        return header

    def parse(self, line: str, split: str, report: Report) -> list[Example]:
        """Read one line of label, premise and hypothesis; see `Task.parse`."""
        values = checked_columns(line.split("\t"), 3)
        return self.parse_fields(dict(zip(_FIELDS, values, strict=True)), report)

    def parse_fields(self, fields: dict[str, Any], report: Report) -> list[Example]:
        """Read one pair; see `Task.parse_fields`."""
        label, first, second = (fields[name] for name in _FIELDS)
        label = checked_label(label.strip().lower(), self.labels)
        texts = (checked_text(first, "premise"), checked_text(second, "hypothesis"))
        return [Example(texts, label, (None, None))]


class SICKRelatedness(Task):
    """Pairs of raw sentences with their relatedness, from 1 to 5, in the SemEval 2014 files."""

    name = "sick_relatedness"
    labels = None
    pair = True
    pretokenized = False
    file_names: ClassVar[FileNames] = {
        "train": ("SICK_train.txt",),
        "dev": ("SICK_trial.txt",),
        "test": _TEST,
    }

    def header(self, line: str) -> list[str]:
        """Return the columns of the file; see `Task.header`."""
        header = line.split("\t")
        for name in ("sentence_A", "sentence_B", "relatedness_score"):
            column_of(name, header)
        return header

    def parse(self, line: str, split: str, report: Report) -> list[Example]:
        """Reject a file without a header, which `header` does first."""
        raise MismatchError("a header that names the columns", shown(line), "add it")

    def parse_fields(self, fields: dict[str, Any], report: Report) -> list[Example]:
        """Read one pair; see `Task.parse_fields`."""
        texts = (
            checked_text(fields["sentence_A"], "sentence_A"),
            checked_text(fields["sentence_B"], "sentence_B"),
        )
        return [Example(texts, checked_number(fields["relatedness_score"]), (None, None))]
