"""What a launcher watches: hanging nodes, stragglers, incidents, memory; and who asks for it."""
