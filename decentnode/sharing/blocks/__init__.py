"""Parts that several schemes use."""
