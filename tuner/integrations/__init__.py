"""Connects other libraries with a trial: one module each, and `current_trial` for both `TunerCallback`s."""
