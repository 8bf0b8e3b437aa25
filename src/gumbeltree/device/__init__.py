"""What a CUDA device can do: Triton's kernels, captured graphs, a second stream."""
