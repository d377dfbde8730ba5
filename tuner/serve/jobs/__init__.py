"""Checks and queues the searches that the service is asked to run, and runs them here or on a cluster."""
