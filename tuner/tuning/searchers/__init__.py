"""Proposes settings: random, grid, refine, forest, and the searchers of other libraries."""
