"""Draws the curves of runs. The launcher draws in a process of its own, so matplotlib stays out of it."""
