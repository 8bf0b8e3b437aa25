"""The parts of a model: one file a part, one line in its table."""
