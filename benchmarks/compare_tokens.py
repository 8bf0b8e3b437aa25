"""Compare `treebank_tokenizer` with NLTK, and with the parser's own tokens, on an SNLI file.

    python benchmarks/compare_tokens.py snli_1.0_dev.jsonl.gz

Each distinct sentence counts once. NLTK's word tokenizer wants one
sentence at a time, so the text is first split at inner sentence ends, by the rule of docs/tokens.md
written out a second time here. The file's parse trees, where it has them, give a second and
independent opinion: that of the Stanford parser.
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
    sys.exit("this script compares with NLTK, which is not installed: pip install nltk")

EXAMPLES = 40


def read(path: str) -> dict[str, list[str]]:
    """Return each distinct sentence with the words of its parse tree, none without a tree."""
    sentences = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            pair = json.loads(line)
            for key in ("sentence1", "sentence2"):
                words = re.findall(r" ([^()\s]+)\)", pair.get(f"{key}_parse", ""))
                sentences.setdefault(pair[key], [undo_ptb_escapes(word) for word in words])
    return sentences


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text: a period and a capital letter, no abbreviation before."""
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
    different = [text for text in ours if ours[text] != theirs[text]]
    share = 100 * (1 - len(different) / len(ours))
    print(f"\n{name}: {share:.3f} % of {len(ours):,} sentences alike, {len(different)} differ")
    pieces = Counter()
    for text in different:
        left, right = Counter(ours[text]), Counter(theirs[text])
        pieces[" ".join(left - right) + "   |   " + " ".join(right - left)] += 1
    for piece, count in pieces.most_common(EXAMPLES):
        print(f"{count:6}   {piece}")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(f"expected one argument, an SNLI .jsonl.gz file, got {len(sys.argv) - 1}")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core, for the speed
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
    print(f"{len(texts) / seconds:,.0f} sentences a second on one core (encode_batch)")

    ours = {}
    for text, encoding in zip(texts, encodings, strict=True):
        # a token outside the vocabulary is shown by its characters: it differs from NLTK's anyway
        ours[text] = [
            text[first:last] if token == "<unk>" else token
            for token, (first, last) in zip(encoding.tokens, encoding.offsets, strict=True)
        ]
    print(f"{sum(len(split_sentences(text)) > 1 for text in texts)} texts of several sentences")
    report("NLTK", ours, theirs)
    if any(parsed.values()):
        report("Stanford parser", ours, parsed)


if __name__ == "__main__":
    main()
