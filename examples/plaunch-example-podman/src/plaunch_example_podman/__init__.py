"""Runs each agent of a job in a container of podman."""
