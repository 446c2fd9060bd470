"""Launchers among themselves: rendezvous, messages, late join."""
