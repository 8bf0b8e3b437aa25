"""Base class of tasks, which read labelled text, and the examples they return."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

from gumbeltree.tasks.checks import checked_columns
from gumbeltree.text.files import BadLines, Report, is_blank, read_lines
from gumbeltree.tree import Tree

FileNames: TypeAlias = Mapping[str, tuple[str, ...]]
"""For each split, glob patterns of file names in order of preference."""


class Example(NamedTuple):
    """One labelled sentence or pair of sentences.

    Attributes:
        texts: One text or two. The words of pretokenized texts are joined by single spaces.
        label: The gold label.
        trees: The gold tree of each text, or None. Its words may differ from those of the text.
        nodes: The labels of the nodes of each gold tree, if the task reads them: those of the
            words, then those of the merges; None for a label that is not a class.
    """

    texts: tuple[str, ...]
    label: str
    trees: tuple[Tree | None, ...]
    nodes: tuple[tuple[str | None, ...], ...] = ()


class Task(ABC):
    """A reader of one kind of labelled text.

    Subclasses define `parse` to read one line, and `header` and `parse_fields` if a header may
    name tab-separated columns. A task whose examples span several lines overrides `read`. A task
    whose texts follow a grammar has a static method `check_text`, which raises a MismatchError for
    other texts; `gumbeltree predict`, `draw` and the server call it before they answer.

    Attributes:
        name: The name in `TASKS`.
        labels: The labels in the order of the classes; None until they are known.
        pair: Whether an example has two texts.
        pretokenized: Whether texts are words joined by single spaces.
        file_names: File names of each split; gzipped files, with `.gz` appended, are found as well.
        trees: Whether to read gold trees; SNLI is faster to read without.
        nodes: Whether to read the labels of all nodes, if the data has them.
        words_of_trees: Whether the words of a tree take the place of its text, which a tokenizer
            may split differently.
        size_name: What `size_of` counts, such as levels; empty if the task has no such size.
    """

    trees: bool = True
    nodes: bool = False
    words_of_trees: bool = False
    size_name: ClassVar[str] = ""
    name: ClassVar[str]
    labels: tuple[str, ...] | None
    pair: bool
    pretokenized: bool
    file_names: ClassVar[FileNames]

    def splits(self, folder: Path | str) -> dict[str, Path]:
        """Find the files of the splits in a folder by their official names, with or without `.gz`.

        Args:
            folder: Where to look.

        Returns:
            The file of each split found.

        Raises:
            FileNotFoundError: If the folder has no file of any split.
            ValueError: If several files match one split.
        """
        folder = Path(folder)
        if not folder.is_dir():
            kind = "is a file" if folder.exists() else "does not exist"
            raise NotADirectoryError(
                f"{folder} {kind}; pass the folder with the {self.name} files, or one of the files"
            )
        found: dict[str, Path] = {}
        for split, patterns in self.file_names.items():
            for pattern in (name + suffix for name in patterns for suffix in ("", ".gz")):
                matches = sorted(path for path in folder.glob(pattern) if path.is_file())
                if len(matches) > 1:
                    names = ", ".join(path.name for path in matches)
                    raise ValueError(
                        f"{folder} has several files {pattern} for {split}: {names}; keep one of "
                        "them, or pass the file itself"
                    )
                if matches:
                    found[split] = matches[0]
                    break
        if not found:
            # splits can share their files, which can have several names
            names = ", ".join(dict.fromkeys(x for each in self.file_names.values() for x in each))
            raise FileNotFoundError(
                f"{folder} has none of the {self.name} files {names} (plain or .gz); pass the "
                "folder that has them"
            )
        return found

    def read(
        self, path: Path | str, split: str, report: Report, skip_bad: bool = False
    ) -> Iterator[Example]:
        """Read a file example by example.

        Args:
            path: The file, UTF-8, plain or gzip.
            split: Name of the split; some tasks read the split "train" differently.
            report: Counts examples read, dropped and skipped.
            skip_bad: Skip and count bad lines instead of raising an error.

        Raises:
            BadLineError: If a line is bad, unless `skip_bad`; always if the header is bad.
            OSError: If the file cannot be read.
        """
        path = Path(path)
        header: list[str] | None = None
        for number, line in read_lines(path, report, skip_bad):
            if is_blank(line, report):
                continue
            if header is None:
                # without a valid header, no other line can be read
                with BadLines(path, number, report, skip_bad=False):
                    header = self.header(line)
                if header:
                    continue
            with BadLines(path, number, report, skip_bad):
                if header:
                    values = checked_columns(line.split("\t"), len(header))
                    examples = self.parse_fields(dict(zip(header, values, strict=True)), report)
                else:
                    examples = self.parse(line, split, report)
                for example in examples:
                    report.examples += 1
                    yield example

    def size_of(self, texts: tuple[str, ...]) -> int:
        """Return the size of an example other than its number of words; see `size_name`."""
        raise NotImplementedError

    @abstractmethod
    def parse(self, line: str, split: str, report: Report) -> Iterable[Example]:
        """Return the examples of one line.

        Raises:
            MismatchError: If the line is bad, before its first example is returned.
        """

    def header(self, line: str) -> list[str]:
        """Return the column names if the first line is a header, otherwise an empty list."""
        return []

    def parse_fields(self, fields: dict[str, Any], report: Report) -> Iterable[Example]:
        """Return the examples of one line of a file with a header, given its named fields."""
        raise NotImplementedError
