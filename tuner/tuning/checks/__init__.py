"""Checks before the first trial: is the request possible, is the data usable, does the space train on a batch."""
