"""Training: the loop, its noise, its folder, its display."""
