"""Composition cells: (left, right) -> parent. One file per cell, one line here."""

from gumbeltree.registry import Registry

CELLS = Registry("cell", {"treelstm": "gumbeltree.nn.cells.treelstm:TreeLSTMCell"})
