#!/usr/bin/env bash
# What a GPU shows that nothing else can, in at most ten minutes: the tests marked cuda, every strategy that the number
# of devices allows, the training loop against a bare one, four trials on quarters of a device, and peak memory.
#
#     tests/gpu/run_on_gpu.sh [REPORT [tests] [strategies] [loops] [quarters]]
#
# The report, gpu-report.md by default, names the device and what failed; without names of parts all four run.
#
# It needs the checkout and the installed packages. PYTHON names another interpreter. It ends with 0 if all passed, 1 if
# a part failed, and 77 if there is no GPU.
set -euo pipefail
report="$(realpath -m "${1:-gpu-report.md}")"
cd "$(dirname "$0")/../.."
if [ -z "${PYTHON:-}" ]; then
    PYTHON=python3
    [ -x .venv/bin/python ] && PYTHON=.venv/bin/python
fi
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$PWD"
exec "$PYTHON" tests/gpu/on_gpu.py "$report" "${@:2}"
