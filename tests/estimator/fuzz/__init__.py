"""PyTorch's own allocator against our simulator: the same random commands, every observable compared."""
