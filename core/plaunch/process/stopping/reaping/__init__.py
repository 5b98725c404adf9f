"""Finding and ending what workers have started, wherever it went."""
