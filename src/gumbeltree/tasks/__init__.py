"""Tasks: readers of labelled text. To add one, write a module and register it here."""

from typing import TYPE_CHECKING

from gumbeltree.registry import Registry, UnknownNameError

if TYPE_CHECKING:
    from gumbeltree.text.lines import Check

TASKS = Registry(
    "task",
    {
        "snli": "gumbeltree.tasks.snli:SNLI",
        "snli_similarity": "gumbeltree.tasks.snli:SNLISimilarity",
        "sst2": "gumbeltree.tasks.sst:SST2",
        "sst5": "gumbeltree.tasks.sst:SST5",
        "listops": "gumbeltree.tasks.listops:ListOps",
        "logic": "gumbeltree.tasks.logic:Logic",
        "sick": "gumbeltree.tasks.sick:SICK",
        "sick_relatedness": "gumbeltree.tasks.sick:SICKRelatedness",
        "parses": "gumbeltree.tasks.parses:ParsedSentences",
        "demo": "gumbeltree.tasks.demo:Demo",
        "table": "gumbeltree.tasks.table:Table",
    },
)


def text_check(task: object, pretokenized: bool = False) -> "Check | None":
    """Return a function that raises a MismatchError for texts that models of a task cannot answer.

    Models of ListOps answer expressions alone, and those of logic formulas. Others answer all
    texts: for them, this returns None.

    Args:
        task: the name that the model records, or whatever stands in its place.
        pretokenized: whether white space separates the words, and brackets are escaped.
    """
    from gumbeltree.text.tokenizer import undo_ptb_escapes

    try:
        check: Check | None = getattr(TASKS[str(task)], "check_text", None)
    except UnknownNameError:
        return None
    if check is None or not pretokenized:
        return check
    return lambda text: check(" ".join(map(undo_ptb_escapes, text.split())))
