"""The loop of three calls, and the process around it."""
