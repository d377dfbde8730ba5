"""Names the keys of a report that are not training metrics: Ray's keys, and those for resource usage and speed."""

from __future__ import annotations

EPOCH = "training_iteration"
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
FINAL = "final_report"
# While the disk has no room for a checkpoint, the trial sends only this key, with the reason. That is no report.
WAITS = "waits_for_disk"
