"""Each trial runs in a process of its own, which a service on its node forks."""
