"""The offline half of a timeline: what reads the files that `Context.trace` writes."""
