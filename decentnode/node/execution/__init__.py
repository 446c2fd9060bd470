"""Who computes the local steps of the nodes of a process; `choice.py` decides (`training.execution`)."""
