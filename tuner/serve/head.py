"""The head of the service's own Ray cluster, as a process that a signal ends with all that it started.

Its workers inherit the environment that `tuner/__init__.py` sets.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    from ray.scripts.scripts import main

    sys.argv = ["ray", "start", "--head", "--block", "--disable-usage-stats", *sys.argv[1:]]
    main()
