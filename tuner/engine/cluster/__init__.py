"""A Ray cluster that already runs: joining, following and sharing it."""
