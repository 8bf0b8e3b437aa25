"""Columns of text in the forms that other libraries return, without these libraries."""

import numpy as np


class Series:
    """A column of a data frame: labelled rows, which need not start at 0."""

    def __init__(self, values):
        self.values = list(values)
        self.index = range(100, 100 + len(self.values))

    def __len__(self):
        return len(self.values)

    def __iter__(self):
        return iter(self.values)

    def __getitem__(self, key):
        return self.values[self.index.index(key)]


class Column:
    """A column of a data set on disk, which yields its values one by one."""

    def __init__(self, values):
        self.stored = list(values)

    def __len__(self):
        return len(self.stored)

    def __iter__(self):
        yield from self.stored


FORMS = {
    "list": list,
    "tuple": tuple,
    "series": Series,
    "column": Column,
    "array": np.array,
    "objects": lambda values: np.array(list(values), dtype=object),
    "iterator": iter,
    "generator": lambda values: (value for value in list(values)),
}
"""Functions that turn a list into another form, by name."""
