"""Labelled text compiled for training: ids, labels, vocabulary and word vectors, in one file.

Text is tokenised once. The result can be used directly, or saved to train on a machine that has
neither the text nor the vectors.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from gumbeltree.atomic import replace_file
from gumbeltree.config import DataConfig, Recipe
from gumbeltree.data.split import Split
from gumbeltree.settings import from_dict
from gumbeltree.text.tokenizer_file import parse_tokenizer

FORMAT = "gumbeltree-prepared-1"

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """Everything that training reads.

    Attributes:
        splits: train, dev and, if available, test.
        tokenizer: converts plain text to the ids of `splits`.
        vectors: word vectors by id, float32 `[V, E]`; None to start from random ones.
        labels: names of the classes or tags.
        pair: whether examples are pairs of sentences.
        data: settings of the data.
        max_words: maximum number of words per sentence; longer ones were truncated.
        report: counts per split (examples, words, unknown, truncated, dropped), and the coverage
            of the word vectors per source.
    """

    splits: dict[str, Split]
    tokenizer: Tokenizer
    vectors: NDArray[np.float32] | None
    labels: tuple[str, ...]
    pair: bool
    data: DataConfig
    max_words: int
    report: dict[str, Any]

    def fingerprint(self) -> str:
        """Return a digest of ids, labels, vocabulary and vectors."""
        digest = hashlib.sha256(json.dumps([self.labels, self.pair, self.max_words]).encode())
        digest.update(self.tokenizer.to_str().encode())
        for name, array in _arrays(self):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()[:32]

    def lines(self) -> Iterator[str]:
        """Yield a readable report, line by line."""
        for name, about in self.report["splits"].items():
            text = f"{name}: {about['examples']:,} examples, {about['words']:,} words"
            if about["words"]:
                share = about["unknown"] / about["words"]
                text += f", {about['unknown']:,} unknown ({share:.1%})"
            if about["cut"]:
                text += f"; {about['cut']:,} sentences truncated to {self.max_words} words"
            dropped = ", ".join(f"{n:,} {reason}" for reason, n in about["dropped"].items())
            text += f"; dropped {dropped}" if dropped else ""
            text += f"; {about['bad']:,} bad lines skipped" if about["bad"] else ""
            text += f"; {about['seen']:,} examples also in train" if about.get("seen") else ""
            yield text
            yield from (f"  {message}" for message in about["first_bad"])
        words = self.report["vocabulary"]
        yield (
            f"vocabulary: {words['training']:,} words of the data, {words['extra']:,} more from "
            "the vector file"
        )
        if self.report["vectors"]:
            *first, last = self._vector_lines()
            rest = "zero" if self.data.missing_vectors == "parts" else self.data.missing_vectors
            yield from (*first, f"{last}; others {rest}")

    def _vector_lines(self) -> Iterator[str]:
        """Yield one line per source of word vectors."""
        found = self.report["vectors"]
        all_tokens = max(1, found["all_tokens"])
        yield (
            f"vectors: for {found['types']:,} of {found['all_types']:,} words of the data, "
            f"{found['tokens'] / all_tokens:.1%} of their occurrences"
        )
        if "borrowed" in found:
            more = found["borrowed"]
            yield (
                f"borrowed from {more['file']}: for {more['types']:,} more words, "
                f"{more['tokens'] / all_tokens:.1%} of the occurrences; {more['shared']:,} words "
                f"in both files, held-out cosine {more['cosine']:.2f}"
            )
        if "parts" in found:
            more = found["parts"]
            yield (
                f"means of parts: for {more['types']:,} more words, "
                f"{more['tokens'] / all_tokens:.1%} of the occurrences"
            )


def _arrays(prepared: Prepared) -> Iterator[tuple[str, NDArray[Any]]]:
    for name, split in sorted(prepared.splits.items()):
        yield f"{name}.words", split.words
        yield f"{name}.starts", split.starts
        yield f"{name}.sentences", split.sentences
        yield f"{name}.labels", split.labels
        if split.orders is not None:
            yield f"{name}.orders", split.orders
        if split.node_labels is not None:
            yield f"{name}.node_labels", split.node_labels
    if prepared.vectors is not None:
        yield "vectors", prepared.vectors


def save_prepared(prepared: Prepared, path: str | Path) -> None:
    """Write prepared data to a .safetensors file atomically."""
    path = Path(path)
    arrays = {name: np.ascontiguousarray(array) for name, array in _arrays(prepared)}
    classes = np.uint16 if len(prepared.labels) <= 2**16 else np.uint32
    for name in prepared.splits:
        # lengths compress better than offsets
        arrays[f"{name}.lengths"] = np.diff(arrays.pop(f"{name}.starts")).astype(np.uint32)
        if prepared.labels and arrays[f"{name}.labels"].ndim == 1:
            arrays[f"{name}.labels"] = arrays[f"{name}.labels"].astype(classes)
    arrays["tokenizer"] = np.frombuffer(prepared.tokenizer.to_str().encode(), dtype=np.uint8)
    about = {
        "format": FORMAT,
        "labels": prepared.labels,
        "pair": prepared.pair,
        "max_words": prepared.max_words,
        "data": dataclasses.asdict(prepared.data),
        "report": prepared.report,
        "fingerprint": prepared.fingerprint(),
    }
    metadata = {key: json.dumps(value) for key, value in about.items()}
    metadata["checksum"] = json.dumps(_checksum(metadata))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, lambda temporary: save_file(arrays, temporary, metadata))


def _checksum(metadata: dict[str, str]) -> str:
    """Return a digest of the metadata; the fingerprint covers the arrays."""
    others = sorted((key, text) for key, text in metadata.items() if key != "checksum")
    return hashlib.sha256(json.dumps(others).encode()).hexdigest()[:32]


def load_prepared(path: str | Path) -> Prepared:
    """Read a file written by `save_prepared`, and verify its checksums."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist; create a prepared file with `gumbeltree data prepare`"
        )
    try:
        with safe_open(path, framework="numpy") as file:
            texts = file.metadata() or {}
            metadata = {key: json.loads(text) for key, text in texts.items()}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError) as error:
        raise ValueError(
            f"{path} is not a prepared file, or is truncated ({error}); create it again with "
            "`gumbeltree data prepare`"
        ) from error
    if metadata.get("format") != FORMAT:
        raise ValueError(
            f"{path} has the format {metadata.get('format')!r} instead of {FORMAT!r}; create it "
            "again with `gumbeltree data prepare`"
        )
    try:
        names = [name.removesuffix(".labels") for name in arrays if name.endswith(".labels")]
        splits = {
            name: Split(
                arrays[f"{name}.words"],
                np.concatenate([[0], np.cumsum(arrays[f"{name}.lengths"].astype(np.int64))]),
                arrays[f"{name}.sentences"],
                # classes are stored in a smaller type than training uses
                arrays[f"{name}.labels"].astype(np.int64)
                if metadata["labels"] and arrays[f"{name}.labels"].ndim == 1
                else arrays[f"{name}.labels"],
                arrays.get(f"{name}.orders"),
                arrays.get(f"{name}.node_labels"),
            )
            for name in sorted(names, key=("train", "dev", "test").index)
        }
        prepared = Prepared(
            splits,
            parse_tokenizer(arrays["tokenizer"].tobytes().decode()),
            arrays.get("vectors"),
            tuple(metadata["labels"]),
            metadata["pair"],
            from_dict(DataConfig, metadata["data"], "data"),
            metadata["max_words"],
            metadata["report"],
        )
    except Exception as error:
        raise ValueError(f"{path} is damaged ({error}); create it again") from error
    checksum = _checksum(texts)
    whole = metadata.get("checksum", checksum) == checksum
    if not whole or prepared.fingerprint() != metadata.get("fingerprint"):
        raise ValueError(f"{path} is damaged: its checksums do not match; create it again")
    return prepared


def check_fit(prepared: Prepared, recipe: Recipe) -> None:
    """Raise unless the data was prepared with settings that match a recipe."""
    # columns and fractions no longer matter once the file is written
    for name in ("task", "lower", "tokenizer"):
        made, wanted = getattr(prepared.data, name), getattr(recipe.data, name)
        if made != wanted:
            raise ValueError(
                f"the data was prepared with data.{name} = {made!r}, but the recipe has "
                f"{wanted!r}; prepare it again with this recipe"
            )
    if prepared.max_words != recipe.model.max_words:
        raise ValueError(
            f"the data was prepared with model.max_words = {prepared.max_words}, but the recipe "
            f"has {recipe.model.max_words}; prepare it again with this recipe"
        )
    dim = recipe.model.encoder.embedding_dim
    if prepared.vectors is not None and prepared.vectors.shape[1] != dim:
        raise ValueError(
            f"the word vectors have width {prepared.vectors.shape[1]}, but embedding_dim is {dim}; "
            f"use another vector file, or the setting embedding_dim={prepared.vectors.shape[1]}"
        )
