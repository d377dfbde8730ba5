"""Draws the figures of an experiment as dictionaries of Plotly's schema, without importing plotly."""
