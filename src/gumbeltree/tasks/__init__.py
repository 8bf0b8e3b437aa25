"""Tasks: readers of labelled text. To add one, write a module and register it here."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

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


def text_check(provenance: Mapping[str, Any], pretokenized: bool = False) -> "Check | None":
    """Return a function that raises a MismatchError for texts that a model cannot answer.

    A model of ListOps answers expressions alone, and one of logic formulas. Other models answer all
    texts: for them, this returns None.

    Args:
        provenance: that of the model, with any content.
        pretokenized: whether white space separates the words, and brackets are escaped.
    """
    from gumbeltree.text.tokenizer import undo_ptb_escapes

    recipe = provenance.get("recipe")
    data = recipe.get("data") if isinstance(recipe, dict) else None
    try:
        task = TASKS[str(data.get("task"))] if isinstance(data, dict) else None
    except UnknownNameError:
        task = None
    check: Check | None = getattr(task, "check_text", None)
    if check is None or not pretokenized:
        return check
    return lambda text: check(" ".join(map(undo_ptb_escapes, text.split())))
