"""Training: the loop, its steps, its noise, the run folder and the display."""
