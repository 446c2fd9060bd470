"""What a launcher knows of a run, for all its parts: members, events, evaluations, messages, files."""
