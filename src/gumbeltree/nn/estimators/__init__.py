"""Estimators: logits -> mixing weights and their gradient. One file each, one line here."""

from gumbeltree.registry import Registry

ESTIMATORS = Registry(
    "estimator",
    {
        "st_gumbel": "gumbeltree.nn.estimators.st_gumbel:StraightThroughGumbel",
        "soft": "gumbeltree.nn.estimators.soft:SoftGumbel",
    },
)
