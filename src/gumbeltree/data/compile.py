"""Compile a task's files into ids, a vocabulary and word vectors."""

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.trainers import WordLevelTrainer

from gumbeltree.config import DataConfig, Recipe
from gumbeltree.data.prepared import Prepared, Say
from gumbeltree.data.split import Split
from gumbeltree.parts import HEADS
from gumbeltree.tasks import TASKS
from gumbeltree.tasks.table import split as divide
from gumbeltree.tasks.task import Example, Task
from gumbeltree.text.files import Report
from gumbeltree.text.missing_vectors import add_parts, borrow, parts
from gumbeltree.text.tokenizer import (
    PAD,
    UNKNOWN,
    treebank_tokenizer,
    undo_ptb_escapes,
    whitespace_tokenizer,
)
from gumbeltree.text.vectors import Coverage, Vectors, first_words, read_vectors, text_files

log = logging.getLogger(__name__)

CHUNK = 50_000
"""Sentences tokenised at once."""
LABELS_FROM_DATA = ("?",)
"""What a recipe's labels are when they are to be found in the training data."""


class _Read:
    """Examples of a split as text: each distinct sentence once."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}
        self.rows: list[tuple[int, ...]] = []
        self.labels: list[str] = []
        self.report = Report()

    def add(self, examples: Iterable[Example], escaped: bool = False) -> None:
        """Add examples; `escaped` texts are words of a treebank, separated by white space."""
        for example in examples:
            texts = example.texts
            if escaped:
                texts = tuple(" ".join(map(undo_ptb_escapes, text.split())) for text in texts)
            self.rows.append(
                tuple(self.places.setdefault(text, len(self.places)) for text in texts)
            )
            self.labels.append(example.label)

    def without(self, texts: set[str]) -> "_Read":
        """Return the examples that have none of the texts; the others are counted as dropped."""
        own = list(self.places)
        rows = [i for i, row in enumerate(self.rows) if not any(own[j] in texts for j in row)]
        kept = self.part(rows)
        if len(rows) < len(self.rows):
            kept.report.dropped["also in another split"] = len(self.rows) - len(rows)
        return kept

    def examples(self) -> list[tuple[str, ...]]:
        """Return the texts of each example."""
        own = list(self.places)
        return [tuple(own[j] for j in row) for row in self.rows]

    def targets(self, name: str, target: Callable[[str], float], kind: Any) -> NDArray[Any]:
        """Return what each label stands for.

        Args:
            name: of the split, for messages.
            target: of one label.
            kind: number type.
        """
        found = {}
        for label in dict.fromkeys(self.labels):
            try:
                found[label] = target(label)
            except ValueError as error:
                text = self.examples()[self.labels.index(label)]
                raise ValueError(
                    f"{name}: expected a label that the head takes, got {label!r} of "
                    f"{' | '.join(text)[:80]!r} ({error}); correct it, or take another head"
                ) from error
        return np.array([found[label] for label in self.labels], dtype=kind)

    def part(self, rows: Sequence[int]) -> "_Read":
        """Return some of the examples, with their own sentences only."""
        texts = list(self.places)
        part = _Read()
        for row in rows:
            found = (part.places.setdefault(texts[i], len(part.places)) for i in self.rows[row])
            part.rows.append(tuple(found))
            part.labels.append(self.labels[row])
        part.report.examples = len(rows)
        return part


def prepare(
    recipe: Recipe,
    data: str | Path | None = None,
    vectors: str | Path | None = None,
    *,
    dev: str | Path | None = None,
    test: str | Path | None = None,
    more_vectors: str | Path | None = None,
    skip_bad: bool = False,
    more_words: Iterable[str] = (),
    say: Say = log.info,
) -> Prepared:
    """Read a task's files and compile them for training.

    Args:
        recipe: its part `data` says how; `model` gives the labels and the longest sentence.
        data: the folder of the task's files, or the training file. None: the task makes its own.
        vectors: a GloVe text file, plain, .gz or .zip. None: word vectors start at random.
        dev: the development file, where it is not in the folder.
        test: the test file, where it is not in the folder.
        more_vectors: a second such file, of any width. Words that `vectors` lacks get the vectors
            that a linear map, fitted on the words of both files, makes of those in this one.
        skip_bad: whether bad lines are counted and left out rather than refused.
        more_words: joined to the vocabulary, such as those of a model to start from.
        say: told what is going on.
    """
    settings = recipe.data
    if more_vectors is not None and vectors is None:
        raise ValueError(
            f"{more_vectors} is to add to the words of another vector file, got no other; pass it "
            "with --vectors, and the one to borrow from with --more-vectors"
        )
    task = make_task(recipe)
    read = _read_splits(task, recipe, data, dev, test, skip_bad, say)
    target, kind = _targets(recipe, task)
    say("finding the words")
    trained = [text for name in _vocabulary_splits(settings, read) for text in read[name].places]
    words = vocabulary(trained, task.pretokenized, settings.lower)
    extra = list(more_words)
    if vectors is not None and settings.extra_words:
        # capitals are never looked up where text is lower-cased, so more lines are read
        ahead = first_words(
            vectors,
            settings.extra_words * (4 if settings.lower else 1),
            _choice(Path(vectors), recipe.model.encoder.embedding_dim),
        )
        reachable = [word for word in ahead if not settings.lower or word == word.lower()]
        extra += reachable[: settings.extra_words]
    known = set(words)
    extra = [
        word for word in dict.fromkeys(extra) if word not in known and word not in (PAD, UNKNOWN)
    ]
    reader = whitespace_tokenizer if task.pretokenized else treebank_tokenizer
    reads = reader([*words, *extra], settings.lower)
    splits, reports = {}, {}
    trained_on = set(read["train"].examples())
    for name, part in read.items():
        splits[name], reports[name] = _to_ids(
            part, name, reads, recipe.model.max_words, has_classes(recipe)
        )
        splits[name] = dataclasses.replace(splits[name], labels=part.targets(name, target, kind))
        reports[name]["seen"] = sum(e in trained_on for e in part.examples() if name != "train")
    kept = {"whitespace": whitespace_tokenizer, "treebank": treebank_tokenizer}[settings.tokenizer]
    tokenizer = kept([*words, *extra], settings.lower)
    report: dict[str, Any] = {
        "splits": reports,
        "vocabulary": {"training": len(words), "extra": len(extra)},
        "vectors": {},
    }
    matrix = None
    if vectors is not None:
        second = None if more_vectors is None else Path(more_vectors)
        counts = dict(zip(words, _count(splits.values(), len(words)).tolist(), strict=True))
        matrix, report["vectors"] = _word_vectors(
            recipe, Path(vectors), second, [*words, *extra], counts, say
        )
    labels = task.labels if has_classes(recipe) else ()
    return Prepared(
        splits, tokenizer, matrix, labels or (), task.pair, settings, recipe.model.max_words, report
    )


def has_classes(recipe: Recipe) -> bool:
    """Return whether a recipe's head names classes by the labels of the data."""
    return hasattr(recipe.model.head, "labels")


def _targets(recipe: Recipe, task: Task) -> tuple[Callable[[str], float], Any]:
    """Return what a label stands for, by the recipe's head, and its number type."""
    if has_classes(recipe):
        classes = {label: i for i, label in enumerate(task.labels or ())}
        return classes.__getitem__, np.int64
    with torch.device("meta"):
        head = HEADS[recipe.model.head.kind](recipe.model.head, 1)
    return head.target, head.target_type


def make_task(recipe: Recipe) -> Task:
    """Return the reader that a recipe names, set up as it says."""
    settings, head = recipe.data, recipe.model.head
    if settings.task == "table":
        if not settings.text or not settings.label:
            raise ValueError(
                "a table needs the names of its columns, got "
                f"text {settings.text!r} and label {settings.label!r}; pass --text and --label"
            )
        labels = getattr(head, "labels", LABELS_FROM_DATA)
        given = None if labels == LABELS_FROM_DATA else labels
        table: Task = TASKS["table"](
            settings.text, settings.text2 or None, settings.label, given, settings.quotes
        )
        table.pretokenized = settings.pretokenized
        return table
    task: Task = TASKS[settings.task]()
    # trees are for analysis: training never sees them
    task.trees = False
    return task


def _read_splits(
    task: Task,
    recipe: Recipe,
    data: str | Path | None,
    dev: str | Path | None,
    test: str | Path | None,
    skip_bad: bool,
    say: Say,
) -> dict[str, _Read]:
    """Read every split there is, and divide or generate what there is not."""
    settings = recipe.data
    files: dict[str, Path] = {}
    if data is not None:
        data = Path(data)
        files = {"train": data} if data.is_file() else task.splits(data)
    files.update({name: Path(path) for name, path in (("dev", dev), ("test", test)) if path})
    read: dict[str, _Read] = {}
    for name in ("train", "dev", "test"):
        if name in files:
            say(f"reading {files[name]}")
            read[name] = part = _Read()
            escaped = task.pretokenized and task.name == "table"
            part.add(task.read(files[name], name, part.report, skip_bad), escaped)
            if not part.rows:
                raise ValueError(
                    f"{files[name]}: expected examples, got none ({part.report}); look at the file"
                )
        if name == "train" and name not in files:
            if not hasattr(task, "generate") or not settings.generate:
                raise FileNotFoundError(
                    f"{data or 'no data'}: expected the {task.name} training file, got none; pass "
                    "--data with the folder that holds it"
                )
            say(f"making {settings.generate:,} examples")
            read[name] = part = _Read()
            part.add(task.generate(settings.generate, settings.split_seed))
            part.report.examples = len(part.rows)
        if name == "train" and task.labels is None and has_classes(recipe):
            task.labels = tuple(sorted(set(read[name].labels)))
    if "train" not in files:
        read["train"] = read["train"].without(
            {t for n in read if n != "train" for t in read[n].places}
        )
    found = task.labels or ()
    if has_classes(recipe) and len(found) < 2:
        raise ValueError(
            f"expected at least two labels in the training data, got {', '.join(found)}; look at "
            "the label column"
        )
    shares = {
        name: share
        for name, share in (("dev", settings.dev_fraction), ("test", settings.test_fraction))
        if name not in read and share > 0
    }
    if shares:
        whole = read["train"]
        parts = divide(
            len(whole.rows),
            [1 - sum(shares.values()), *shares.values()],
            settings.split_seed,
        )
        for name, rows in zip(["train", *shares], parts, strict=True):
            read[name] = whole.part(rows)
            if not rows:
                raise ValueError(
                    f"expected enough examples for {name}, got {len(whole.rows)} in all; pass more "
                    "data or other fractions"
                )
        read["train"].report.dropped = whole.report.dropped
        read["train"].report.bad = whole.report.bad
        read["train"].report.first_bad = whole.report.first_bad
    if "dev" not in read:
        raise FileNotFoundError(
            f"{data}: expected the {task.name} development file beside the training file, got "
            "none; pass it with --dev, or --set dev_fraction=0.1 to take it from the training file"
        )
    return {name: read[name] for name in ("train", "dev", "test") if name in read}


def _vocabulary_splits(settings: DataConfig, read: dict[str, _Read]) -> list[str]:
    return ["train"] if settings.vocabulary == "train" else list(read)


def vocabulary(texts: Iterable[str], pretokenized: bool, lower: bool) -> list[str]:
    """Return the words of `texts`, the most frequent first, each once."""
    splitter = (whitespace_tokenizer if pretokenized else treebank_tokenizer)([], lower)
    trainer = WordLevelTrainer(vocab_size=2**31 - 1, min_frequency=1, show_progress=False)
    splitter.train_from_iterator(texts, trainer)
    ids = splitter.get_vocab()
    return [word for word in sorted(ids, key=ids.__getitem__) if word not in (PAD, UNKNOWN)]


def _to_ids(
    read: _Read, name: str, tokenizer: Tokenizer, max_words: int, classes: bool
) -> tuple[Split, dict[str, Any]]:
    """Return a split, its targets left open, and what is to be said about it."""
    texts = list(read.places)
    unknown = tokenizer.token_to_id(UNKNOWN)
    kind = np.uint16 if tokenizer.get_vocab_size() <= 2**16 else np.uint32
    words: list[NDArray[Any]] = []
    lengths: list[NDArray[np.int64]] = []
    cut = 0
    for start in range(0, len(texts), CHUNK):
        chunk = tokenizer.encode_batch_fast(texts[start : start + CHUNK])
        ids = [encoding.ids[:max_words] for encoding in chunk]
        cut += sum(len(encoding) > max_words for encoding in chunk)
        counts = np.array([len(row) for row in ids], dtype=np.int64)
        if not counts.all():
            text = texts[start + int(counts.argmin())]
            raise ValueError(f"{name}: expected words in every text, got {text!r}; leave it out")
        lengths.append(counts)
        words.append(np.fromiter(chain.from_iterable(ids), dtype=kind, count=counts.sum()))
    split = Split(
        np.concatenate(words),
        np.concatenate([[0], np.cumsum(np.concatenate(lengths))]),
        np.array(read.rows, dtype=np.int32),
        np.zeros(len(read.labels), dtype=np.int64),
    )
    is_unknown = np.add.reduceat(split.words == unknown, split.starts[:-1])
    report = {
        "examples": len(split),
        "words": int(split.lengths.sum()),
        "unknown": int(is_unknown[split.sentences].sum()),
        "cut": cut,
        "labels": dict(sorted(Counter(read.labels).items())) if classes else {},
        "dropped": dict(read.report.dropped),
        "bad": read.report.bad,
        "first_bad": read.report.first_bad,
    }
    return split, report


def _count(splits: Iterable[Split], words: int) -> NDArray[np.int64]:
    """Return how often each of the first `words` words occurs."""
    counts = np.zeros(words, dtype=np.int64)
    for split in splits:
        times = np.bincount(split.sentences.ravel(), minlength=len(split.starts) - 1)
        weights = np.repeat(times, np.diff(split.starts))
        found = np.bincount(split.words, weights=weights, minlength=words)
        counts += found[:words].astype(np.int64)
    return counts


def _word_vectors(
    recipe: Recipe,
    path: Path,
    more: Path | None,
    words: list[str],
    counts: dict[str, int],
    say: Say,
) -> tuple[NDArray[np.float32], dict[str, Any]]:
    """Return a vector for each id, and where those of the data's words come from.

    Args:
        recipe: gives the width, and what becomes of words without a vector.
        path: the vector file.
        more: the file to borrow from.
        words: the vocabulary.
        counts: how often each word of the data occurs.
        say: told what is going on.
    """
    missing, dim = recipe.data.missing_vectors, recipe.model.encoder.embedding_dim
    asked = words
    if missing == "parts":
        asked = [*words, *(part for word in words for part in parts(word))]
    say(f"reading word vectors from {path}")
    found = _vectors(path, asked, dim)
    known = found.coverage(counts)
    report: dict[str, Any] = {"file": path.name, **known._asdict()}
    if more is not None:
        say(f"reading more word vectors from {more}")
        # any width will do, so it only chooses where there is a choice
        width = dim if len(text_files(more)) > 1 else None
        other = read_vectors(more, asked, width)
        try:
            found, fit = borrow(found, other)
        except ValueError as error:
            raise ValueError(f"{more}: {error}") from error
        known, before = found.coverage(counts), known
        report["borrowed"] = {"file": more.name, **_gain(before, known), **fit._asdict()}
    if missing == "parts":
        found = add_parts(found, words)
        known, before = found.coverage(counts), known
        report["parts"] = _gain(before, known)
    rows = found.matrix(
        words, "random" if missing == "random" else "zero", seed=recipe.data.split_seed
    )
    # <pad> and <unk> stand behind the words
    return np.concatenate([rows, np.zeros((2, dim), dtype=np.float32)]), report


def _gain(before: Coverage, after: Coverage) -> dict[str, int]:
    return {"types": after.types - before.types, "tokens": after.tokens - before.tokens}


def _vectors(path: Path, words: list[str], dim: int) -> Vectors:
    """Read the word vectors, which must have `dim` numbers each."""
    found = read_vectors(path, words, _choice(path, dim))
    if found.dim != dim:
        raise ValueError(
            f"{path}: expected vectors of {dim} numbers, got {found.dim}; take another file, or "
            f"--set embedding_dim={found.dim}"
        )
    if not len(found):
        raise ValueError(
            f"{path}: expected vectors for the words of the data, got none; {found.report()}"
        )
    return found


def _choice(path: Path, dim: int) -> int | None:
    """Return `dim` where it chooses between the files of a .zip; elsewhere the file has its own."""
    return dim if path.suffix.lower() == ".zip" else None


def with_labels(recipe: Recipe, prepared: Prepared) -> Recipe:
    """Return a recipe whose head fits the prepared data: kind and labels."""
    head = recipe.model.head
    pair = HEADS[head.kind].sentences == 2
    if pair != prepared.pair:
        kinds = {True: "pairs", False: "single sentences"}
        fitting = [name for name in HEADS if (HEADS[name].sentences == 2) == prepared.pair]
        raise ValueError(
            f"the recipe is for {kinds[pair]}, the data has {kinds[prepared.pair]}; take another "
            f"recipe, or --set head.kind={fitting[0]}"
        )
    if not has_classes(recipe):
        return recipe
    if not prepared.labels:
        raise ValueError(
            f"the head {head.kind!r} names classes, and the data was prepared for one that does "
            "not; prepare it again with this recipe, or take another head"
        )
    if head.labels != LABELS_FROM_DATA and set(head.labels) != set(prepared.labels):
        raise ValueError(
            f"the recipe has the labels {', '.join(head.labels)}, the data has "
            f"{', '.join(prepared.labels)}; --set head.labels to those of the data"
        )
    model = dataclasses.replace(
        recipe.model, head=dataclasses.replace(head, labels=prepared.labels)
    )
    return dataclasses.replace(recipe, model=model)
