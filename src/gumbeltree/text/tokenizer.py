"""Word tokenizers, built on the `tokenizers` library."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

PAD, UNKNOWN = "<pad>", "<unk>"

# words that keep their period before a capital letter, as initials and dotted letters (U.S.) do
ABBREVIATIONS = [
    "Adm", "Brig", "Capt", "Col", "Cmdr", "Dr", "Ft", "Gen", "Gov",
    "Hon", "Jr", "Lt", "Maj", "Mr", "Mrs", "Ms", "Mt", "Pres",
    "Prof", "Rep", "Rev", "Rt", "Sen", "Sgt", "Sr", "St", "vs",
]  # fmt: skip

# In the patterns below, \A and \z match the ends of the text, and *+ and ++ do not backtrack, so
# that matching takes linear time. Each pattern starts with a literal character and checks its left
# context by lookbehind, so that the library finds candidates quickly.
_CLOSING = r"\])}>\"'»”’"
_CASES = "|".join(f"{word}|{word.upper()}" for word in ABBREVIATIONS)
_SENTENCE_END = (
    r"\.(?<=[^.\s]\.)"
    r"(?:"
    rf"(?=[{_CLOSING}\s]*+\z)"
    rf"|(?<!\b(?:{_CASES})\.)(?<!(?<![\w'’-])[A-HJ-Z]\.)(?<!\.[A-Za-z]\.)"
    rf"(?=[{_CLOSING}]*+\s++[\[({{<\"'`«“‘„]*+\p{{Lu}})"
    r")"
)
_OPENING_QUOTE = r"\"(?<=\A\"|[\s(\[{<«“‘„`]\")"
# one apostrophe at a time, so that each keeps its offset
_OPENING_APOSTROPHES = r"'(?<=[\s(\[{<«“‘„]'')|'(?<=[\s(\[{<«“‘„]')(?=')"
_CURLY_APOSTROPHE = r"’(?<=\p{L}’)(?=\p{L})"

_MARKS = r"«“‘„»”’`;@#$%&‒–—―?!*\[\](){}<>"
# what may follow 's, n't or a closing apostrophe
_STOP = rf"\s|\z|[{_MARKS}]|[:,](?!\d)|\.\.|--|''"
_WORD_END = rf"(?={_STOP}|'(?:{_STOP}))"
# first and second part of cannot, gonna, ...
_CONTRACTIONS = [
    ("can", r"not\b"),
    ("d", r"'ye\b"),
    ("gim", r"me\b"),
    ("gon", r"na\b"),
    ("got", r"ta\b"),
    ("lem", r"me\b"),
    ("more", r"'n\b"),
    ("wan", rf"na{_WORD_END}"),
]


def _either_case(pattern: str) -> str:
    # (?i) would also match other letters, such as the long s
    letters = re.compile(r"(?<!\\)[a-z]")
    return letters.sub(lambda match: f"[{match[0]}{match[0].upper()}]", pattern)


_TOKEN = "|".join(
    [
        r"\.\.++",
        "--",
        "``",
        "''",
        rf"[{_MARKS}]",
        r"[:,](?!\d)",
        rf"'(?:[sSmMdD]|ll|LL|re|RE|ve|VE)?{_WORD_END}",
        rf"[nN]'[tT]{_WORD_END}",
        _either_case(r"'(?<!\w')(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w)"),
        *(rf"\b{_either_case(first)}(?={_either_case(second)})" for first, second in _CONTRACTIONS),
    ]
)


# the control characters that Python treats as white space and the tokenizers library does not
_SEPARATORS = r"[\x1c-\x1f]"

PATTERNS = frozenset(
    {
        _SENTENCE_END,
        _OPENING_QUOTE,
        _OPENING_APOSTROPHES,
        _CURLY_APOSTROPHE,
        _TOKEN,
        _SEPARATORS,
    }
)
"""The regular expressions of the tokenizers below. Each match has at least one character."""


def whitespace_tokenizer(words: Iterable[str], lower: bool = False) -> Tokenizer:
    """Return a tokenizer that splits text at white space.

    Ids follow the order of `words`; <pad> and <unk> come last. If `words` contains one of these
    two, it keeps its id, but no text maps to it.

    Args:
        words: the vocabulary, without duplicates.
        lower: lower-case text first.
    """
    return _word_tokenizer(words, lower, [], [])


def treebank_tokenizer(words: Iterable[str], lower: bool = False) -> Tokenizer:
    """Return a tokenizer that splits text by the conventions of the Penn Treebank.

    Contractions, punctuation, brackets and quotes become separate tokens; a straight double quote
    becomes `` or ''. Periods are split off at the end of a sentence. The tokens match those of
    NLTK's word tokenizer except for the cases in docs/tokens.md. Offsets refer to the original
    text. Ids are assigned as in `whitespace_tokenizer`.

    Args:
        words: the vocabulary, without duplicates.
        lower: lower-case text, after using its capital letters to find sentence ends.
    """
    quotes_and_periods = [
        normalizers.Replace(Regex(_SENTENCE_END), " ."),
        normalizers.Replace(Regex(_OPENING_APOSTROPHES), "`"),
        normalizers.Replace(Regex(_OPENING_QUOTE), " `` "),
        normalizers.Replace('"', " '' "),
        normalizers.Replace(Regex(_CURLY_APOSTROPHE), "'"),
    ]
    return _word_tokenizer(
        words, lower, quotes_and_periods, [pre_tokenizers.Split(Regex(_TOKEN), "isolated")]
    )


def pretokenized(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer for pretokenized text, which splits at white space only.

    It has the vocabulary of `tokenizer` and lower-cases text if `tokenizer` does; all other
    normalisation is dropped.
    """
    state = tokenizer.normalizer and json.loads(tokenizer.normalizer.__getstate__())
    lower = state is not None and any(step["type"] == "Lowercase" for step in _steps(state))
    return _split_at_spaces(Tokenizer(tokenizer.model), lower, [], [])


def undo_ptb_escapes(word: str) -> str:
    r"""Return the plain text of a treebank word.

    Escaped brackets such as -LRB- become brackets, \/ becomes / and \* becomes *.
    The quotes `` and '' stay, as in the tokens of `treebank_tokenizer`.
    """
    return _BRACKETS.get(word) or word.replace(r"\/", "/").replace(r"\*", "*")


_BRACKETS = {
    "-LRB-": "(",
    "-RRB-": ")",
    "-LSB-": "[",
    "-RSB-": "]",
    "-LCB-": "{",
    "-RCB-": "}",
}


def _word_tokenizer(
    words: Iterable[str],
    lower: bool,
    replacements: Sequence[normalizers.Normalizer],
    splits: Sequence[pre_tokenizers.PreTokenizer],
) -> Tokenizer:
    # tokens contain no spaces, so no text maps to a name that ends in one
    names = [f"{word} " if word in (PAD, UNKNOWN) else word for word in words]
    repeated = [word for word, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(f"`words` must not contain duplicates, got {repeated[0]!r} twice")
    vocabulary = {word: i for i, word in enumerate([*names, PAD, UNKNOWN])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    return _split_at_spaces(tokenizer, lower, replacements, splits)


def _split_at_spaces(
    tokenizer: Tokenizer,
    lower: bool,
    replacements: Sequence[normalizers.Normalizer],
    splits: Sequence[pre_tokenizers.PreTokenizer],
) -> Tokenizer:
    steps: list[normalizers.Normalizer] = [
        normalizers.Replace(Regex(_SEPARATORS), " "),
        *replacements,
    ]
    if lower:
        steps.append(normalizers.Lowercase())
    tokenizer.normalizer = normalizers.Sequence(steps)
    at_spaces = pre_tokenizers.WhitespaceSplit()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, at_spaces]) if splits else at_spaces
    return tokenizer


def _steps(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the individual steps of a normaliser, given its JSON."""
    if state["type"] != "Sequence":
        yield state
    for step in state.get("normalizers", []):
        yield from _steps(step)
