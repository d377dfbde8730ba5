"""Connects other libraries with a trial: one module per library, and `current_trial` for several of them."""
