"""Benchmarks of speed and memory, after a check of correctness."""
