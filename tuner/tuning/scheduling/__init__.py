"""Decides after each report whether a trial continues: builds and asks the scheduler, and journals its decisions."""
