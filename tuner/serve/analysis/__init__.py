"""Analyses of one experiment; a child process computes the expensive ones."""
