"""Writes and reads the journal and experiment.json, checks checkpoints, and reads folders of plain Ray Tune."""
