"""Checks of what sections must agree on, by subject; `config/consistency.py` has the others."""
