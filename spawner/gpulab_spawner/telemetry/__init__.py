"""Readings of GPUs: pure values."""
