"""The stopping rules, one a file: values of trials go in, decisions with their reasons come out.

The rules are pure: no Ray, no files, no clock. A search, its replay, what-if and the simulation use the same objects.
"""
