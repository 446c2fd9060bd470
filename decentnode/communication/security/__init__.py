"""Keys, authentication and signatures."""
