"""Wraps Ray's private parts in public functions; no other folder of tuner/ uses private parts of Ray.

`tests/engine/test_contract.py` names each private part with its expected signature. With a Ray that differs, it fails
and lists the differences. It passes with Ray 2.59 and 2.60.

The tables show the effects of changes to Ray, measured with and without the change (Ray 2.60, two cores). Unless a
row says otherwise, processes are counted in a search of 16 short ASHA trials, two at a time.

| overridden method | effect | with | without |
| --- | --- | --- | --- |
| `Controller._process_trial_failure` | retries by kind of failure: a killed worker costs | one epoch | the trial |
| `Controller._process_trial_result` | a restart at epoch 3 repeats no report | 5 reports | 7 reports |
| `Controller._maybe_reuse_cached_actor` | idle workers do not replace starting ones | 5 processes | 6 |
| `Controller.stop_trial` | three resumes each of 30 searches of hyperopt with hyperband, of which refused | 0 | 6 |
| `Population._exploit` | all values are equal, one trial runs at a time | the search ends | it trains forever |
| `SearchTrial.handle_error` | a trial fails while the disk is full | the search continues | it ends |
| `TrialFunction.cleanup` | a trial ends before its threads have left its folder | its worker waits | it does not |
| `TrialFunction.reset_config` | a worker's last function still runs | the next trial changes workers | it is lost |
| `LocalNode.start_raylet` | 20 processes spin on two cores, Ray starts | in 1 or 2 minutes | it fails |
| `LocalNode.start_api_server` | no services for clusters: Ray starts and ends in | 1.4 s and 0.1 s | 2.2 s and 1.4 s |

| replaced part | effect | with | without |
| --- | --- | --- | --- |
| `_actor_cache` | processes that train 12 trials of the searcher `refine`, two at a time | 2 | 3 |
| `_class_cache` | trials use the processes started in advance | 5 processes | 7 |
| `_actor_force_cleanup_timeout` | time to exit after Ctrl-C in a long epoch | 5 s | 10 s |
| `_actor_manager._actor_task_failed` | the memory monitor kills a worker | its trial fails | the search ends |
| `node.Node` (`LocalNode`) | ports of Ray's agents are chosen before they start | see `LocalNode.start_raylet` | |
| `ENABLE_RAY_CLUSTER` | interfaces on which Ray listens | loopback | all |
| `RAY_ENABLE_UV_RUN_RUNTIME_ENV` | time to build an environment per session under `uv run` | 0 s | 60 s |
| `set_sigterm_handler` | SIGTERM while Ray starts | one line and exit code 130 | no line and exit code 15 |
| `ExperimentAnalysis` (`NoAnalysis`) | pickles in the folder are not executed at the end | 0 executed | 1 |
| `session.report` (`Reporter`) | a trial reports a tensor of one element | a number | the trial fails |
| `Tee.write` (`Bounded`) | size of a trial's output file if it prints 20 MB | 10 MB | 20 MB |
| `PrestartWorkers` (a raylet call) | time that two workers import torch before the first epoch | 0 s | 5 s |
"""
