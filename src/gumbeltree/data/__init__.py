"""Convert labelled text to ids and length-bucketed batches."""

from gumbeltree.data.split import Batch, Split, by_length, shuffled

__all__ = ["Batch", "Split", "by_length", "shuffled"]
