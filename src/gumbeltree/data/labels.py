"""Check that the labels of training data look like classes."""

import math
from collections import Counter
from collections.abc import Callable, Sequence

from gumbeltree.text.files import shown

MANY = 20
"""Up to so many examples or labels are never questioned."""
MOST_FRACTIONS = 12
"""Number of distinct labels up to which numbers such as 3.5 can be classes."""
MISSING = ("nan", "null", "na", "n/a", "<na>")
"""Labels that often stand for missing ones."""
ANYWAY = "to train one class per label all the same, pass --set any_labels=true"


def check_classes(labels: Sequence[str], say: Callable[[str], None]) -> None:
    """Raise if labels are measurements, texts or ids; mention whole numbers and spellings.

    Args:
        labels: label of each example.
        say: called with remarks about labels that may be classes.
    """
    distinct = sorted(set(labels))
    count = f"{len(distinct):,} distinct labels in {len(labels):,} rows"
    rare = len(labels) > MANY and 2 * len(distinct) > len(labels)
    if numbers := _numbers(distinct):
        span = f"{count}, all numbers from {min(numbers):g} to {max(numbers):g}"
        whole = all(number.is_integer() for number in numbers)
        if rare or (not whole and len(distinct) > MOST_FRACTIONS):
            raise ValueError(
                f"the labels look like measurements, not classes: {span}; pass --target number to "
                f"predict numbers. If they are classes, check the label column; {ANYWAY}"
            )
        if len(distinct) > MANY:
            say(f"{span}: trained as classes; pass --target number to predict numbers instead")
    elif rare:
        raise ValueError(
            f"the labels do not look like classes: {count}, such as {shown(distinct[0])} and "
            f"{shown(distinct[-1])}; check the column passed with --label. If they are classes, "
            f"most have too few examples to be learned; {ANYWAY}"
        )
    for label, number in Counter(labels).items():
        if label.casefold() in MISSING:
            rows = f"{number:,} rows have" if number > 1 else "one row has"
            say(f"{rows} the label {label!r}, a class like any other; remove missing labels")
    singles = [label for label, number in Counter(labels).items() if number == 1]
    if singles and len(labels) > MANY:
        names = ", ".join(map(shown, singles[:5])) + (", ..." if len(singles) > 5 else "")
        say(f"labels with a single example, which cannot be learned: {names}")
    spellings: dict[str, str] = {}
    for label in distinct:
        other = spellings.setdefault(label.casefold(), label)
        if other != label:
            say(f"the labels {other!r} and {label!r} are different classes: check their spelling")


def _numbers(labels: Sequence[str]) -> list[float]:
    """Return labels as numbers; empty unless all of them are finite numbers."""
    try:
        numbers = [float(label) for label in labels]
    except ValueError:
        return []
    return numbers if all(map(math.isfinite, numbers)) else []
