"""Other files that a configuration is made from: those that it extends, and those of decentralizepy."""
