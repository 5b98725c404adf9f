"""Lets `plaunchctl` see the launches of this host and user, and take hold of them.

A launch listens at a Unix socket, and imports what answers there at the first request.
"""
