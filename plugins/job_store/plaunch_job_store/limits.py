"""The limits of the store: of messages, of one client, of one turn of the server, and of all.

docs/store.md lists them. With them, the server's process takes at most `MAX_MEMORY` bytes, and
`CLIENT_MEMORY` for each connection.
"""

from __future__ import annotations

# Of a message.
MAX_KEY = 1024  # bytes
MAX_VALUE = 4 << 20  # bytes
MAX_OPERATIONS = 4096  # in one request
MAX_FRAME = 2 * MAX_VALUE + 4096  # bytes: a COMPARE_SET has two values
MAX_GREETING = 256  # bytes of a frame before the client is authenticated
MAX_REPLY = MAX_VALUE  # bytes of the values in one reply

# Of one client.
MAX_WAITS = 256
MAX_HELD = 1024  # keys that are deleted when its session ends
MAX_KEPT_RESULTS = 64  # of requests that have written something; a client has fewer threads
MAX_KEPT_BYTES = 8 << 20  # of these results
MAX_BACKLOG = 16 << 20  # bytes that it has not read yet
GREETING_TIMEOUT = 5.0  # seconds from the connection to the end of its greeting
RESUME_TIMEOUT = 0.25  # seconds in which the session of a closed connection can be resumed
SILENCE_TIMEOUT = 5.0  # seconds after which the kernel gives up a peer that does not answer

# Of all clients.
MAX_BYTES = 256 << 20  # of keys, values, kept results and waits
ENTRY_OVERHEAD = 512  # bytes that an entry takes beside its key and its value, at most
MAX_BUFFERED = 128 << 20  # bytes of requests and replies on their way
MAX_STRANGERS = 512  # connections that have not finished their greeting
TURN_TIME = 0.02  # seconds after which a turn of the server begins nothing new

# What that comes to, with what the interpreter and the fragmentation of its memory take.
MAX_MEMORY = 640 << 20  # bytes
CLIENT_MEMORY = 64 << 10  # bytes
