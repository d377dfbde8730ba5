"""Trains one trial with torch, in one process or several. Nothing here knows Ray."""
