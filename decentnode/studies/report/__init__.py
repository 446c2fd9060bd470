"""What the runs of a study show together: a page, tables and figures for a paper."""
