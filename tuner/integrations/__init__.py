"""Connects other libraries with a trial: one module for each library; both `TunerCallback`s use `current_trial`."""
