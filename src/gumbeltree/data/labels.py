"""Check that the labels of training data look like classes."""

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence

from gumbeltree.text.files import shown

log = logging.getLogger(__name__)

MANY = 20
"""Up to so many examples or labels are never questioned."""
MOST_FRACTIONS = 12
"""Number of distinct labels up to which numbers such as 3.5 can be classes."""
MOST_WHOLE = 100
"""Number of distinct labels up to which whole numbers can be classes with few examples each."""
FEW = 10
"""Mean number of examples per label from which more whole numbers than that can be classes."""
MISSING = ("nan", "null", "na", "n/a", "<na>")
"""Labels that often stand for missing ones."""
TARGET = 'pass --target number, or target="number" in Python,'
ANYWAY = (
    "to train one class per label all the same, set any_labels=true (--set on the command line)"
)


def check_classes(labels: Sequence[str], say: Callable[[str], None]) -> None:
    """Raise if labels are measurements, texts or ids; mention whole numbers and spellings.

    Likely mistakes are logged as warnings, which are shown even if `say` is silent.

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
        few = len(distinct) > MOST_WHOLE and len(labels) < FEW * len(distinct)
        if rare or few or (not whole and len(distinct) > MOST_FRACTIONS):
            raise ValueError(
                f"the labels look like measurements, not classes: {span}; {TARGET} to predict "
                f"numbers. If they are classes, check the label column; {ANYWAY}"
            )
        if len(distinct) > MANY:
            log.warning("%s: trained as classes; %s to predict numbers instead", span, TARGET)
    elif rare:
        raise ValueError(
            f"the labels do not look like classes: {count}, such as {shown(distinct[0])} and "
            f"{shown(distinct[-1])}; check the label column. If they are classes, "
            f"most have too few examples to be learned; {ANYWAY}"
        )
    for label, number in Counter(labels).items():
        if label.casefold() in MISSING:
            rows = f"{number:,} rows have" if number > 1 else "one row has"
            log.warning(
                "%s the label %r, a class like any other; remove missing labels", rows, label
            )
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
