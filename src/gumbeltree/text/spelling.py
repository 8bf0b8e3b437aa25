"""The spelling of the words in a vocabulary: their characters or bytes."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from gumbeltree.text.tokenizer import PAD, UNKNOWN

CHARACTERS = 97
"""Number of character ids: 0 past the end of a word, 1 for characters outside of printable ASCII,
and one for each of the 95 others."""
MOST_CHARACTERS = 40
"""Words are cut to this many characters."""
MOST_BYTES = 64
"""Words are cut to this many bytes."""


def character_table(tokenizer: Tokenizer) -> NDArray[np.uint8]:
    """Return the characters of each word of a vocabulary, uint8 `[V, K]`, 0 past its end.

    Out-of-vocabulary words have no characters.
    """
    ids = tokenizer.get_vocab()
    words = {i: word[:MOST_CHARACTERS] for word, i in ids.items() if word not in (PAD, UNKNOWN)}
    longest = max(map(len, words.values()), default=1)
    table = np.zeros((tokenizer.get_vocab_size(), longest), np.uint8)
    for i, word in words.items():
        table[i, : len(word)] = [ord(x) - 30 if " " <= x <= "~" else 1 for x in word]
    return table


def byte_table(tokenizer: Tokenizer) -> NDArray[np.uint8]:
    """Return each word of a vocabulary in UTF-8, followed by a space, uint8 `[V, K]`, then zeros.

    The spelling of out-of-vocabulary words is lost: all that remains is the space.
    """
    words = {
        i: b"" if word in (PAD, UNKNOWN) else word.encode().replace(b"\0", b"")[:MOST_BYTES]
        for word, i in tokenizer.get_vocab().items()
    }
    table = np.zeros((tokenizer.get_vocab_size(), 1 + max(map(len, words.values()))), np.uint8)
    for i, word in words.items():
        table[i, : len(word) + 1] = list(word + b" ")
    return table


SPELLINGS: dict[str, Callable[[Tokenizer], NDArray[np.uint8]]] = {
    "characters": character_table,
    "bytes": byte_table,
}
"""Tables of the spelling of all words, by the name of the spelling."""
