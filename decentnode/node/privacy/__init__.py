"""What the private steps of all nodes spend, and what nodes learn of each other."""
