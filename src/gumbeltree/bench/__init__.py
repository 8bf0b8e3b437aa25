"""Measurements: speed and memory as ratios in one run, correctness first."""
