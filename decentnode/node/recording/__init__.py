"""What a node keeps beside its records, written while it trains."""
