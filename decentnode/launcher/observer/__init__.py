"""The mean model and the consensus distance, made beside the rounds."""
