"""Random programs on simulated ranks, what must hold of each, and the search for one that fails."""
