"""Names the columns of a report that describe the machine and not the training; they differ between runs."""

from __future__ import annotations

GROWTH = {"rss_growth_bytes": "resident memory", "gpu_memory_growth_bytes": "GPU memory"}
USAGE = frozenset({"cpu_percent", "rss_bytes", "gpu_percent", "gpu_memory_bytes", "gpu_memory_peak_bytes", *GROWTH})
# While the disk has no room for a checkpoint, the trial sends only this key, with the reason. It is not a report.
WAITS = "waits_for_disk"
