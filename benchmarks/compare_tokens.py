"""Compare `treebank_tokenizer` with NLTK and with the tokens of the Stanford parser on SNLI.

    python benchmarks/compare_tokens.py snli_1.0_dev.jsonl.gz

Each distinct sentence counts once. NLTK's word tokenizer expects a single sentence, so texts are
first split into sentences by an independent implementation of the rule in docs/tokens.md. The
tokens of the Stanford parser come from the parse trees of the file.
"""

import gzip
import json
import os
import re
import sys
import time
from collections import Counter

from gumbeltree.text.tokenizer import ABBREVIATIONS, treebank_tokenizer, undo_ptb_escapes

try:
    from nltk.tokenize import NLTKWordTokenizer
except ImportError:
    sys.exit("NLTK is not installed: pip install nltk")

EXAMPLES = 40


def read(path: str) -> dict[str, list[str]]:
    """Return the words of the parse tree of each distinct sentence, if it has one."""
    sentences = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            pair = json.loads(line)
            for key in ("sentence1", "sentence2"):
                words = re.findall(r" ([^()\s]+)\)", pair.get(f"{key}_parse", ""))
                sentences.setdefault(pair[key], [undo_ptb_escapes(word) for word in words])
    return sentences


def split_sentences(text: str) -> list[str]:
    """Split a text after periods that precede a capital letter and follow no abbreviation."""
    sentences, start = [], 0
    for match in re.finditer(r"""\.[\])}>"'»”’]*(\s+)[\[({<"'`«“‘„]*(\w)""", text):
        word = re.search(r"[^\W_]*$", text[: match.start()])[0]
        before = text[: match.start() - len(word)][-1:]
        dotted = len(word) == 1 and before == "."
        initial = (
            len(word) == 1 and word in "ABCDEFGHJKLMNOPQRSTUVWXYZ" and before not in set("'’-")
        )
        known = word in ABBREVIATIONS or word in [name.upper() for name in ABBREVIATIONS]
        if match[2].isupper() and not (dotted or initial or known):
            sentences.append(text[start : match.start(1)])
            start = match.end(1)
    return [*sentences, text[start:]]


def report(name: str, ours: dict[str, list[str]], theirs: dict[str, list[str]]) -> None:
    """Print how many sentences agree, and the most frequent differences."""
    different = [text for text in ours if ours[text] != theirs[text]]
    share = 100 * (1 - len(different) / len(ours))
    print(f"\n{name}: {share:.3f} % of {len(ours):,} sentences agree, {len(different)} differ")
    pieces = Counter()
    for text in different:
        left, right = Counter(ours[text]), Counter(theirs[text])
        pieces[" ".join(left - right) + "   |   " + " ".join(right - left)] += 1
    for piece, count in pieces.most_common(EXAMPLES):
        print(f"{count:6}   {piece}")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python benchmarks/compare_tokens.py SNLI.jsonl.gz")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # measure the speed of one core
    parsed = read(sys.argv[1])
    texts = list(parsed)
    nltk = NLTKWordTokenizer()
    theirs = {
        text: [word for part in split_sentences(text) for word in nltk.tokenize(part)]
        for text in texts
    }
    vocabulary = sorted({word for words in theirs.values() for word in words})
    tokenizer = treebank_tokenizer(vocabulary)
    start = time.perf_counter()
    encodings = tokenizer.encode_batch(texts)
    seconds = time.perf_counter() - start
    print(f"{len(texts) / seconds:,.0f} sentences per second on one core (encode_batch)")

    ours = {}
    for text, encoding in zip(texts, encodings, strict=True):
        # out-of-vocabulary tokens differ from NLTK's in any case; show their text
        ours[text] = [
            text[first:last] if token == "<unk>" else token
            for token, (first, last) in zip(encoding.tokens, encoding.offsets, strict=True)
        ]
    print(f"{sum(len(split_sentences(text)) > 1 for text in texts)} texts have several sentences")
    report("NLTK", ours, theirs)
    if any(parsed.values()):
        report("Stanford parser", ours, parsed)


if __name__ == "__main__":
    main()
