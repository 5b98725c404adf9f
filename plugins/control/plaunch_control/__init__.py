"""`plaunchctl`: show and control the launches of this host and user.

A launch listens on a Unix socket; the code that answers is imported at the first request.
"""
