"""What a person sees of an experiment: figures, tables, report.html. Everything here only reads."""
