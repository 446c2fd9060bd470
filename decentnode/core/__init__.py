"""The ground that every package stands on: payloads, vectors, registries, randomness, files."""
