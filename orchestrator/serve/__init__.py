"""Ways in: the command, and what it draws in a terminal."""
