"""A whole job in virtual time: the code of plaunch, in a world of which every part is simulated.

The store, the workers' processes, the hosts, their clocks and their network are simulated; agents,
rendezvous and restart policies are the real ones. A run is decided by a script of faults and by a
seed, so it can be repeated. Needs greenlet.
"""
