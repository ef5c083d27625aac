"""Simulation: many ranks in one process, with the engine's object code and virtual time."""
