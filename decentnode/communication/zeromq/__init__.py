"""Payloads over ZeroMQ sockets."""
