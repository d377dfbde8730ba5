"""Runs another library's training loop or objective as a trial; each module imports its own library."""
