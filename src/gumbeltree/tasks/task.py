"""What a task is: a reader of labelled text, and the examples that it gives."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeAlias

from gumbeltree.text.files import BadLines, Report, is_blank, read_lines
from gumbeltree.tree import Tree

# for each split, patterns of file names, the best first
FileNames: TypeAlias = Mapping[str, tuple[str, ...]]


class Example(NamedTuple):
    """One labelled sentence or pair of sentences.

    Attributes:
        texts: One text or two. Words of pre-tokenised texts are joined by single spaces.
        label: The gold label.
        trees: The gold tree of each text, None where the file has none. For analysis only: the
            words of a tree need not be those of the text.
    """

    texts: tuple[str, ...]
    label: str
    trees: tuple[Tree | None, ...]


class Task(ABC):
    """A reader of one kind of labelled text.

    A task whose examples are lines, each by itself, defines `parse`; others define `read`.

    Attributes:
        name: The name in `TASKS`.
        labels: The labels in the order of the classes; None while they are not known.
        pair: Whether an example has two texts.
        pretokenized: Whether texts are words joined by single spaces.
        file_names: For each split, patterns of file names, the best first. `.gz` is added.
        trees: Whether gold trees that only analysis needs are read; without, SNLI reads faster.
    """

    trees: bool = True
    name: ClassVar[str]
    labels: tuple[str, ...] | None
    pair: bool
    pretokenized: bool
    file_names: ClassVar[FileNames]

    def splits(self, folder: Path | str) -> dict[str, Path]:
        """Find the files of the splits in a folder, by their official names, also with `.gz`.

        Args:
            folder: Where to look.

        Returns:
            The file of each split that is there.

        Raises:
            FileNotFoundError: If the folder has none of them.
            ValueError: If several files could be one split.
        """
        folder = Path(folder)
        if not folder.is_dir():
            kind = "a file" if folder.exists() else "nothing there"
            raise NotADirectoryError(
                f"{folder}: expected a folder with the {self.name} files, or one file, got {kind}; "
                "check the path"
            )
        found: dict[str, Path] = {}
        for split, patterns in self.file_names.items():
            for pattern in (name + suffix for name in patterns for suffix in ("", ".gz")):
                matches = sorted(path for path in folder.glob(pattern) if path.is_file())
                if len(matches) > 1:
                    names = ", ".join(path.name for path in matches)
                    raise ValueError(
                        f"{folder}: expected one file {pattern} for {split}, got {names}; "
                        "leave one there, or read the file by its path"
                    )
                if matches:
                    found[split] = matches[0]
                    break
        if not found:
            names = ", ".join(patterns[0] for patterns in self.file_names.values())
            raise FileNotFoundError(
                f"{folder}: expected {names} (also with .gz), got none of them; "
                f"pass the folder that holds the {self.name} files"
            )
        return found

    def read(
        self, path: Path | str, split: str, report: Report, skip_bad: bool = False
    ) -> Iterator[Example]:
        """Read a file, one example after the other.

        Args:
            path: The file, plain or gzip, UTF-8.
            split: Which split it is, such as "train"; some tasks read the training split
                differently.
            report: Counts what is read, dropped and skipped.
            skip_bad: Whether to count bad lines and go on, rather than raise.

        Raises:
            BadLineError: If a line is bad, unless `skip_bad`; if a header is bad, always.
            OSError: If the file cannot be read to its end.
        """
        path = Path(path)
        for number, line in read_lines(path, report, skip_bad):
            if is_blank(line, report):
                continue
            with BadLines(path, number, report, skip_bad):
                for example in self.parse(line, split, report):
                    report.examples += 1
                    yield example

    @abstractmethod
    def parse(self, line: str, split: str, report: Report) -> Iterable[Example]:
        """Read the examples of one line, whole: it is bad before its first example or not at all.

        Raises:
            MismatchError: If the line is bad.
        """
