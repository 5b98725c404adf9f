"""Finds and ends the processes that workers have started."""
