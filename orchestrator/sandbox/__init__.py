"""What tools may touch: where code runs, and which addresses are reached."""
