"""Gradient estimators: logits -> mixing weights and their gradient. Built from their settings."""
