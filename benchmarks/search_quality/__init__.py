"""Compares searches of this project and of other libraries on recorded learning curves."""
