"""The parts of the pronunciation program, one subject a file."""
