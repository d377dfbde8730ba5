"""The searches that the service runs: requested, checked, queued, and run as Ray jobs."""
