"""A running average of the weights, which usually classifies better than the last weights."""

import torch

from gumbeltree.model import SentenceModel


class WeightAverage:
    """The exponentially weighted average of a model's trainable weights over the steps.

    Args:
        model: the model that is trained.
        copy: a model of the same settings, which receives the averages.
        decay: weight of the previous average at each step; less during the first steps, so that
            the initial weights are soon forgotten.
    """

    def __init__(self, model: SentenceModel, copy: SentenceModel, decay: float) -> None:
        copy.load_state_dict(model.state_dict())
        self.source, self.model, self.decay = model, copy.requires_grad_(False), decay
        pairs = zip(model.parameters(), copy.parameters(), strict=True)
        self.pairs = [(own, average) for own, average in pairs if own.requires_grad]

    def update(self, step: int) -> None:
        """Include the weights after a step, counted from 1."""
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        with torch.no_grad():
            for own, average in self.pairs:
                average.lerp_(own, weight)

    def copy_buffers(self) -> None:
        """Copy the statistics of batch normalisation, which are averages already."""
        for own, copy in zip(self.source.buffers(), self.model.buffers(), strict=True):
            copy.copy_(own)
