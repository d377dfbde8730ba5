"""A Ray of one search on this machine: its start, its signals and its messages."""
