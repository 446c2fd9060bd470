"""What a person sees of a run: console, live view, summary."""
