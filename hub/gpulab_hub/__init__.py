"""The lab around the spawner: ledger, agent, pages, sign-in, and the `gpulab` command."""
