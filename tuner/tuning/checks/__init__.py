"""Checks before the first trial: may the space's code be run, and does it work on a batch."""
