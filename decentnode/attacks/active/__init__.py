"""Attacks that send wrong models, one per file."""
