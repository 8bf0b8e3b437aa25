"""Read tokenizer.json, which can come from anyone.

The `tokenizers` library runs whatever the file describes: a chain of replacements or a fixed
padding can exhaust the memory and abort the process, and a regular expression can take exponential
time. Therefore only steps with bounded cost are accepted: those of this package's tokenizers, and
those that other word-level tokenizers use.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer

from gumbeltree.text.tokenizer import PATTERNS

MOST_BYTES = 2**29
"""Maximum size of the file; the words of the largest GloVe file take about 70 MB."""
MOST_STEPS = 32
"""Maximum number of normalizers, and of pre-tokenizers."""
MOST_ADDED = 1000
"""Maximum number of added tokens, such as [UNK], which are searched in every text."""
MOST_GROWTH = 1000
"""Maximum factor by which normalization can lengthen a text."""

# by how much each normalizer can lengthen a text
NORMALIZERS = {
    "BertNormalizer": 9,
    "Lowercase": 3,
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

_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|[pP]\{\^?\w+\}|[sSdDwWbBntr]|[^\w\s])")
_CLASS = re.compile(r"\[\^?[^\[\]&]+\]")
_QUANTIFIER = re.compile(r"(?:[*+?]|\{\d{0,3},?\d{0,3}\})[?+]?")


def parse_tokenizer(content: str) -> Tokenizer:
    """Return the tokenizer that the content of a file describes; see `check_description`."""
    check_description(content)
    try:
        return Tokenizer.from_str(content)
    except Exception as error:
        raise ValueError(f"is not a tokenizer: {error}") from error


def check_description(content: str) -> None:
    """Raise unless the cost of every step is bounded; the message continues the file's name."""
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not a tokenizer: {error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("model"), dict):
        raise ValueError("is not a tokenizer: it has no model")
    try:
        _check(data)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"is not a tokenizer: {type(error).__name__}: {error}") from None
    except ValueError as error:
        raise ValueError(f"is refused: {error}") from None


def _check(data: dict[str, Any]) -> None:
    if (kind := data["model"]["type"]) != "WordLevel":
        raise ValueError(f"its model is a {kind}, but only WordLevel is supported")
    for name, reason in (
        ("padding", "gumbeltree pads batches itself"),
        ("truncation", "gumbeltree truncates texts itself; set max_words instead"),
        ("post_processor", "gumbeltree adds no tokens to a text"),
    ):
        if data.get(name) is not None:
            raise ValueError(f"its {name} must be null: {reason}")
    if data.get("decoder") is not None and data["decoder"]["type"] != "WordPiece":
        raise ValueError(f"its decoder must be null, got {data['decoder']['type']}")
    added = data.get("added_tokens") or []
    if len(added) > MOST_ADDED:
        raise ValueError(f"it has {len(added)} added tokens; the limit is {MOST_ADDED}")
    growth = 1
    for step in _steps(data.get("normalizer"), "normalizers"):
        growth *= _growth(step)
        if growth > MOST_GROWTH:
            raise ValueError(
                f"its normalizers can make a text more than {MOST_GROWTH} times as long; shorten "
                "or remove replacements"
            )
    for step in _steps(data.get("pre_tokenizer"), "pretokenizers"):
        if step["type"] == "Split":
            _check_pattern(step["pattern"])
        elif step["type"] not in PRE_TOKENIZERS:
            known = ", ".join([*PRE_TOKENIZERS, "Split"])
            raise ValueError(f"its pre-tokenizer {step['type']!r} is not one of {known}")


def _steps(step: dict[str, Any] | None, inner: str) -> list[dict[str, Any]]:
    """Return the individual steps of a normalizer or pre-tokenizer."""

    def flatten(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if step["type"] == "Sequence":
            for one in step[inner]:
                yield from flatten(one)
        else:
            yield step

    found = [] if step is None else list(flatten(step))
    if len(found) > MOST_STEPS:
        raise ValueError(f"it has {len(found)} {inner}; the limit is {MOST_STEPS}")
    return found


def _growth(step: dict[str, Any]) -> int:
    """Return by how much a normalizer can lengthen a text."""
    if step["type"] != "Replace":
        if step["type"] not in NORMALIZERS:
            known = ", ".join([*NORMALIZERS, "Replace"])
            raise ValueError(f"its normalizer {step['type']!r} is not one of {known}")
        return NORMALIZERS[step["type"]]
    pattern, size = step["pattern"], len(step["content"])
    _check_pattern(pattern)
    replaced = len(pattern.get("String", ""))
    if pattern.get("Regex") in PATTERNS:
        replaced = 1
    # a pattern may match the empty string before every character
    return max(1, -(-size // replaced)) if replaced else 1 + size


def _check_pattern(pattern: dict[str, str]) -> None:
    """Raise unless matching takes at most quadratic time."""
    if "String" in pattern or pattern["Regex"] in PATTERNS:
        return
    regex = pattern["Regex"]
    rest = _CLASS.sub("x", _ESCAPE.sub("x", regex))
    if (
        len(regex) > 200
        or re.search(r"[\\()\[\]]", rest)
        or any(len(_QUANTIFIER.findall(part)) > 1 for part in rest.split("|"))
    ):
        shown = regex if len(regex) <= 40 else f"{regex[:40]}..."
        raise ValueError(
            f"its regular expression {shown!r} may take too long: only patterns without groups, "
            "with at most one quantifier per alternative, are supported"
        )
