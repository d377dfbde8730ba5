"""The head of the service's own Ray cluster, as a process that a signal ends with all that it started.

The driver's module comes first: it sets what Ray reads, and workers inherit it from here.
"""

from __future__ import annotations

import sys

from tuner import driver  # noqa: F401

if __name__ == "__main__":
    from ray.scripts.scripts import main

    sys.argv = ["ray", "start", "--head", "--block", "--disable-usage-stats", *sys.argv[1:]]
    main()
