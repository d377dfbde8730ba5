"""Restores a search that was stopped, from its folder."""
