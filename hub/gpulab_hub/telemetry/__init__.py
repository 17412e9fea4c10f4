"""What becomes of readings: live values, history, events."""
