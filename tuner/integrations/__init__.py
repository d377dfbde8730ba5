"""What scripts of other libraries import to become a space; each module needs its library."""
