"""Wraps Ray's private parts in public functions; no other folder of tuner/ uses private parts of Ray.

`tests/engine/test_contract.py` names each private part with its expected signature. If Ray differs, the test fails
and lists the differences. It passes with Ray 2.59 and 2.60.

Two of these parts keep the order in which things reach the disk: `persist_current_checkpoint`, which copies a
checkpoint, and `_delete_fs_path`, which deletes an old one. Without them, a power failure may leave a trial of the
journal without any checkpoint.

The table shows what overriding a method buys, measured (Ray 2.60, two cores). Processes are counted in a search of 16
short ASHA trials, two at a time. Where code replaces other parts of Ray, its docstring or comment states the effect.

| overridden method | effect, or the situation in which it has one | with | without |
| --- | --- | --- | --- |
| `Controller._process_trial_failure` | retries by kind of failure: a killed worker costs | one epoch | the trial |
| `Controller._process_trial_result` | a restart at epoch 3 repeats epochs: the scheduler gets | 5 reports | 7 reports |
| `Controller._maybe_reuse_cached_actor` | idle workers do not replace starting ones | 5 processes | 6 |
| `Controller.stop_trial` | refused resumes, of 90 (3 for each of 30 searches with hyperopt and hyperband) | 0 | 6 |
| `Population._exploit` | all values are equal, one trial runs at a time | the search ends | it trains forever |
| `SearchTrial.handle_error` | a trial fails while the disk is full | the search continues | it ends |
| `SearchTrial.on_checkpoint` | --keep-checkpoints 1: of a function's checkpoints | the best one stays | it may go |
| `TrialFunction.cleanup` | a trial ends before its function has left its folder | its worker waits | it does not |
| `TrialFunction.reset_config` | a worker still runs its previous trial: the next trial | changes workers | is lost |
| `LocalNode.start_raylet` | beside 20 processes that spin on two cores, Ray starts | in 1 or 2 minutes | not at all |
| `LocalNode.start_api_server` | no services for clusters: Ray starts and ends in | 1.4 s and 0.1 s | 2.2 s and 1.4 s |
"""
