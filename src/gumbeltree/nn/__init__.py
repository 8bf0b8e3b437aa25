"""The parts of a model, one module per part, registered in `gumbeltree.parts`."""
