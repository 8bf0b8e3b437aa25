"""CUDA support: Triton kernels, captured graphs, a second stream."""
