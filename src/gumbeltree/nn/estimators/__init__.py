"""Estimators: logits -> mixing weights and their gradient. Made from their settings."""
