"""Tasks: readers of labelled text. One file per task, one line here."""

from gumbeltree.registry import Registry

TASKS = Registry(
    "task",
    {
        "snli": "gumbeltree.tasks.snli:SNLI",
        "sst2": "gumbeltree.tasks.sst:SST2",
        "sst5": "gumbeltree.tasks.sst:SST5",
        "listops": "gumbeltree.tasks.listops:ListOps",
        "sick": "gumbeltree.tasks.sick:SICK",
        "demo": "gumbeltree.tasks.demo:Demo",
        "table": "gumbeltree.tasks.table:Table",
    },
)
