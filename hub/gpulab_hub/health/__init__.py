"""The health of GPUs: what events and readings mean, and what the lab does about it.

`xid` is NVIDIA's catalogue as data, `rules` judges (both pure), `watch` writes down and cordons, `probe` asks
containers whether they still reach their GPUs. docs/health.md tells it to admins.
"""
