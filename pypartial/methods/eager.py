"""Gradients averaged over all ranks, in rounds: synchronous SGD and eager-SGD."""
