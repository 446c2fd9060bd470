"""Formats of other systems: reads configurations of decentralizepy, writes results for its scripts."""
