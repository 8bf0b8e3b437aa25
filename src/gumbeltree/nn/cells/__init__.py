"""Composition cells: (left, right) -> parent. Made from the width D and their settings."""
