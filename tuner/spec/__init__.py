"""Defines a search: its space (from a Space, a file or a script), its options, and the CPUs and GPUs of a trial."""
