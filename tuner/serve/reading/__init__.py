"""Reads the experiments of a results folder, within limits on time and memory, and keeps them up to date."""
