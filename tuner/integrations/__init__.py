"""Callbacks that run another framework's training loop as a trial; each module imports its own framework."""
