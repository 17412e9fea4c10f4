"""What `gpulab doctor` looks at, and what it thinks of it.

`gather` and `probes` ask the machine, Docker and the database, and put the answers into frozen `facts`. Rules
are functions from facts to a `Finding`; they do no I/O. `checks` lists them in the order of the report.
"""
