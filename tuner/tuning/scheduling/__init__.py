"""Decides after each report whether a trial continues: asks the rule of `--scheduler`, and journals its decisions."""
