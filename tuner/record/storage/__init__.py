"""Reads, writes and locks files, and keeps results in an object store."""
