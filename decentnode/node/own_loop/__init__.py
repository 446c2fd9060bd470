"""A loop of the user's own in place of a node's training: who has the turn, and what the loop is given."""
