"""Made-up reviews of films, books and food, in which structure decides the label.

A sentence comes from `GRAMMAR`, which gives its words and its gold tree at once. Its label follows
from the meanings of its words, put together two by two up the tree by `combine`. A word means one
of five things:

| Meaning | Words | What it does |
|---|---|---|
| positive, negative | `charming`, `loved`, `flaws`, ... | has a say |
| flips | `not`, `nobody`, `lacks`, `doubt`, `false`, ... | turns its partner round |
| drops | `the`, `although`, `despite` | takes away its partner's say |
| neutral | all others | leaves its partner as it is |

Where both partners have a say, the right one counts. So `not` turns round its own phrase only, and
two negations cancel out; the clause after `but` beats the one before it, and one with `although`
has no say; nor has what a noun phrase says in passing, as "the dull film" or "the fans who hated
it" do:

    positive  ( ( ( the ( dull film ) ) ( is ( not bland ) ) ) . )
    negative  ( ( ( it ( is superb ) ) ( but ( nobody ( loved it ) ) ) ) . )
    negative  ( ( i ( doubt ( that ( it ( is ( anything ( but dull ) ) ) ) ) ) ) . )
    positive  ( ( ( the ( fans ( who ( hated it ) ) ) ) ( loved ( the cake ) ) ) . )

Other brackets over the same words give another label, and which words there are says little: a
word's say is turned round or taken away about as often as not.
"""

import random
from collections.abc import Iterator
from functools import cache
from typing import ClassVar

from gumbeltree.tasks.checks import checked_columns, checked_label, checked_text, checked_tree
from gumbeltree.tasks.task import Example, FileNames, Task
from gumbeltree.text.files import Report
from gumbeltree.tree import Nested, Tree

LONGEST = 20
"""Most words of a sentence, the period included; longer ones are drawn anew."""

LABELS = ("negative", "positive")

POSITIVE = {
    "ADJECTIVE": ("charming", "superb", "lovely", "clever", "brilliant", "delightful"),
    "QUALITY": ("charm", "wit", "warmth"),
    "PLEASE": ("please", "impress", "delight"),
    "LOVED": ("loved", "adored", "enjoyed"),
}
NEGATIVE = {
    "ADJECTIVE": ("dull", "awful", "bland", "tedious", "dreary", "clumsy"),
    "QUALITY": ("flaws", "faults", "cliches"),
    "PLEASE": ("bore", "annoy", "disappoint"),
    "LOVED": ("hated", "loathed", "mocked"),
}
FLIPS = (
    *("not", "never", "hardly", "nobody", "anything", "without", "free", "lacks", "fails"),
    *("doubt", "doubts", "deny", "false", "unfair"),
)
DROPS = ("the", "although", "despite")

GRAMMAR: dict[str, tuple[str, ...]] = {
    "SENTENCE": ("( REVIEW . )",),
    "REVIEW": (
        *["CLAUSE"] * 6,
        *["( ( although CLAUSE ) ( , CLAUSE ) )"] * 2,
        *["( CLAUSE ( but CLAUSE ) )"] * 2,
        "( CLAUSE ( although CLAUSE ) )",
        "( ( despite ( its QUALITY ) ) ( , CLAUSE ) )",
        "( CLAUSE ( despite ( its QUALITY ) ) )",
    ),
    "CLAUSE": (
        *["FACT"] * 8,
        "( i ( I_SAY ( that FACT ) ) )",
        "( ANYONE ( SAYS ( that FACT ) ) )",
        "( PEOPLE ( THEY_SAY ( that FACT ) ) )",
        "( ( every ( RUMOUR ( that FACT ) ) ) ( is VERDICT ) )",
        "( ( calling ( THING ADJECTIVE ) ) ( is FAIR ) )",
    ),
    "FACT": (
        *["( THING ( is PREDICATE ) )"] * 5,
        "( THING ( has QUALITY ) )",
        "( THING ( lacks QUALITY ) )",
        "( THING ( manages ( to PLEASE ) ) )",
        "( THING ( fails ( to PLEASE ) ) )",
        "( THING ( never ( fails ( to PLEASE ) ) ) )",
        "( PEOPLE ( LOVED THING ) )",
        "( i ( LOVED THING ) )",
        "( i ( never ( LOVED THING ) ) )",
        "( ANYONE ( LOVED THING ) )",
    ),
    "PREDICATE": (
        *["ADJECTIVE"] * 3,
        "( DEGREE ADJECTIVE )",
        *["( NOT ADJECTIVE )"] * 2,
        "( NOT ( DEGREE ADJECTIVE ) )",
        "( anything ( but ADJECTIVE ) )",
        "( nothing ( but ADJECTIVE ) )",
        "( full ( of QUALITY ) )",
        "( free ( of QUALITY ) )",
        "( without QUALITY )",
        "( NOT ( without QUALITY ) )",
    ),
    "THING": (
        *["it"] * 3,
        *["( the NOUN )"] * 3,
        *["( the ( ADJECTIVE NOUN ) )"] * 3,
        "( the ( NOUN ( that ( PERSON LOVED ) ) ) )",
    ),
    "PEOPLE": ("( the CRITICS )", *["( the ( CRITICS ( who ( LOVED it ) ) ) )"] * 2),
    "PERSON": ("i", "ANYONE"),
    "ANYONE": ("everyone", "nobody"),
    "I_SAY": ("think", "doubt"),
    "SAYS": ("says", "doubts"),
    "THEY_SAY": ("say", "deny"),
    "VERDICT": ("true", "false", "( not true )", "( not false )"),
    "FAIR": ("fair", "unfair", "( not fair )", "( not unfair )"),
    "NOT": ("not", "never", "hardly"),
    "DEGREE": ("very", "rather", "truly"),
    "NOUN": ("film", "plot", "cast", "novel", "ending", "soup", "cake", "menu"),
    "CRITICS": ("critics", "fans", "guests"),
    "RUMOUR": ("rumour", "claim"),
    **{symbol: POSITIVE[symbol] + NEGATIVE[symbol] for symbol in POSITIVE},
}
"""What each symbol becomes, every choice as likely as the others; symbols are in capitals."""

MEANINGS: dict[str, str] = {
    **{word: "positive" for words in POSITIVE.values() for word in words},
    **{word: "negative" for words in NEGATIVE.values() for word in words},
    **dict.fromkeys(FLIPS, "flips"),
    **dict.fromkeys(DROPS, "drops"),
}
"""What words mean; all others are neutral."""

_TURNED = {"positive": "negative", "negative": "positive", "flips": "neutral", "drops": "drops"}


def combine(left: str, right: str) -> str:
    """Return the meaning of two partners from theirs."""
    if left == "drops":
        return "neutral"
    if left == "neutral" or right == "neutral":
        return right if left == "neutral" else left
    if left == "flips" or right == "flips":
        return _TURNED[right if left == "flips" else left]
    return right


def evaluate(tree: Tree) -> str:
    """Return the label that follows from the words and the tree over them.

    Example:
        >>> evaluate(Tree.from_brackets("( ( it ( is dull ) ) ( but ( i ( loved it ) ) ) )"))
        'positive'
        >>> evaluate(Tree.from_brackets("( ( it ( is dull ) ) ( but ( nobody ( loved it ) ) ) )"))
        'negative'

    Raises:
        ValueError: If the tree as a whole has no say.
    """
    meanings = [MEANINGS.get(word, "neutral") for word in tree.words]
    meanings += [meaning for _, _, meaning in tree.merges(meanings, combine)]
    if meanings[-1] not in LABELS:
        raise ValueError(
            f"`tree` must be positive or negative, got a {meanings[-1]} one, {str(tree)[:60]!r}; "
            "pass a whole sentence of the grammar"
        )
    return meanings[-1]


def generate(count: int, seed: int) -> Iterator[Example]:
    """Make reviews, all different, one positive and one negative in every two.

    There are some 10^11 of them. Fewer examples with the same seed are the first of more. Divide
    them with `gumbeltree.tasks.table.split`.

    Args:
        count: How many examples.
        seed: Any integer; the same one gives the same examples.

    Raises:
        ValueError: If `count` is negative.
    """
    if count < 0:
        raise ValueError(f"`count` must be at least 0, got {count}; pass a larger one")
    return _generated(count, seed)


class Demo(Task):
    """Reviews in words, with the gold tree.

    A file has the label, a tab and the review on each line, the review in binary brackets, such as
    `( ( it ( is dull ) ) . )`, which give the gold tree, or without them. It may be any sentence.
    """

    name = "demo"
    labels = LABELS
    pair = False
    pretokenized = True
    file_names: ClassVar[FileNames] = {
        split: (f"{split}.tsv",) for split in ("train", "dev", "test")
    }

    generate = staticmethod(generate)
    evaluate = staticmethod(evaluate)

    def parse(self, line: str, split: str, report: Report) -> list[Example]:
        """Read one label and review; see `Task.parse`."""
        label, review = checked_columns(line.split("\t"), 2)
        label = checked_label(label.strip(), self.labels)
        review = checked_text(review, "review")
        if "(" not in review and ")" not in review:
            return [Example((" ".join(review.split()),), label, (None,))]
        tree = checked_tree(review, "review")
        return [Example((" ".join(tree.words),), label, (tree,))]


def _generated(count: int, seed: int) -> Iterator[Example]:
    generator = random.Random(seed)
    seen: set[str] = set()
    label = ""
    while len(seen) < count:
        tree = Tree.from_nested(_drawn(generator, "SENTENCE"))
        text = " ".join(tree.words)
        if len(tree) > LONGEST or text in seen:
            continue
        previous, label = label, evaluate(tree)
        # the second of every two has the other label
        if len(seen) % 2 and label == previous:
            continue
        seen.add(text)
        yield Example((text,), label, (tree,))


def _drawn(generator: random.Random, node: Nested) -> Nested:
    """Replace the symbols of a node at random, left to right.

    Only `random()` is drawn from: Python promises that it stays the same for the same seed.
    """
    if isinstance(node, tuple):
        return _drawn(generator, node[0]), _drawn(generator, node[1])
    if node not in GRAMMAR:
        return node
    choices = _choices(node)
    return _drawn(generator, choices[int(generator.random() * len(choices))])


@cache
def _choices(symbol: str) -> list[Nested]:
    return [Tree.from_brackets(choice).nested for choice in GRAMMAR[symbol]]
