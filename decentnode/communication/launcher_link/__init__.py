"""A node process and its launcher: heartbeats, snapshots, handshakes, reports."""
