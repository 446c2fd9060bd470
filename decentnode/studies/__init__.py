"""Studies: many runs from one file, and what they show together."""
