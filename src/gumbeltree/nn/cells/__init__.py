"""Composition cells: (left, right) -> parent. Built from the width D and their settings."""
