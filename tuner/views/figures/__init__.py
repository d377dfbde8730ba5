"""Figures of an experiment: for each, one function collects plain data and another draws it."""
