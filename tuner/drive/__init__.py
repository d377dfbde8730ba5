"""Runs a search: from a checked request to the tested best model."""
