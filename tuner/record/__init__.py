"""Writes and reads what a search stores on disk: the journal, experiment.json and checkpoints."""
