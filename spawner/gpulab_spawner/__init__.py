"""Gives each JupyterHub server a container that holds exactly the GPUs of its lease."""
