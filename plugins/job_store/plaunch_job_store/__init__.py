"""The store of a job: a server in pure Python, and its client. See docs/store.md.

This file imports nothing, because the process of the server imports it.
"""
