"""Payloads through shared memory."""
