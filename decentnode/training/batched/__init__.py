"""Local steps of many nodes of one process that are computed together."""
