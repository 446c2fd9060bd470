"""What the launcher knows of the nodes: membership, watchdog, stragglers, events."""
