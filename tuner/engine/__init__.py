"""Everything that touches Ray's private parts, behind public functions; no other folder of tuner/ uses them.

`tests/engine/test_contract.py` names each private part with its expected signature, and fails with the list of what
another Ray has otherwise. Its table passes with Ray 2.59 and 2.60. Ray 2.58 lacks one function,
`maybe_enable_token_auth_if_token_available`, without which a search cannot join a cluster that asks for a token.

What each change to Ray buys, and the figure without it (Ray 2.60, two cores; processes are those that a search of 16
short ASHA trials starts, two at a time):

| overridden method | buys | with | without |
| --- | --- | --- | --- |
| `Controller._process_trial_failure` | retries by kind of failure | a killed worker costs an epoch | the trial |
| `Controller._process_trial_result` | no report twice after a restart at epoch 3 | 5 reports | 7 reports |
| `Controller._maybe_reuse_cached_actor` | starting workers are not ended for free ones | 5 processes | 6 |
| `Analysis._fetch_trial_dataframes` | no report is read again at the end | 0 ms a trial | 2 ms |
| `Analysis._load_trials` | no pickle in the folder is executed | 0 | 1 |
| `Bracket.cutoff` | ASHA's cutoff with 10,000 recorded trials | 0.8 us | 2,016 us |
| `SearchTrial.handle_error` | a full disk at a failure | the search goes on | it ends |
| `SearchTrial.should_recover` | `Retries` decides whether a trial goes on | as the first row | |

| replaced part | buys | with | without |
| --- | --- | --- | --- |
| `_actor_cache` (`IdleWorkers`) | processes that train 12 `refine` trials, two at a time | 2 | 3 |
| `_class_cache` (`ActorClasses`) | trials use the processes started ahead | 5 processes | 7 |
| `_actor_force_cleanup_timeout` | end after Ctrl-C in a long epoch | 5 s | 10 s |
| `_actor_manager._actor_task_failed` | a worker that the memory monitor kills | its trial fails | the search ends |
| `Node.start_monitor` and two more | Ray's start and end without cluster services | 1.4 and 0.1 s | 2.2 and 1.4 s |
| `ENABLE_RAY_CLUSTER` | where Ray listens | loopback | all interfaces |
| `RAY_ENABLE_UV_RUN_RUNTIME_ENV` | an environment per session under `uv run` | 0 s | 60 s |
| `PrestartWorkers` (a raylet call) | imports of torch before two workers' first epoch | 0 s | 5 s |

Done by Ray's public means instead of overriding: silent trials and draining nodes (`Watch`, a callback), the queue of
unfinished trials (`decisions.py`, a scheduler), no snapshots on the way (`TUNE_GLOBAL_CHECKPOINT_S`), a failed reset
(`trainable.py`, a trainable that raises). `is_finished` is Ray's again: it costs 0.8 us an event with 10,000 trials.
"""
