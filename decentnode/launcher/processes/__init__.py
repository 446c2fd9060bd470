"""How a launcher forks processes, and what the kernel lets it have."""
