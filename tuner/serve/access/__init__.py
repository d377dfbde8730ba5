"""Decides who may use the service and how much of it one client may use; keeps the service's own files."""
