"""Synthetic reviews of films, books and food whose labels depend on their structure.

Each sentence is drawn from `GRAMMAR`, which determines its words and its gold tree. Its label
follows from the meanings of its words, composed bottom-up along the tree by `combine`:

| Meaning | Words | Effect |
|---|---|---|
| positive, negative | `charming`, `loved`, `flaws`, ... | expresses a sentiment |
| flips | `not`, `nobody`, `lacks`, `doubt`, `false`, ... | reverses its sibling |
| drops | `the`, `although`, `despite` | makes its sibling neutral |
| neutral | all others | leaves its sibling unchanged |

If both siblings express a sentiment, the right one wins. Hence `not` reverses only its own phrase
and two negations cancel. The clause after `but` outweighs the one before it, and a clause with
`although` does not count; nor does a sentiment inside a noun phrase, such as "the dull film" or
"the fans who hated it":

    positive  ( ( ( the ( dull film ) ) ( is ( not bland ) ) ) . )
    negative  ( ( ( it ( is superb ) ) ( but ( nobody ( loved it ) ) ) ) . )
    negative  ( ( i ( doubt ( that ( it ( is ( anything ( but dull ) ) ) ) ) ) ) . )
    positive  ( ( ( the ( fans ( who ( hated it ) ) ) ) ( loved ( the cake ) ) ) . )

Other bracketings of the same words can change the label, and the words alone predict little: a
sentiment is reversed or dropped about as often as not.
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
"""Maximum number of words, including the period; longer sentences are redrawn."""

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
"""Equally likely expansions of each symbol; symbols are in capitals."""

MEANINGS: dict[str, str] = {
    **{word: "positive" for words in POSITIVE.values() for word in words},
    **{word: "negative" for words in NEGATIVE.values() for word in words},
    **dict.fromkeys(FLIPS, "flips"),
    **dict.fromkeys(DROPS, "drops"),
}
"""Meanings of words; all others are neutral."""

_REVERSED = {"positive": "negative", "negative": "positive", "flips": "neutral", "drops": "drops"}


def combine(left: str, right: str) -> str:
    """Return the meaning of a phrase from those of its two children."""
    if left == "drops":
        return "neutral"
    if left == "neutral" or right == "neutral":
        return right if left == "neutral" else left
    if left == "flips" or right == "flips":
        return _REVERSED[right if left == "flips" else left]
    return right


def evaluate(tree: Tree) -> str:
    """Compute the label of a tree.

    Example:
        >>> evaluate(Tree.from_brackets("( ( it ( is dull ) ) ( but ( i ( loved it ) ) ) )"))
        'positive'
        >>> evaluate(Tree.from_brackets("( ( it ( is dull ) ) ( but ( nobody ( loved it ) ) ) )"))
        'negative'

    Raises:
        ValueError: If the tree expresses no sentiment.
    """
    meanings = [MEANINGS.get(word, "neutral") for word in tree.words]
    meanings += [meaning for _, _, meaning in tree.merges(meanings, combine)]
    if meanings[-1] not in LABELS:
        raise ValueError(
            f"`tree` must express a sentiment, but {str(tree)[:60]!r} is {meanings[-1]}; pass a "
            "sentence of the grammar"
        )
    return meanings[-1]


def generate(count: int, seed: int) -> Iterator[Example]:
    """Generate distinct reviews; each successive pair has one of each label.

    There are about 10^11 different reviews. With the same seed, a smaller count yields the first
    examples of a larger one. Split them with `gumbeltree.tasks.table.split`.

    Args:
        count: Number of examples.
        seed: Any integer.
    """
    generator = random.Random(seed)
    seen: set[str] = set()
    label = ""
    while len(seen) < count:
        tree = Tree.from_nested(_expand(generator, "SENTENCE"))
        text = " ".join(tree.words)
        if len(tree) > LONGEST or text in seen:
            continue
        previous, label = label, evaluate(tree)
        if len(seen) % 2 and label == previous:
            continue
        seen.add(text)
        yield Example((text,), label, (tree,))


class Demo(Task):
    """Pretokenized reviews with gold trees.

    Each line has the label, a tab and the review, which may be any sentence. Optional binary
    brackets, such as `( ( it ( is dull ) ) . )`, give the gold tree.
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


def _expand(generator: random.Random, node: Nested) -> Nested:
    """Expand the symbols of a node at random, left to right.

    Uses only `random()`, whose values are guaranteed not to change in later Python versions.
    """
    if isinstance(node, tuple):
        return _expand(generator, node[0]), _expand(generator, node[1])
    if node not in GRAMMAR:
        return node
    choices = _choices(node)
    return _expand(generator, choices[int(generator.random() * len(choices))])


@cache
def _choices(symbol: str) -> list[Nested]:
    return [Tree.from_brackets(choice).nested for choice in GRAMMAR[symbol]]
