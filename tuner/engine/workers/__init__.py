"""The processes of trials: their start, reports, folders and end."""
