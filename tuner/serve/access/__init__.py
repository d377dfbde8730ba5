"""Who may use the service, how much of it one client may use, and the service's own files."""
