"""CUDA support: Triton kernels, captured graphs and a second stream."""
