"""Formats of other systems: configurations and results of decentralizepy, measured networks and devices."""
