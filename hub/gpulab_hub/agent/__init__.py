"""The agent: one process per node that asks NVML once a second and replaces the snapshot file.

It is the only process of the lab that speaks to NVML, and it does so through a worker, a child process that
may hang or crash without hurting anyone (`worker`, `child`). When a read misses its deadline the worker is
killed and another is started; until one answers, the snapshot ages, and admission refuses by its age. The
agent itself never waits for NVML, so it always ends within a second of being told to.
"""
