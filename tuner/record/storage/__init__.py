"""Files on a disk and objects in a store: written whole, locked, copied."""
