"""The names in a report that tell of the machine and not of the training; no two runs have them equal."""

from __future__ import annotations

GROWTH = {"rss_growth_bytes": "resident memory", "gpu_memory_growth_bytes": "GPU memory"}
USAGE = frozenset({"cpu_percent", "rss_bytes", "gpu_percent", "gpu_memory_bytes", "gpu_memory_peak_bytes", *GROWTH})
# Alone in what a trial tells while there is no room for its checkpoint: no report, and its value is why.
WAITS = "waits_for_disk"
