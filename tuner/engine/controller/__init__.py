"""Ray Tune's controller: its schedulers, trials and failures, changed where a search would lose time or trials."""
