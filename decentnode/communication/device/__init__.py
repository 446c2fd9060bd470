"""Between a GPU and the host."""
