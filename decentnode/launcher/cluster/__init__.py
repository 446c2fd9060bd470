"""Launchers among themselves: agreement, rendezvous, relayed reports, late join, graceful stop."""
