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


def check_of(name: str | None) -> "Check | None":
    """Return the check of texts of a task, by its name in a recipe; None if it has none."""
    try:
        check: Check | None = getattr(TASKS[str(name)], "check_text", None)
    except UnknownNameError:
        return None
    return check
