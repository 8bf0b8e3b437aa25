"""Binary trees over words: reading, writing, comparing and drawing them."""

import random
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from operator import index
from typing import Literal, TypeAlias, TypeVar

from gumbeltree import drawing, picture

Nested: TypeAlias = "str | tuple[Nested, Nested]"
Span: TypeAlias = tuple[int, int]
Value = TypeVar("Value")

_TOKEN = re.compile(r"[()]|[^\s()]+")


@dataclass(frozen=True, init=False, eq=False, repr=False, slots=True)
class Tree:
    """A binary tree over words.

    Two trees are equal if they have the same words and the same spans, whatever the order of
    independent merges. The constructor keeps the merge order you pass, and `random` the order it
    samples. All other class methods use the canonical order, post-order: left to right, with each
    node merged as soon as both of its children are complete.

    Example:
        Four words, merged at positions 2, 0, 0:

            the   cat   sat   down
            the   cat   (sat down)        position 2 with its right neighbour
            (the cat)   (sat down)        position 0 with its right neighbour
            ((the cat) (sat down))        position 0 with its right neighbour

        >>> Tree("the cat sat down", [2, 0, 0])
        Tree('( ( the cat ) ( sat down ) )')
        >>> Tree("the cat sat down", [2, 0, 0]).spans
        ((2, 4), (0, 2), (0, 4))
        >>> Tree("the cat sat down", [2, 0, 0]) == Tree("the cat sat down", [0, 1, 0])
        True

    Attributes:
        words: The words, left to right.
        order: The merge order. `order[t]` is the position, among the nodes present at step `t`,
            of the node that is merged with its right neighbour; their parent takes its place.
        spans: The half-open word range `(start, end)` of each merge, in merge order, root last.
    """

    words: tuple[str, ...]
    order: tuple[int, ...]
    spans: tuple[Span, ...] = field(init=False)

    def __init__(self, words: Iterable[str] | str, order: Iterable[int]) -> None:
        """Make a tree.

        Args:
            words: The words, or a string to split on whitespace.
            order: The position of each merge; see the attribute.
        """
        words = _checked_words(words)
        try:
            order = tuple(map(index, order))
        except TypeError as error:
            raise ValueError(f"`order` must contain integers: {error}") from None
        if len(order) != len(words) - 1:
            raise ValueError(
                f"`order` must have {len(words) - 1} merges for {len(words)} words, "
                f"got {len(order)}; pass one position per merge"
            )
        for step, position in enumerate(order):
            last = len(words) - 2 - step
            if not 0 <= position <= last:
                raise ValueError(
                    f"`order[{step}]` must lie in 0..{last}, got {position}; "
                    "pass a position among the nodes present at that step"
                )
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "order", order)
        leaves = [(start, start + 1) for start in range(len(words))]
        merges = self.merges(leaves, lambda left, right: (left[0], right[1]))
        object.__setattr__(self, "spans", tuple(span for _, _, span in merges))

    @classmethod
    def from_spans(cls, words: Iterable[str] | str, spans: Iterable[Span]) -> "Tree":
        """Make a tree from the word ranges of its nodes.

        Args:
            words: The words, or a string to split on whitespace.
            spans: The half-open range `(start, end)` of every node of two words or more, in any
                order. The root is optional; single words are ignored.
        """
        words = _checked_words(words)
        nodes = {(0, len(words))} | {(start, start + 1) for start in range(len(words))}
        for start, end in spans:
            if not 0 <= start < end <= len(words):
                raise ValueError(
                    f"`spans` must be ranges with 0 <= start < end <= {len(words)}, "
                    f"got ({start}, {end}); pass half-open (start, end) pairs"
                )
            nodes.add((index(start), index(end)))
        order: list[int] = []
        done: list[Span] = []
        for start, end in sorted(nodes, key=lambda node: (node[1], -node[0])):
            parts: list[Span] = []
            while done and done[-1][0] >= start:
                parts.insert(0, done.pop())
            if done and done[-1][1] > start:
                raise ValueError(
                    f"`spans` must nest, got {done[-1]} and ({start}, {end}), which cross; "
                    "remove one of them"
                )
            if end - start > 1:
                if len(parts) != 2:
                    raise ValueError(
                        f"`spans` must split every node in two, got {len(parts)} parts in "
                        f"({start}, {end}); add the missing spans"
                    )
                order.append(len(done))
            done.append((start, end))
        return cls(words, order)

    @classmethod
    def from_nested(cls, nested: Nested) -> "Tree":
        """Make a tree from nested pairs like `(("the", "cat"), "sat")`."""
        words: list[str] = []
        order: list[int] = []
        pending: list[Nested | None] = [nested]
        while pending:
            node = pending.pop()
            if node is None:
                order.append(len(words) - len(order) - 2)
            elif isinstance(node, str):
                words.append(node)
            elif isinstance(node, tuple) and len(node) == 2:
                pending += [None, node[1], node[0]]
            else:
                raise ValueError(
                    f"`nested` must contain words and pairs of nodes, got {node!r:.80} after "
                    f"{len(words)} words; pass 2-tuples of str"
                )
        return cls(words, order)

    @classmethod
    def from_brackets(cls, text: str) -> "Tree":
        """Read the output of `str(tree)`, for example `( ( the cat ) sat )`.

        Whitespace around parentheses is optional. Parentheses inside words are written `-LRB-`
        and `-RRB-`, as in the Penn Treebank.
        """
        words, nodes = read_brackets(text, labelled=False)
        for bounds in nodes:
            if len(bounds) != 3:
                raise ValueError(
                    f"every '(' must have two children, got {len(bounds) - 1} in "
                    f"{' '.join(words[bounds[0] : bounds[-1]])!r:.60}"
                )
        # in post-order, n merges have come before node n, which merges the last two nodes so far
        return cls(map(_unescaped, words), [node[-1] - 2 - n for n, node in enumerate(nodes)])

    @classmethod
    def from_nltk(cls, text: str, binarize: Literal["left", "right"] | None = None) -> "Tree":
        """Read a labelled tree as in NLTK, the Penn Treebank and SST.

        Labels and traces (`-NONE-`) are dropped, and a node with one child is replaced by that
        child. Only the root may lack a label.

        Example:
            >>> Tree.from_nltk("(S (NP (DT the) (NN cat)) (VP sat))")
            Tree('( ( the cat ) sat )')
            >>> Tree.from_nltk("(S a b c)", binarize="right")
            Tree('( a ( b c ) )')
            >>> Tree.from_nltk("(S a b c)", binarize="left")
            Tree('( ( a b ) c )')

        Args:
            text: One tree.
            binarize: How to split nodes with more than two children; None raises an error for them.
        """
        if binarize not in (None, "left", "right"):
            raise ValueError(f"`binarize` must be 'left', 'right' or None, got {binarize!r}")
        words, nodes = read_brackets(text, labelled=True)
        spans = []
        for start, *inner, end in nodes:
            if len(inner) > 1 and binarize is None:
                raise ValueError(
                    f"a node has {len(inner) + 1} children: {' '.join(words[start:end])!r:.60}; "
                    "pass binarize='left' or 'right'"
                )
            spans.append((start, end))
            spans += [(start, cut) if binarize == "left" else (cut, end) for cut in inner]
        return cls.from_spans(map(_unescaped, words), spans)

    @classmethod
    def left_branching(cls, words: Iterable[str] | str) -> "Tree":
        """Make the tree `( ( ( a b ) c ) d )`."""
        words = _checked_words(words)
        return cls(words, [0] * (len(words) - 1))

    @classmethod
    def right_branching(cls, words: Iterable[str] | str) -> "Tree":
        """Make the tree `( a ( b ( c d ) ) )`."""
        words = _checked_words(words)
        return cls(words, reversed(range(len(words) - 1)))

    @classmethod
    def balanced(cls, words: Iterable[str] | str) -> "Tree":
        """Make the tree that halves every node; of an odd number of words, the left half gets more.

        Example:
            >>> Tree.balanced("a b c d e")
            Tree('( ( ( a b ) c ) ( d e ) )')
        """
        words = _checked_words(words)
        spans = [(0, len(words))]
        for start, end in spans:
            if end - start > 2:
                middle = (start + end + 1) // 2
                spans += [(start, middle), (middle, end)]
        return cls.from_spans(words, spans)

    @classmethod
    def random(cls, words: Iterable[str] | str, seed: int) -> "Tree":
        """Make a tree by merging at a random position at each step.

        The distribution is uniform over merge orders, not over trees: balanced trees, which many
        orders produce, are more frequent than others.

        Args:
            words: The words, or a string to split on whitespace.
            seed: The same seed gives the same tree.
        """
        words = _checked_words(words)
        generator = random.Random(seed)
        return cls(words, [generator.randrange(left) for left in range(len(words) - 1, 0, -1)])

    @property
    def nested(self) -> Nested:
        """The tree as nested pairs like `(("the", "cat"), "sat")`; a single word is a str."""
        nodes: list[Nested] = list(self.words)
        nodes += [node for _, _, node in self.merges(nodes, lambda left, right: (left, right))]
        return nodes[-1]

    @property
    def depth(self) -> int:
        """The number of merges above the deepest word: 0 for one word, 1 for a pair."""
        heights = self.merges([0] * len(self), lambda left, right: 1 + max(left, right))
        return max((height for _, _, height in heights), default=0)

    def to_nltk(self, label: str = "X") -> str:
        """Write a labelled tree that NLTK reads, for example `(X (X the cat) sat)`.

        Args:
            label: The label of every node.
        """
        if label.split() != [label] or "(" in label or ")" in label:
            raise ValueError(f"`label` must be one word without parentheses, got {label!r}")
        if len(self) == 1:
            return f"({label} {self})"
        return self._written(f"({label} ", ")")

    def draw(self, width: int | None = None, marked: Collection[int] = ()) -> str:
        """Draw the tree with box-drawing characters.

        If the words fit on one line, they are written below the tree. Otherwise the tree is drawn
        sideways, with the root on the left and one word per line. In trees too deep for the width,
        levels take one column instead of two, and `…` replaces the levels next to the root. Words
        are never cut, so lines exceed `width` if it is less than the longest word plus 2.

        Example:
            >>> print(Tree.from_brackets("( ( the cat ) sat )").draw(80))
               ┌──┴──┐
             ┌─┴─┐   │
            the cat sat
            >>> print(Tree.from_brackets("( ( the cat ) sat )").draw(10))
            ┬─┬─ the
            │ └─ cat
            └─── sat

        Args:
            width: The maximum number of columns; None uses the width of the terminal.
            marked: Indices of merges to mark with `≈`.
        """
        if width is None:
            width = shutil.get_terminal_size().columns
        if width < 1:
            raise ValueError(f"`width` must be at least 1, got {width}")
        return drawing.draw(self, width, marked)

    def svg(self) -> str:
        """Draw the tree as a self-contained SVG image.

        The words of long sentences are written downwards. Inside a page, the image uses the page's
        text colour; as a file, it follows the viewer's light or dark colour scheme.
        """
        return picture.svg(picture.tree_scene(self))

    _repr_svg_ = svg

    def __len__(self) -> int:
        return len(self.words)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tree):
            return NotImplemented
        return self.words == other.words and set(self.spans) == set(other.spans)

    def __hash__(self) -> int:
        return hash((self.words, frozenset(self.spans)))

    def __repr__(self) -> str:
        return f"Tree({str(self)!r})"

    def __str__(self) -> str:
        return self._written("( ", " )")

    def _written(self, opening: str, closing: str) -> str:
        """Write the words with `opening` and `closing` around every span."""
        openings, closings = [0] * len(self), [0] * len(self)
        for start, end in self.spans:
            openings[start] += 1
            closings[end - 1] += 1
        return " ".join(
            opening * before + word.replace("(", "-LRB-").replace(")", "-RRB-") + closing * after
            for before, word, after in zip(openings, self.words, closings, strict=True)
        )

    def merges(
        self, leaves: Iterable[Value], join: Callable[[Value, Value], Value]
    ) -> Iterator[tuple[Value, Value, Value]]:
        """Yield the left child, the right child and their parent for every merge, in merge order.

        Args:
            leaves: A value for each word.
            join: Computes the value of a parent from those of its children.
        """
        present = list(leaves)
        for position in self.order:
            left, right = present[position : position + 2]
            node = join(left, right)
            present[position : position + 2] = [node]
            yield left, right, node


def _checked_words(words: Iterable[str] | str) -> tuple[str, ...]:
    """Split a string into words, and raise if a word is empty or contains whitespace."""
    words = tuple(words.split() if isinstance(words, str) else words)
    if not words:
        raise ValueError("`words` must have at least one word, got none; drop empty sentences")
    for position, word in enumerate(words):
        if not isinstance(word, str) or word.split() != [word]:
            raise ValueError(
                f"`words[{position}]` must be a non-empty str without whitespace, got {word!r}; "
                "split the sentence into words first"
            )
    return words


def read_brackets(text: str, labelled: bool) -> tuple[list[str], list[list[int]]]:
    """Read one bracketed tree, whose nodes may have any number of children.

    Args:
        text: The tree.
        labelled: Whether a word directly after "(" is the label of its node. Nodes labelled
            -NONE-, the traces of the Penn Treebank, are dropped.

    Returns:
        The words, and for each node in post-order the first word of each child, left to right,
        followed by the end of the last child.
    """
    words: list[str] = []
    nodes: list[list[int]] = []
    # the label and the children's first words of each node that is not closed yet
    labels: list[str] = []
    opened: list[list[int]] = []
    previous = ""
    for match in _TOKEN.finditer(text):
        token, position = match.group(), f"at character {match.start()}"
        if (previous or token == ")") and not opened:
            raise ValueError(f"unexpected {token!r:.40} {position}; pass exactly one tree")
        if token == ")":
            starts, label = opened.pop(), labels.pop()
            if not starts:
                raise ValueError(f"the node that ends {position} has no children")
            if labelled and not label and (opened or len(starts) > 1):
                raise ValueError(
                    f"the node that ends {position} has no label; put a space after every '(' if "
                    "the tree has no labels"
                )
            bounds = sorted({*starts, len(words)})
            if len(bounds) > 1:
                nodes.append(bounds)
        elif labelled and previous == "(" != token:
            labels[-1] = token
        else:
            if opened:
                opened[-1].append(len(words))
            if token == "(":
                opened.append([])
                labels.append("")
            elif labels[-1:] != ["-NONE-"]:
                words.append(token)
        previous = token
    if opened:
        raise ValueError(f"{len(opened)} ')' missing at the end")
    if not words:
        raise ValueError("the tree has no words")
    return words, nodes


def _unescaped(word: str) -> str:
    return word.replace("-LRB-", "(").replace("-RRB-", ")")
