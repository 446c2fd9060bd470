"""The files of a run: their content, how it is written, and how it is read without torch (docs/results)."""
