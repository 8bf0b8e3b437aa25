"""Differentiable operations: the merge, the leaf LSTM and sentence-pair features."""
