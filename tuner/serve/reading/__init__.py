"""The experiments of a results folder, read within bounds and kept up to date."""
