"""The peer-sampling service and its clients."""
