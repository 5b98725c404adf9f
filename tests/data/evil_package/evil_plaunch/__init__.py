"""Plugins that do what a plugin must not; each is loaded by the test that wants it."""
