"""Checks that need a machine with real NVIDIA GPUs; run by hand there, never by the test command."""
