"""Runs a search: checks the request, starts Ray, trains the trials, and tests the best model."""
