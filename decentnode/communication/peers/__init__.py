"""The state of each peer: failure detection, rejoin, back-off."""
