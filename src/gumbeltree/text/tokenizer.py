"""Tokenizers: from strings to ids, built on the `tokenizers` library."""

from collections import Counter
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

PAD, UNKNOWN = "<pad>", "<unk>"


def whitespace_tokenizer(words: Iterable[str], lower: bool = False) -> Tokenizer:
    """Return a tokenizer that splits at white space.

    Ids follow the order of `words`, then come <pad> and <unk>. Where `words` itself holds one of
    these two, its row stays, but no text reaches it.

    Args:
        words: the vocabulary, each word once.
        lower: whether text is lower-cased first.
    """
    # no token holds a space, so the name of an unreachable row ends in one
    names = [f"{word} " if word in (PAD, UNKNOWN) else word for word in words]
    repeated = [word for word, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(f"`words` must hold each word once, got {repeated[0]!r} again")
    vocabulary = {word: i for i, word in enumerate([*names, PAD, UNKNOWN])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    # four control characters are white space to Python, but not to the tokenizers library
    steps: list[normalizers.Normalizer] = [normalizers.Replace(Regex(r"[\x1c-\x1f]"), " ")]
    if lower:
        steps.append(normalizers.Lowercase())
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer
