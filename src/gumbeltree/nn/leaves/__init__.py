"""Leaf transformations: word vectors `[rows, E]` -> leaf states `[rows, 2D]`.

A leaf is made from E, D and its settings, and called with words, their layout and the
implementation that will merge them; h and c of a word stand side by side.
"""
