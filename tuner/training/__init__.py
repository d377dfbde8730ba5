"""Trains one trial with torch, in one process or several; no module here imports Ray."""
