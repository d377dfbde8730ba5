"""The answer of a search: writes it, and reads it again."""
