"""Defines a search: its options, space and search domains, a trial's resources, and the schedulers' stopping rules."""
