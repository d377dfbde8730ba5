"""Joints to other libraries: the user imports one module for each."""
