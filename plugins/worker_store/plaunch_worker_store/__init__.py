"""The store in which the workers of a round meet: torch's, in a process of the launcher's own.

The launcher listens at `MASTER_ADDR:MASTER_PORT` itself, without torch. A process of the workers'
interpreter, the store host, serves torch's TCPStore on that socket, once somebody needs it. So the
store outlives every worker of the round, and a job that has nothing to do with torch pays nothing.
"""
