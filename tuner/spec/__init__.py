"""Describes a search: spaces, search domains, options, resources, and the stopping rules of the schedulers."""
