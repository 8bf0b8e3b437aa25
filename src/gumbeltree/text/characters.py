"""The characters of the words in a vocabulary, as ids."""

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from gumbeltree.text.tokenizer import PAD, UNKNOWN

CHARACTERS = 97
"""Number of character ids: 0 past the end of a word, 1 for characters outside of printable ASCII,
and one for each of the 95 others."""
LONGEST = 40
"""Words are cut to this many characters."""


def character_table(tokenizer: Tokenizer) -> NDArray[np.uint8]:
    """Return the characters of each word of a vocabulary, uint8 `[V, K]`, 0 past its end.

    Out-of-vocabulary words have no characters.
    """
    ids = tokenizer.get_vocab()
    words = {i: word[:LONGEST] for word, i in ids.items() if word not in (PAD, UNKNOWN)}
    longest = max(map(len, words.values()), default=1)
    table = np.zeros((tokenizer.get_vocab_size(), longest), np.uint8)
    for i, word in words.items():
        table[i, : len(word)] = [ord(x) - 30 if " " <= x <= "~" else 1 for x in word]
    return table
