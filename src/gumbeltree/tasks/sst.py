"""Stanford Sentiment Treebank (Socher et al. 2013): binary and five-class sentiment."""

import re
from typing import ClassVar, NamedTuple

from gumbeltree.tasks.task import Example, FileNames, Task
from gumbeltree.text.files import MismatchError, Report, shown
from gumbeltree.text.tokenizer import undo_ptb_escapes
from gumbeltree.tree import Tree

# an opening bracket with its label, a word, or a single character
_PIECE = re.compile(r"\(\s*([0-4])(?=[\s(])|([^\s()]+)|\S")


class _Node(NamedTuple):
    """A node with its range of words and its range of merges."""

    digit: str
    start: int
    end: int
    first_merge: int
    last_merge: int


class _Sentiment(Task):
    """Trees in Penn Treebank brackets with a label from 0 to 4 on every node.

    The training split yields every node of every tree, single words included, bottom-up; other
    splits yield whole sentences. If `nodes` is set, all splits yield whole sentences, with the
    labels of their nodes. Penn Treebank escapes are undone. A no-break space inside a word,
    as in "2 1/2", becomes a hyphen, so that the word is not split.
    """

    pair = False
    pretokenized = True
    file_names: ClassVar[FileNames] = {
        split: (f"{split}.txt", f"trees/{split}.txt") for split in ("train", "dev", "test")
    }
    # the label of each digit; None drops the node
    digits: ClassVar[dict[str, str | None]]

    def parse(self, line: str, split: str, report: Report) -> list[Example]:
        """Read the nodes of one tree; see `Task.parse`."""
        words, order, nodes = _parse(line.replace("\xa0", "-"))
        labels = self._labels(len(words), nodes) if self.nodes else ()
        if split != "train" or self.nodes:
            nodes = nodes[-1:]
        examples = []
        for node in nodes:
            label = self.digits[node.digit]
            if label is None:
                continue
            # earlier merges all lie to the left of this node and leave this many nodes there
            left = node.start - node.first_merge
            merges = [position - left for position in order[node.first_merge : node.last_merge]]
            tree = Tree(words[node.start : node.end], merges)
            examples.append(Example((" ".join(tree.words),), label, (tree,), labels))
        if len(examples) < len(nodes):
            report.dropped["neutral"] += len(nodes) - len(examples)
        return examples

    def _labels(self, words: int, nodes: list[_Node]) -> tuple[tuple[str | None, ...]]:
        """Return the labels of all nodes of one tree; see `Example.nodes`."""
        labels: list[str | None] = [None] * (2 * words - 1)
        for node in nodes:
            is_word = node.first_merge == node.last_merge
            place = node.start if is_word else words + node.last_merge - 1
            labels[place] = self.digits[node.digit]
        return (tuple(labels),)


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
    """Five classes, from very negative to very positive."""

    name = "sst5"
    labels = ("very negative", "negative", "neutral", "positive", "very positive")
    digits: ClassVar[dict[str, str | None]] = dict(zip("01234", labels, strict=True))


def _parse(line: str) -> tuple[list[str], list[int], list[_Node]]:
    """Return the words of a tree, its post-order merges, and its nodes bottom-up."""
    words: list[str] = []
    order: list[int] = []
    nodes: list[_Node] = []
    # label, first word and first merge of each open node
    opened: list[tuple[str, int, int]] = []
    # number of children of each open node, -1 for a word; the first entry allows one tree per line
    children = [1]
    for match in _PIECE.finditer(line):
        digit, word = match.groups()
        if digit and 0 <= children[-1] < 2:
            opened.append((digit, len(words), len(order)))
            children.append(0)
        elif word and children[-1] == 0:
            words.append(undo_ptb_escapes(word))
            children[-1] = -1
        elif match[0] == ")" and opened and children[-1] in (-1, 2):
            digit, start, first = opened.pop()
            if children.pop() == 2:
                order.append(len(words) - len(order) - 2)
            nodes.append(_Node(digit, start, len(words), first, len(order)))
            children[-1] += 1
        else:
            raise _malformed(line, f"{shown(match[0])} at character {match.start() + 1}")
    if opened or not nodes:
        raise _malformed(line, f"the end of the line with {len(opened)} open brackets")
    return words, order, nodes


def _malformed(line: str, actual: str) -> MismatchError:
    return MismatchError(
        "one binary tree with a label 0 to 4 on every node, such as (3 (2 a) (4 gem))",
        f"{actual} in {shown(line)}",
        "correct the tree",
    )
