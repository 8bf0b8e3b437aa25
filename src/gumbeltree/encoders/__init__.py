"""Encoders: word vectors -> sentence vector and tree."""

from gumbeltree.registry import Registry

ENCODERS = Registry("encoder", {"gumbel_tree": "gumbeltree.encoders.gumbel_tree:GumbelTreeEncoder"})
