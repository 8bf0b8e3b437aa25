"""The NumPy runtime: forward passes of all model parts, without torch.

Every module mirrors one of `gumbeltree.nn`: leaves, cells, estimators, encoders (`trees` and
`baselines`) and heads. A class is built from its settings and its weights, by their names in the
model file; its `shapes` lists the names and shapes that it expects. `network` puts the parts
together, and the last table of each registry in `gumbeltree.parts` names them.
"""
