"""Placeholder until its author fills it."""
