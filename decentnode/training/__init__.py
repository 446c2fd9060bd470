"""Local steps: batches, objective, evaluation, and the dependence between the steps of nodes."""
