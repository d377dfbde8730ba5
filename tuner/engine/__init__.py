"""Ray's private parts: each use of them, and nothing that does without them."""
