"""The launcher of scripts with a loop of their own: their places, their settings, and their end."""
