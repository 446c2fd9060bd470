"""Parts that several networks use."""
