"""Transforms that change the basis."""
