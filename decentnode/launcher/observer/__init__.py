"""Mean model and consensus distance, computed beside the rounds."""
