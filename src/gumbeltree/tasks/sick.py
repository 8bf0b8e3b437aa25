"""SICK (Marelli et al. 2014): entailment of pairs of sentences."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from gumbeltree.tasks.checks import checked_columns, checked_label, checked_text, column_of
from gumbeltree.tasks.task import Example, FileNames, Task
from gumbeltree.text.files import BadLines, Report, is_blank, read_lines

_HEADER = ("entailment_judgment", "sentence_A", "sentence_B")


class SICK(Task):
    """Pairs of raw sentences.

    A file has three columns, label, premise and hypothesis, and no header; or it is one of the
    SemEval 2014 files, whose header begins with `pair_ID`. Labels are read in any case.
    """

    name = "sick"
    labels = ("entailment", "neutral", "contradiction")
    pair = True
    pretokenized = False
    file_names: ClassVar[FileNames] = {
        "train": ("train.tsv", "SICK_train.txt"),
        "dev": ("dev.tsv", "SICK_trial.txt"),
        "test": ("test.tsv", "SICK_test_annotated.txt"),
    }

    def read(
        self, path: Path | str, split: str, report: Report, skip_bad: bool = False
    ) -> Iterator[Example]:
        """Read a tab-separated file; see `Task.read`."""
        path = Path(path)
        columns, count = [0, 1, 2], 3
        is_first = True
        for number, line in read_lines(path, report, skip_bad):
            if is_blank(line, report):
                continue
            if is_first and line.startswith("pair_ID\t"):
                header = line.split("\t")
                # without its header the rest of the file has no meaning
                with BadLines(path, number, report, skip_bad=False):
                    columns, count = [column_of(name, header) for name in _HEADER], len(header)
                is_first = False
                continue
            is_first = False
            with BadLines(path, number, report, skip_bad):
                values = checked_columns(line.split("\t"), count)
                example = self._example(*(values[column] for column in columns))
                report.examples += 1
                yield example

    def parse(self, line: str, split: str, report: Report) -> list[Example]:
        """Read one line of label, premise and hypothesis; see `Task.parse`."""
        return [self._example(*checked_columns(line.split("\t"), 3))]

    def _example(self, label: str, first: str, second: str) -> Example:
        label = checked_label(label.strip().lower(), self.labels)
        texts = (checked_text(first, "premise"), checked_text(second, "hypothesis"))
        return Example(texts, label, (None, None))
