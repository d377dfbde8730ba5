"""Names the keys of a report that are not training metrics: Ray's keys, and those for resource usage and speed."""

from __future__ import annotations


class Own(str):
    """A key that tuner itself puts into a report. A user's report that has the same text as a name does not set it."""

    __slots__ = ()


EPOCH = Own("training_iteration")
# Keys that Ray may add to a report. The journal and the views of Ray's own folders leave them out.
RAY_KEYS = frozenset(
    "trial_id training_iteration time_total_s time_this_iter_s time_since_restore iterations_since_restore timestamp "
    "date pid hostname node_ip done config checkpoint_dir_name should_checkpoint experiment_tag timesteps_total "
    "episodes_total timesteps_since_restore hyperband_info __report_restored__".split()
)
GROWTH = {"rss_growth_bytes": "resident memory", "gpu_memory_growth_bytes": "GPU memory"}
USAGE = frozenset({"cpu_percent", "rss_bytes", "gpu_percent", "gpu_memory_bytes", "gpu_memory_peak_bytes", *GROWTH})
SPEED = frozenset({"train_s", "validate_s", "images_per_s", "micro_batch_size"})
# True in a report made from what a function returned, its last. The trial has ended, so the rules do not judge it.
FINAL = Own("final_report")
# In a trial's first report: what it saw of its parameters (`tuner.spec.arrived`). It is no metric.
ARRIVED = Own("arrived")
# While the disk has no room for a checkpoint, the trial sends only this key, with the reason. That is no report.
WAITS = Own("waits_for_disk")
# In each report of a Task: its epoch if its metric is the trial's best so far, else 0.
IMPROVED = Own("improved")
# The metrics that a report lacks because they cannot be kept: pairs of a name and the reason.
LEFT_OUT = Own("left_out")
# In the first report of a Task after a checkpoint: why that may lack some of its state.
DOUBT = Own("doubt")
OWN_KEYS = frozenset({FINAL, ARRIVED, WAITS, IMPROVED, LEFT_OUT, DOUBT})
# Keys that Ray would obey, as the end of the trial or the number of its epoch, or that it overwrites.
_RAYS = "Ray sets it itself; report it under another name"
REFUSED = {name: _RAYS for name in (*RAY_KEYS, "timesteps_this_iter", "episodes_this_iter", "__duplicate__")}
REFUSED |= {str(name): "tuner sets it itself; report it under another name" for name in OWN_KEYS}
