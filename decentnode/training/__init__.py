"""Local steps: batches, objective, evaluation, and how the steps of nodes belong together."""
