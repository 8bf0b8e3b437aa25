"""Leaf transformations: word vectors `[rows, E]` -> leaf states `[rows, 2D]`.

A leaf transformation is built from E, D and its settings. It is called with words, their layout and
the name of the implementation that will merge them, and returns h and c of each word side by side.
"""
