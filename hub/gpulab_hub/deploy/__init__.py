"""What `deploy/up` does once there is a Python: engine, proxy, users, secrets, network, processes.

The modules that the first checks need (options, record, machine, ports, preflight) import the standard
library only: they run before anything is installed, so that a taken port is told at once.
"""
