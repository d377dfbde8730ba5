"""What a search knows: its events, and the state that they make. Without Ray, files, or a clock of its own."""
