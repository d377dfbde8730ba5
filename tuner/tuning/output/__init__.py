"""What a running search shows: texts, the live table, a notebook's cell, W&B."""
