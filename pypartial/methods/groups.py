"""Models averaged inside groups of ranks: Partial Reduce and Ripples."""
