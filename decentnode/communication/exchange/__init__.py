"""One node's exchanges in flight."""
