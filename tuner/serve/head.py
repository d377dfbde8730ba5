"""Runs the head of the service's own Ray cluster. SIGTERM ends this process and all processes that it started.

The cluster's workers inherit the environment that `tuner/__init__.py` sets.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from ray.scripts.scripts import main

    sys.argv = ["ray", "start", "--head", "--block", "--disable-usage-stats", *sys.argv[1:]]
    main()
