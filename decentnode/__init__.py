"""A peer-to-peer node runtime for decentralized machine learning."""

__version__ = "0.1.0"
__all__ = ["__version__"]
