"""Tokenizers: from strings to ids, built on the `tokenizers` library."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

PAD, UNKNOWN = "<pad>", "<unk>"

# words whose period is kept before a capital letter; initials and dotted letters (U.S.) always are
ABBREVIATIONS = [
    "Adm", "Brig", "Capt", "Col", "Cmdr", "Dr", "Ft", "Gen", "Gov",
    "Hon", "Jr", "Lt", "Maj", "Mr", "Mrs", "Ms", "Mt", "Pres",
    "Prof", "Rep", "Rev", "Rt", "Sen", "Sgt", "Sr", "St", "vs",
]  # fmt: skip

# In the patterns below \A and \z are the ends of the text, *+ and ++ do not backtrack (so the time
# grows with the length of the text only), and the first character comes before what must stand to
# the left of it, as the library then finds candidates fast.
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
# each of the two apostrophes by itself, as only so does each keep its offset
_OPENING_APOSTROPHES = r"'(?<=[\s(\[{<«“‘„]'')|'(?<=[\s(\[{<«“‘„]')(?=')"
_CURLY_APOSTROPHE = r"’(?<=\p{L}’)(?=\p{L})"

_MARKS = r"«“‘„»”’`;@#$%&‒–—―?!*\[\](){}<>"
# what may follow 's, n't or a closing apostrophe: what is split off from it, or nothing
_STOP = rf"\s|\z|[{_MARKS}]|[:,](?!\d)|\.\.|--|''"
_WORD_END = rf"(?={_STOP}|'(?:{_STOP}))"
# first part, second part: cannot, gonna, ...
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
    # (?i) would also fold other letters, such as the long s
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


def whitespace_tokenizer(words: Iterable[str], lower: bool = False) -> Tokenizer:
    """Return a tokenizer that splits at white space.

    Ids follow the order of `words`, then come <pad> and <unk>. Where `words` itself holds one of
    these two, its row stays, but no text reaches it.

    Args:
        words: the vocabulary, each word once.
        lower: whether text is lower-cased first.
    """
    return _word_tokenizer(words, lower, [], [])


def treebank_tokenizer(words: Iterable[str], lower: bool = False) -> Tokenizer:
    """Return a tokenizer that splits text nearly as the Penn Treebank does.

    Contractions, punctuation, brackets and quotes become tokens of their own; a straight double
    quote becomes `` or ''. The period is split off where a sentence ends. The tokens are those of
    NLTK's word tokenizer, but for the cases in docs/tokens.md. Offsets point into the text as
    given. Ids are laid out as in `whitespace_tokenizer`.

    Args:
        words: the vocabulary, each word once.
        lower: whether text is lower-cased, after sentence ends are found by their capital letters.
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
    """Return a tokenizer for text that is in words already: it splits at white space only.

    Vocabulary and ids are those of `tokenizer`, and text is lower-cased where it is there; all
    else that it does to text before look-up is left out.
    """
    state = tokenizer.normalizer and json.loads(tokenizer.normalizer.__getstate__())
    lower = state is not None and any(step["type"] == "Lowercase" for step in _steps(state))
    return _split_at_spaces(Tokenizer(tokenizer.model), lower, [], [])


def undo_ptb_escapes(word: str) -> str:
    r"""Return a word of a treebank as it stands in plain text.

    -LRB- becomes an opening bracket and so on for the six brackets, \/ becomes /, and \* becomes *.
    The quotes `` and '' stay, as `treebank_tokenizer` has them too.
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
    # no token holds a space, so the name of an unreachable row ends in one
    names = [f"{word} " if word in (PAD, UNKNOWN) else word for word in words]
    repeated = [word for word, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(f"`words` must hold each word once, got {repeated[0]!r} again")
    vocabulary = {word: i for i, word in enumerate([*names, PAD, UNKNOWN])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    return _split_at_spaces(tokenizer, lower, replacements, splits)


def _split_at_spaces(
    tokenizer: Tokenizer,
    lower: bool,
    replacements: Sequence[normalizers.Normalizer],
    splits: Sequence[pre_tokenizers.PreTokenizer],
) -> Tokenizer:
    # four control characters are white space to Python, but not to the tokenizers library
    steps: list[normalizers.Normalizer] = [
        normalizers.Replace(Regex(r"[\x1c-\x1f]"), " "),
        *replacements,
    ]
    if lower:
        steps.append(normalizers.Lowercase())
    tokenizer.normalizer = normalizers.Sequence(steps)
    at_spaces = pre_tokenizers.WhitespaceSplit()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, at_spaces]) if splits else at_spaces
    return tokenizer


def _steps(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Give the single steps of a normaliser, as its JSON has them."""
    if state["type"] != "Sequence":
        yield state
    for step in state.get("normalizers", []):
        yield from _steps(step)
