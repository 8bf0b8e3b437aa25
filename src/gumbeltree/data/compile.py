"""Compile the files of a task into ids, a vocabulary and word vectors."""

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.trainers import WordLevelTrainer

from gumbeltree.config import LABELS_FROM_DATA, DataConfig, Recipe
from gumbeltree.data.examples import Examples
from gumbeltree.data.labels import check_classes
from gumbeltree.data.own_vectors import own_vectors
from gumbeltree.data.prepared import Prepared, Say
from gumbeltree.data.split import Split
from gumbeltree.parts import ENCODERS, HEADS
from gumbeltree.registry import suggest
from gumbeltree.tasks import TASKS
from gumbeltree.tasks.checks import split_tags
from gumbeltree.tasks.table import split as divide
from gumbeltree.tasks.task import Task
from gumbeltree.text.batches import chunks
from gumbeltree.text.files import Report, counted, shown
from gumbeltree.text.ids import TextReader
from gumbeltree.text.missing_vectors import add_parts, borrow, parts
from gumbeltree.text.tokenizer import (
    PAD,
    UNKNOWN,
    treebank_tokenizer,
    whitespace_tokenizer,
)
from gumbeltree.text.vectors import Coverage, first_words, read_vectors, text_files

log = logging.getLogger(__name__)
SENTENCES_AT_ONCE = 10_000


def prepare(
    recipe: Recipe,
    data: str | Path | Examples | None = None,
    vectors: str | Path | None = None,
    *,
    dev: str | Path | Examples | None = None,
    test: str | Path | Examples | None = None,
    more_vectors: str | Path | None = None,
    skip_bad: bool = False,
    more_words: Iterable[str] = (),
    say: Say = log.info,
) -> Prepared:
    """Read the files of a task and compile them for training.

    Args:
        recipe: `data` configures the task; `model` provides labels and the maximum length.
        data: the folder of the task's files, the training file, or training examples in memory.
            None generates the data, for tasks that can.
        vectors: a GloVe text file, plain, .gz or .zip. If None, `own_vectors` configures
            the initial word vectors.
        dev: the development file or examples, unless the file is in the folder.
        test: the test file or examples, unless the file is in the folder.
        more_vectors: a second vector file, of any width. A linear map, fitted on the words of both
            files, supplies vectors for words missing from `vectors`.
        skip_bad: skip and count malformed lines instead of raising an error.
        more_words: additional vocabulary words, such as those of the initial model.
        say: called with progress messages.
    """
    settings = recipe.data
    if more_vectors is not None and vectors is None:
        raise ValueError(
            f"--more-vectors {more_vectors} only fills gaps in another vector file; pass that file "
            "with --vectors"
        )
    # reading the texts can take minutes
    for path in (data, dev, test, vectors, more_vectors):
        if isinstance(path, str | Path) and not Path(path).exists():
            raise FileNotFoundError(f"{path} does not exist; check the path")
    task = make_task(recipe)
    examples = read_splits(task, recipe, data, dev, test, skip_bad, say)
    trees = {name: task.trees and needs_trees(recipe, name) for name in examples}
    for name, part in examples.items():
        if trees[name] and not part.orders:
            raise ValueError(
                f"{name}: the encoder needs gold trees, but these {task.name} data have none; use "
                "data with trees, such as listops, logic or SNLI with its parses, which "
                "`gumbeltree data parse` can add, or another encoder"
            )
        if trees[name] and (
            missing := [x for x, i in part.sentences.items() if i not in part.orders]
        ):
            raise ValueError(
                f"{name}: {counted(len(missing), 'text')} of {len(part.sentences):,} have no gold "
                f"tree, such as {shown(missing[0])}; remove these examples, or parse the file with "
                "`gumbeltree data parse`"
            )
        if trees[name] and task.nodes and not part.nodes:
            raise ValueError(
                f"{name}: the head {recipe.model.head.kind!r} needs a label for every node of the "
                f"gold trees, but these {task.name} data have none; use sst2 or sst5, or another "
                "head"
            )
    say("building the vocabulary")
    sources = ["train"] if settings.vocabulary == "train" else list(examples)
    texts = [text for name in sources for text in examples[name].sentences]
    split_already = all(part.pretokenized for part in examples.values())
    words = vocabulary(texts, task.pretokenized or split_already, settings.lower)
    extra = list(more_words)
    if vectors is not None and settings.extra_words:
        extra += _frequent_words(recipe, Path(vectors))
    known = {*words, PAD, UNKNOWN}
    extra = [word for word in dict.fromkeys(extra) if word not in known]
    splitter = whitespace_tokenizer if task.pretokenized else treebank_tokenizer
    tokenizer = splitter([*words, *extra], settings.lower)
    target, kind = _targets(recipe, task)
    splits, reports = {}, {}
    # the tokenizer of pretokenized tasks does so anyway
    at_spaces = split_already and not task.pretokenized
    if settings.train_max_words:
        most = settings.train_max_words
        examples["train"] = _without_long(examples["train"], tokenizer, most, at_spaces)
    trained = set(examples["train"].texts())
    for name, part in examples.items():
        reader = TextReader(tokenizer, recipe.model.max_words, at_spaces)
        split = splits[name] = part.split(reader, target, kind, trees[name])
        unknown = np.add.reduceat(split.words == reader.unknown, split.starts[:-1])
        reports[name] = {
            "examples": len(split),
            "words": int(split.lengths.sum()),
            "unknown": int(unknown[split.sentences].sum()),
            "cut": reader.counts.cut,
            "labels": _count_labels(recipe, part),
            "dropped": dict(part.report.dropped),
            "bad": part.report.bad,
            "first_bad": part.report.first_bad,
            "seen": 0 if name == "train" else sum(texts in trained for texts in part.texts()),
        }
    report: dict[str, Any] = {
        "splits": reports,
        "vocabulary": {"training": len(words), "extra": len(extra)},
        "vectors": {},
    }
    matrix = None
    if vectors is not None:
        second = None if more_vectors is None else Path(more_vectors)
        counts = dict(zip(words, _count(splits.values(), len(words)).tolist(), strict=True))
        matrix, report["vectors"], shares = _word_vectors(
            recipe, Path(vectors), second, [*words, *extra], counts, say
        )
        if settings.word_weights:
            if settings.word_shares == "train":
                shares = _count([splits["train"]], len(matrix)).astype(np.float64)
                shares /= max(1, shares.sum())
            weights = settings.word_weights / (settings.word_weights + shares)
            matrix *= weights[:, None].astype(np.float32)
        if settings.remove_directions:
            matrix = without_directions(matrix, splits["train"], settings.remove_directions)
    elif settings.own_vectors:
        say("computing word vectors from the training texts")
        size, dim = tokenizer.get_vocab_size(), recipe.model.encoder.embedding_dim
        matrix = own_vectors(splits["train"], size, dim, settings.split_seed)
    final = {"whitespace": whitespace_tokenizer, "treebank": treebank_tokenizer}
    return Prepared(
        splits,
        final[settings.tokenizer]([*words, *extra], settings.lower),
        matrix,
        (task.labels or ()) if _has_labels(recipe) else (),
        task.pair,
        settings,
        recipe.model.max_words,
        report,
    )


def _without_long(
    examples: Examples, tokenizer: Tokenizer, most: int, pretokenized: bool
) -> Examples:
    """Return the examples whose sentences have at most `most` words, with counts of the others."""
    texts, reader = list(examples.sentences), TextReader(tokenizer, most + 1, pretokenized)
    short = [
        len(sentence.ids) <= most
        for rows in chunks([texts])
        for sentence in reader.read(texts[rows], rows.start)
    ]
    kept = [i for i, row in enumerate(examples.rows) if all(short[x] for x in row)]
    if not kept:
        raise ValueError(
            f"all training examples have a sentence of more than {counted(most, 'word')}; increase "
            "`data.train_max_words`"
        )
    subset = examples.subset(kept)
    subset.report = examples.report
    long = len(examples.rows) - len(kept)
    subset.report.dropped[f"with more than {counted(most, 'word')}"] += long
    subset.report.examples -= long
    return subset


def has_classes(recipe: Recipe) -> bool:
    """Return whether the head of a recipe classifies, so that labels are class names."""
    return hasattr(recipe.model.head, "labels")


def has_tags(recipe: Recipe) -> bool:
    """Return whether the head of a recipe predicts any number of labels per example."""
    return bool(HEADS[recipe.model.head.kind].predicts == "tags")


def _has_labels(recipe: Recipe) -> bool:
    return has_classes(recipe) or has_tags(recipe)


def _labels_in(recipe: Recipe, examples: Examples) -> list[str]:
    """Return the class of each example, or all tags of all examples."""
    if not has_tags(recipe):
        return examples.labels
    separator = recipe.model.head.tag_separator
    return [tag for label in examples.labels for tag in split_tags(label, separator)]


def _count_labels(recipe: Recipe, examples: Examples) -> dict[str, int]:
    """Return the number of examples with each class or tag; empty for other targets."""
    labels = _labels_in(recipe, examples) if _has_labels(recipe) else []
    return dict(sorted(Counter(labels).items()))


def _targets(recipe: Recipe, task: Task) -> tuple[Callable[[str], Any], Any]:
    """Return a function that maps labels to targets, and the dtype of the targets."""
    config = recipe.model.head
    if has_classes(recipe):
        classes = {label: i for i, label in enumerate(task.labels or ())}
        return classes.__getitem__, np.int64
    if has_tags(recipe):
        config = dataclasses.replace(config, tags=task.labels)
    with torch.device("meta"):
        head = HEADS[config.kind](config, 1)
    return head.target, head.target_type


def make_task(recipe: Recipe) -> Task:
    """Create the task of a recipe; it reads gold trees only if the encoder needs them."""
    settings, head = recipe.data, recipe.model.head
    if settings.task == "table":
        names = ("text", "text2", "label") if HEADS[head.kind].sentences == 2 else ("text", "label")
        if missing := [f"--{name} COLUMN" for name in names if not getattr(settings, name)]:
            raise ValueError(
                f"a table needs the names of its columns; pass {' and '.join(missing)}"
            )
        predicts = HEADS[head.kind].predicts
        labels = getattr(head, "tags" if predicts == "tags" else "labels", LABELS_FROM_DATA)
        table: Task = TASKS["table"](
            settings.text,
            settings.text2 or None,
            settings.label,
            None if labels == LABELS_FROM_DATA else labels,
            settings.quotes,
            settings.pretokenized,
            settings.separator,
            predicts,
            getattr(head, "tag_separator", "|"),
        )
        table.trees = needs_trees(recipe)
        table.nodes = HEADS[head.kind].node_targets
        return table
    task: Task = TASKS[settings.task]()
    task.trees = task.words_of_trees = needs_trees(recipe)
    task.nodes = HEADS[head.kind].node_targets
    return task


def needs_trees(recipe: Recipe, split: str = "train") -> bool:
    """Return whether the encoder of a recipe follows the trees of a split or learns from them."""
    # what it needs can depend on its settings
    with torch.device("meta"):
        encoder = ENCODERS[recipe.model.encoder.kind](recipe.model.encoder)
    return "order" in encoder.needs | (encoder.learns_from if split == "train" else frozenset())


def needs_vectors(recipe: Recipe) -> bool:
    """Return whether word vectors would stay random unless they come from a file."""
    trained = recipe.model.embedding.tuned or recipe.data.own_vectors
    return not trained and ENCODERS[recipe.model.encoder.kind].reads_vectors


def read_splits(
    task: Task,
    recipe: Recipe,
    data: str | Path | Examples | None = None,
    dev: str | Path | Examples | None = None,
    test: str | Path | Examples | None = None,
    skip_bad: bool = False,
    say: Say = log.info,
) -> dict[str, Examples]:
    """Read the splits that have files; generate the others or take them from the training data."""
    source = None if data is None or isinstance(data, Examples) else Path(data)
    files: dict[str, Path] = {}
    if source is not None:
        files = {"train": source} if source.is_file() else task.splits(source)
    splits = {"train": data} if isinstance(data, Examples) else {}
    for name, given in (("dev", dev), ("test", test)):
        if isinstance(given, Examples):
            splits[name] = given
        elif given:
            files[name] = Path(given)
    for name in ("train", "dev", "test"):
        if name in splits:
            separator = recipe.model.head.tag_separator if has_tags(recipe) else None
            _check_labels(splits[name], task.labels, name, separator)
        elif name in files:
            say(f"reading {files[name]}")
            splits[name] = read_file(task, files[name], name, skip_bad)
        elif name == "train":
            splits[name] = _generate(task, recipe.data, source, say)
        classes = has_classes(recipe) and task.labels is None and not recipe.data.any_labels
        if name == "train" and classes:
            check_classes(splits[name].labels, say)
        if name == "train" and task.labels is None and _has_labels(recipe):
            task.labels = tuple(sorted(set(_labels_in(recipe, splits[name]))))
    if has_tags(recipe) and not task.labels:
        raise ValueError(
            "the training data needs at least one tag, but all labels are empty; check the label "
            "column"
        )
    if has_classes(recipe) and len(task.labels or ()) < 2:
        raise ValueError(
            "the training data needs at least two labels, but has only "
            f"{', '.join(task.labels or ())}; check the label column"
        )
    if "train" not in files and not isinstance(data, Examples):
        splits["train"] = _without_held_out(splits)
    splits = _divide(splits, recipe.data, HEADS[recipe.model.head.kind].grouped)
    if "dev" not in splits:
        raise FileNotFoundError(
            f"{source}: there is no {task.name} development file; pass one with --dev, or split "
            "it off the training file with --set dev_fraction=0.1"
        )
    return {name: splits[name] for name in ("train", "dev", "test") if name in splits}


def _check_labels(
    examples: Examples, labels: tuple[str, ...] | None, split: str, separator: str | None
) -> None:
    """Raise for examples in memory with a label, or a tag, that is not one of `labels`.

    Args:
        examples: the examples.
        labels: the known labels or tags; None accepts any.
        split: name of the split, for messages.
        separator: separates tags; None for classes.
    """
    if not examples.rows:
        raise ValueError(f"{split}: there are no texts")
    for row, text in enumerate(examples.labels):
        for label in [text] if separator is None else split_tags(text, separator):
            if labels is not None and label not in labels:
                raise ValueError(
                    f"{split}: the label of row {row} is {label!r}, but must be one of "
                    f"{', '.join(labels)}.{suggest(label, list(labels))}"
                )


def read_file(task: Task, path: Path, split: str, skip_bad: bool) -> Examples:
    """Read the examples of one file, at least one; see `Task.read`."""
    report = Report()
    examples = Examples(task.read(path, split, report, skip_bad), report, task.trees)
    if not examples.rows:
        raise ValueError(f"{path} contains no usable examples: {report}")
    return examples


def _generate(task: Task, settings: DataConfig, data: Path | None, say: Say) -> Examples:
    if not hasattr(task, "generate") or not settings.generate:
        if data is None:
            raise FileNotFoundError(
                "there is no training data; pass your file, or the folder of the data set, with "
                "--data"
            )
        raise FileNotFoundError(
            f"{data}: there is no {task.name} training file; pass the folder that contains it "
            "with --data"
        )
    say(f"generating {settings.generate:,} examples")
    examples = task.generate(settings.generate, settings.split_seed)
    return Examples(examples, trees=task.trees)


def _without_held_out(splits: dict[str, Examples]) -> Examples:
    """Return the generated training examples that share no text with the files."""
    held_out = {text for name in splits if name != "train" for text in splits[name].sentences}
    train = splits["train"]
    rows = [row for row, texts in enumerate(train.texts()) if held_out.isdisjoint(texts)]
    kept = train.subset(rows)
    if len(rows) < len(train.rows):
        kept.report.dropped["also in another split"] = len(train.rows) - len(rows)
    return kept


def _divide(
    splits: dict[str, Examples], settings: DataConfig, grouped: bool
) -> dict[str, Examples]:
    """Take splits without a file from the training data, in the configured fractions.

    Args:
        splits: the splits that were read.
        settings: fractions and seed.
        grouped: whether examples with the same first sentence stay in one split.
    """
    fractions = {"dev": settings.dev_fraction, "test": settings.test_fraction}
    shares = {name: x for name, x in fractions.items() if x > 0 and name not in splits}
    if not shares:
        return splits
    if sum(shares.values()) >= 1:
        raise ValueError(
            f"{' and '.join(f'{name}_fraction={x:g}' for name, x in shares.items())} leave nothing "
            "to train on; pass smaller fractions"
        )
    whole = splits["train"]
    shares = {"train": 1 - sum(shares.values()), **shares}
    groups: dict[int, list[int]] = {}
    for i, row in enumerate(whole.rows):
        groups.setdefault(row[0] if grouped else i, []).append(i)
    members = list(groups.values())
    divided_groups = divide(len(members), list(shares.values()), settings.split_seed)
    parts = [[i for group in part for i in members[group]] for part in divided_groups]
    divided = dict(splits)
    for name, rows in zip(shares, parts, strict=True):
        if not rows:
            raise ValueError(
                f"{counted(len(whole.rows), 'example')} cannot be split: nothing is left for "
                f"{name}, a fraction of {shares[name]:g}; pass more data, your own splits (--dev "
                "and --test), or other settings dev_fraction and test_fraction"
            )
        divided[name] = whole.subset(rows)
    divided["train"].report = whole.report
    return divided


def _frequent_words(recipe: Recipe, vectors: Path) -> list[str]:
    """Return the first words of a vector file, as many as the recipe adds to the vocabulary."""
    count, lower = recipe.data.extra_words, recipe.data.lower
    # capitalised words are never looked up if text is lower-cased, so read more lines
    words = first_words(
        vectors, count * (4 if lower else 1), _width(vectors, recipe.model.encoder.embedding_dim)
    )
    return [word for word in words if not lower or word == word.lower()][:count]


def vocabulary(texts: Iterable[str], pretokenized: bool, lower: bool) -> list[str]:
    """Return the distinct words of `texts`, most frequent first."""
    splitter = (whitespace_tokenizer if pretokenized else treebank_tokenizer)([], lower)
    trainer = WordLevelTrainer(vocab_size=2**31 - 1, min_frequency=1, show_progress=False)
    splitter.train_from_iterator(texts, trainer)
    ids = splitter.get_vocab()
    return [word for word in sorted(ids, key=ids.__getitem__) if word not in (PAD, UNKNOWN)]


def _count(splits: Iterable[Split], words: int) -> NDArray[np.int64]:
    """Return the frequency of each of the first `words` ids, `[words]`."""
    counts = np.zeros(words, dtype=np.int64)
    for split in splits:
        times = np.bincount(split.sentences.ravel(), minlength=len(split.starts) - 1)
        weights = np.repeat(times, np.diff(split.starts))
        found = np.bincount(split.words, weights=weights, minlength=words)
        counts += found[:words].astype(np.int64)
    return counts


def without_directions(vectors: NDArray[np.float32], split: Split, n: int) -> NDArray[np.float32]:
    """Remove the main directions of the means of sentences from word vectors (Arora et al. 2017).

    Removing a direction is linear: means of the new vectors are the means of the old ones without
    it. Each distinct sentence counts once.

    Args:
        vectors: vectors of all ids `[V, E]`.
        split: the sentences.
        n: number of directions.
    """
    if n >= vectors.shape[1]:
        raise ValueError(
            f"remove_directions is {n}, but the vectors have only {vectors.shape[1]} dimensions; "
            "use a smaller number"
        )
    moments = np.zeros((vectors.shape[1],) * 2)
    # the vectors of all words at once need too much memory
    for first in range(0, len(split.starts) - 1, SENTENCES_AT_ONCE):
        starts = split.starts[first : first + SENTENCES_AT_ONCE + 1]
        words = vectors[split.words[starts[0] : starts[-1]]]
        means = np.add.reduceat(words, starts[:-1] - starts[0]).astype(np.float64)
        means /= np.diff(starts)[:, None]
        moments += means.T @ means
    # eigenvalues ascend
    main = np.linalg.eigh(moments)[1][:, -n:]
    kept: NDArray[np.float32] = (vectors - (vectors @ main) @ main.T).astype(np.float32)
    return kept


def _word_vectors(
    recipe: Recipe,
    path: Path,
    more: Path | None,
    words: list[str],
    counts: dict[str, int],
    say: Say,
) -> tuple[NDArray[np.float32], dict[str, Any], NDArray[np.float64]]:
    """Return the vectors of all ids, `[V, E]`, a report on their sources, and shares `[V]`.

    Shares are those of the words in the texts of the vector file.

    Args:
        recipe: configures the width and the treatment of out-of-vocabulary words.
        path: the vector file.
        more: the second vector file, which fills gaps.
        words: the vocabulary.
        counts: frequency of each word of the data.
        say: called with progress messages.
    """
    missing, dim = recipe.data.missing_vectors, recipe.model.encoder.embedding_dim
    asked = words
    if missing == "parts":
        asked = [*words, *(part for word in words for part in parts(word))]
    say(f"reading word vectors from {path}")
    found = read_vectors(path, asked, _width(path, dim))
    if found.dim != dim:
        raise ValueError(
            f"{path} has vectors of width {found.dim}, but embedding_dim is {dim}; use another "
            f"file, or the setting embedding_dim={found.dim}"
        )
    if not len(found):
        raise ValueError(
            f"{path} has no vector for any word of the data ({found.malformed:,} malformed lines "
            "skipped); pass another file"
        )
    # <pad> and <unk> are not in the file
    shares = np.append(found.shares(words), [0.0, 0.0])
    known = found.coverage(counts)
    report: dict[str, Any] = {"file": path.name, **known._asdict()}
    if more is not None:
        say(f"reading more word vectors from {more}")
        other = read_vectors(more, asked, _width(more, dim))
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
    # the last two rows are <pad> and <unk>
    return np.concatenate([rows, np.zeros((2, dim), dtype=np.float32)]), report, shares


def _gain(before: Coverage, after: Coverage) -> dict[str, int]:
    return {"types": after.types - before.types, "tokens": after.tokens - before.tokens}


def _width(path: Path, dim: int) -> int | None:
    """Return the width that selects a file in an archive; None if there is no choice."""
    return dim if len(text_files(path)) > 1 else None


def with_labels(recipe: Recipe, prepared: Prepared) -> Recipe:
    """Return a recipe whose head has the labels of the data and whatever else it takes from it.

    Raises:
        ValueError: If the head or the metric of `training.best_by` does not match the data.
    """
    head = recipe.model.head
    pair = HEADS[head.kind].sentences == 2
    if pair != prepared.pair:
        kinds = {True: "pairs", False: "single sentences"}
        kind_of = HEADS[head.kind].predicts
        fitting = [
            name
            for name in HEADS
            if (HEADS[name].sentences == 2) == prepared.pair and HEADS[name].predicts == kind_of
        ]
        raise ValueError(
            f"the recipe is for {kinds[pair]}, but the data consists of {kinds[prepared.pair]}; "
            f"use another recipe, or --set head.kind={fitting[0]}"
        )
    nodes = HEADS[head.kind].node_targets
    if nodes and not needs_trees(recipe):
        raise ValueError(
            f"the head {head.kind!r} learns the labels of the nodes of gold trees, but the encoder "
            f"{recipe.model.encoder.kind!r} does not follow them; use an encoder that does, such "
            "as level_tree, or the head single"
        )
    if nodes != (prepared.splits["train"].node_labels is not None):
        kinds = {True: "labelled nodes", False: "labelled sentences"}
        raise ValueError(
            f"the recipe is for {kinds[nodes]}, but the data was prepared with {kinds[not nodes]}; "
            "prepare it again with this recipe"
        )
    HEADS[head.kind].metric(recipe.training.best_by, prepared.labels)
    head = HEADS[head.kind].completed(head, prepared.labels, prepared.splits["train"].labels)
    return dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, head=head))
