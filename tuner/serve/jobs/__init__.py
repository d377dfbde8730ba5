"""Checks and queues the searches that the service is asked to run, and runs them as Ray jobs."""
