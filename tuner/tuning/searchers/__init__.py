"""The searchers, which propose settings: random, grid, refine, forest, and adapters to other libraries."""
