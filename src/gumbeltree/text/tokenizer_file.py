"""Read tokenizer.json, which can come from anyone.

The `tokenizers` library runs whatever the file describes: a chain of replacements or a fixed
padding can exhaust the memory and abort the process, and a regular expression can take exponential
time. Therefore only steps that take linear time are accepted: those of this package's tokenizers,
and those that other word-level tokenizers use.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer, normalizers

from gumbeltree.text.files import shown
from gumbeltree.text.tokenizer import PATTERNS

MOST_BYTES = 2**29
"""Maximum size of the file; the words of the largest GloVe file take about 70 MB."""
MOST_STEPS = 16
"""Maximum number of normalizers, and of pre-tokenizers."""
MOST_ADDED = 1000
"""Maximum number of added tokens, such as [UNK], which are searched in every text."""
MOST_CHARACTERS = 200
"""Maximum length of an added token, and of all patterns of `Replace` and `Split` together."""
MOST_GROWTH = 64
"""Maximum factor by which normalization can lengthen a text."""

# by how much each normalizer can lengthen a text
NORMALIZERS = {
    "BertNormalizer": 3,
    "Lowercase": 2,
    "NFC": 3,
    "NFD": 4,
    "NFKC": 18,
    "NFKD": 18,
    "Nmt": 1,
    "Strip": 1,
    "StripAccents": 1,
}
PRE_TOKENIZERS = (
    "BertPreTokenizer",
    "CharDelimiterSplit",
    "Digits",
    "Punctuation",
    "UnicodeScripts",
    "Whitespace",
    "WhitespaceSplit",
)

# escapes and classes that match exactly one character
_ESCAPE = re.compile(r"\\(?:x[0-7][0-9a-fA-F]|[pP]\{\^?\w+\}|[sSdDwWntr]|[^\w\s])")
_CLASS = re.compile(r"\[\^?[^\[\]&\\^][^\[\]&\\]*\]")
# characters, and a quantifier for the last one; without anything to match after it, a run of
# characters is read once, not once for each of its characters
_ALTERNATIVE = re.compile(r"([^\\^$(){}\[\]*+?]+)([*+?][+?]?|\{[1-9]\d?(?:,(?:[1-9]\d?)?)?\})?")


def parse_tokenizer(content: str) -> Tokenizer:
    """Return the tokenizer that the content of a file describes; see `check_description`."""
    check_description(content)
    try:
        return Tokenizer.from_str(content)
    except Exception as error:
        raise ValueError(f"is not a tokenizer: {_brief(error)}") from error


def check_description(content: str) -> None:
    """Raise unless the cost of every step is bounded; the message continues the file's name."""
    try:
        # repeated keys could have another meaning to the library
        data = json.loads(content, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not a tokenizer: {_brief(error)}") from None
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
        raise ValueError("is not a tokenizer: it has no model")
    try:
        _check(data)
    except ValueError as error:
        raise ValueError(f"is refused: {error}") from None
    except Exception as error:
        raise ValueError(f"is not a tokenizer: {type(error).__name__}: {_brief(error)}") from None


def _brief(error: Exception) -> str:
    """Return a message without the rest of a long value."""
    text = str(error)
    return text if len(text) <= 200 else f"{text[:200]}..."


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"it has the key {shown(key)} twice")
    return found


def _check(data: dict[str, Any]) -> None:
    if (kind := data["model"]["type"]) != "WordLevel":
        raise ValueError(f"its model is a {shown(kind)}, but only WordLevel is supported")
    for name, reason in (
        ("padding", "gumbeltree pads batches itself"),
        ("truncation", "gumbeltree truncates texts itself; set max_words instead"),
        ("post_processor", "gumbeltree adds no tokens to a text"),
    ):
        if data.get(name) is not None:
            raise ValueError(f"its {name} must be null: {reason}")
    if data.get("decoder") is not None and data["decoder"]["type"] != "WordPiece":
        raise ValueError(f"its decoder must be null, got {shown(data['decoder']['type'])}")
    before = _steps(data.get("normalizer"), "normalizers", (*NORMALIZERS, "Replace"))
    splits = _steps(data.get("pre_tokenizer"), "pretokenizers", (*PRE_TOKENIZERS, "Split"))
    growth, total = 1, 0
    for step in [*before, *splits]:
        growth *= NORMALIZERS.get(step["type"], 1)
        if step["type"] in ("Replace", "Split"):
            length, least = _measure(step["pattern"])
            total += length
            # each match becomes the content
            growth *= max(1, -(-len(step.get("content", "")) // least))
    if growth > MOST_GROWTH:
        raise ValueError(
            f"its normalizers can make a text more than {MOST_GROWTH} times as long; shorten or "
            "remove replacements"
        )
    if total > MOST_CHARACTERS:
        raise ValueError(f"its patterns have {total} characters; the limit is {MOST_CHARACTERS}")
    _check_added(data.get("added_tokens") or [], data.get("normalizer"))


def _check_added(tokens: list[dict[str, Any]], state: dict[str, Any] | None) -> None:
    if len(tokens) > MOST_ADDED:
        raise ValueError(f"it has {len(tokens)} added tokens; the limit is {MOST_ADDED}")
    normalizer = normalizers.Sequence([])
    if state is not None:
        normalizer.__setstate__(json.dumps(state).encode())
    for token in tokens:
        content = token["content"]
        # the library fails on tokens that become empty, and takes quadratic time for white space
        if len(content) > MOST_CHARACTERS or not normalizer.normalize_str(content).strip():
            raise ValueError(
                f"its added token {shown(content)} must have 1 to {MOST_CHARACTERS} characters, "
                "and not only white space, also after normalization"
            )


def _steps(step: Any, inner: str, known: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the individual steps of a normalizer or pre-tokenizer; raise unless all are known."""

    def flatten(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if step["type"] == "Sequence":
            for one in step[inner]:
                yield from flatten(one)
        else:
            yield step

    found = [] if step is None else list(flatten(step))
    if len(found) > MOST_STEPS:
        raise ValueError(f"it has {len(found)} {inner}; the limit is {MOST_STEPS}")
    for one in found:
        if one["type"] not in known:
            raise ValueError(
                f"{shown(one['type'])} is not one of the supported {inner}: {', '.join(known)}"
            )
    return found


def _measure(pattern: dict[str, str]) -> tuple[int, int]:
    """Return the length of a pattern and of its shortest match; raise unless it is linear.

    The patterns of this package have the length 0.
    """
    if len(pattern) != 1:
        raise TypeError(f"a pattern must have one key, got {len(pattern)}")
    ((kind, text),) = pattern.items()
    if text in PATTERNS:
        return 0, 1
    least = len(text) if kind == "String" else min(map(_least, _one_character(text).split("|")))
    if least < 1:
        raise ValueError(
            f"its pattern {shown(text)} may match nothing or take too long: only alternatives "
            "without groups and anchors, with at most one quantifier at the end, are supported"
        )
    return len(text), least


def _one_character(regex: str) -> str:
    """Return a regular expression with an x for each part that matches one character."""
    return _CLASS.sub("x", _ESCAPE.sub("x", regex))


def _least(alternative: str) -> int:
    """Return the length of the shortest match; 0 if the alternative is not supported."""
    found = _ALTERNATIVE.fullmatch(alternative)
    if found is None:
        return 0
    characters, quantifier = found.groups(default="")
    return len(characters) - quantifier.startswith(("*", "?"))
