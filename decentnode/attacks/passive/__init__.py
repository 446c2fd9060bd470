"""What is learned from payloads that arrive: one attack per file."""
