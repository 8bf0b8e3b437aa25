"""The Stanford Sentiment Treebank (Socher et al. 2013), the official trees, as two tasks."""

from typing import ClassVar

from gumbeltree.tasks.task import Example, FileNames, Task
from gumbeltree.text.files import MismatchError, Report, shown
from gumbeltree.text.tokenizer import undo_ptb_escapes
from gumbeltree.tree import Tree

_LABELS = frozenset("01234")


class _Sentiment(Task):
    """Trees in Penn Treebank brackets with a label 0 to 4 on every node.

    The training split gives every node of every tree, single words too, from the bottom up;
    other splits give whole sentences. Penn Treebank escapes are undone. A no-break space inside
    a word, as in "2 1/2", becomes a hyphen, so that a word stays a word.
    """

    pair = False
    pretokenized = True
    file_names: ClassVar[FileNames] = {
        split: (f"{split}.txt", f"trees/{split}.txt") for split in ("train", "dev", "test")
    }
    # the label of each digit, None for nodes that are dropped
    digits: ClassVar[dict[str, str | None]]

    def parse(self, line: str, split: str, report: Report) -> list[Example]:
        """Read the nodes of one tree; see `Task.parse`."""
        words, order, nodes = _parse(line)
        if split != "train":
            nodes = nodes[-1:]
        examples = []
        for digit, start, end, first, last in nodes:
            label = self.digits[digit]
            if label is None:
                continue
            # merges before this node were all made on its left, and left this many nodes there
            left = start - first
            tree = Tree(words[start:end], [position - left for position in order[first:last]])
            examples.append(Example((" ".join(tree.words),), label, (tree,)))
        if len(examples) < len(nodes):
            report.dropped["neutral"] += len(nodes) - len(examples)
        return examples


class SST2(_Sentiment):
    """Positive or negative; neutral sentences and phrases are dropped."""

    name = "sst2"
    labels = ("negative", "positive")
    digits: ClassVar[dict[str, str | None]] = {
        "0": "negative",
        "1": "negative",
        "2": None,
        "3": "positive",
        "4": "positive",
    }


class SST5(_Sentiment):
    """Five grades, from very negative to very positive."""

    name = "sst5"
    labels = ("very negative", "negative", "neutral", "positive", "very positive")
    digits: ClassVar[dict[str, str | None]] = dict(zip("01234", labels, strict=True))


def _parse(line: str) -> tuple[list[str], list[int], list[tuple[str, int, int, int, int]]]:
    """Read a tree: its words, its post-order merges, and its nodes from the bottom up.

    A node is its label, its range of words and its range of merges.
    """
    if "\xa0" in line:
        line = line.replace("\xa0", "-")
    pieces = line.replace("(", " ( ").replace(")", " ) ").split()
    words: list[str] = []
    order: list[int] = []
    nodes: list[tuple[str, int, int, int, int]] = []
    # label, first word, first merge, children so far (-1 for the word of a leaf)
    opened: list[list[int]] = []
    digits: list[str] = []
    place, count = 0, len(pieces)
    while place < count:
        piece = pieces[place]
        if piece == "(":
            if nodes and not opened:
                raise _malformed(line, "one tree a line", "a second '('", place)
            if opened and not 0 <= opened[-1][2] < 2:
                raise _malformed(line, "a word or two children in a node", "another child", place)
            digit = pieces[place + 1] if place + 1 < count else "the end"
            if digit not in _LABELS:
                raise _malformed(line, "a label 0 to 4 after '('", shown(digit), place + 1)
            digits.append(digit)
            opened.append([len(words), len(order), 0])
            place += 2
        elif not opened:
            raise _malformed(line, "'(' first and nothing after its ')'", shown(piece), place)
        elif piece == ")":
            start, first, children = opened.pop()
            if children not in (-1, 2):
                came = "one child" if children else "none"
                raise _malformed(line, "a word or two children in a node", came, place)
            if children == 2:
                order.append(len(words) - len(order) - 2)
            nodes.append((digits.pop(), start, len(words), first, len(order)))
            if opened:
                opened[-1][2] += 1
            place += 1
        else:
            if opened[-1][2] != 0:
                came = f"another word, {shown(piece)},"
                raise _malformed(line, "a word or two children in a node", came, place)
            words.append(undo_ptb_escapes(piece))
            opened[-1][2] = -1
            place += 1
    if opened:
        raise _malformed(line, f"{len(opened)} more ')'", "the end of the line", place)
    return words, order, nodes


def _malformed(line: str, expected: str, came: str, place: int) -> MismatchError:
    came = f"{came} at piece {place + 1} of {shown(line)}"
    return MismatchError(expected, came, "correct the tree, such as (3 (2 a) (4 gem))")
