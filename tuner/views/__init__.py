"""Figures, tables and report.html of an experiment. The modules here read the record and never change it."""
