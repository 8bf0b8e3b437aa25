"""REINFORCE (Williams 1992)."""

from gumbeltree.config import ReinforceConfig
from gumbeltree.nn.estimators.estimator import AdvanceEstimator


class Reinforce(AdvanceEstimator):
    """Weight the log-probability of a drawn tree by its loss minus a baseline."""

    Config = ReinforceConfig
