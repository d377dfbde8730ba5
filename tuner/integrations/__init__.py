"""Runs other libraries' training code as trials, one module per library. `current_trial` has what two modules share."""
