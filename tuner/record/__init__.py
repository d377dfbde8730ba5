"""What a search leaves on disk: journal, experiment.json, checkpoints; how each is written and read back."""
