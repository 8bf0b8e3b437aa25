"""Differentiable operations: the merge, the leaf LSTM, the features of a pair."""
