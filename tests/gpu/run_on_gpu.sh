#!/usr/bin/env bash
# What a GPU shows that nothing else can, in at most ten minutes: the tests marked cuda. They try every strategy that the
# number of devices allows, the training loop against a bare one, and four trials on quarters of a device.
#
#     tests/gpu/run_on_gpu.sh [REPORT [OPTIONS OF PYTEST]]
#
# The report, gpu-report.md by default, names the device, what the tests measured, and those that failed.
#
# It needs the checkout and the packages of the group dev. PYTHON names another interpreter. It ends with 0 if all
# passed, 1 if a test failed, and 77 if there is no GPU.
set -euo pipefail
report="$(realpath -m "${1:-gpu-report.md}")"
cd "$(dirname "$0")/../.."
if [ -z "${PYTHON:-}" ]; then
    PYTHON=python3
    [ -x .venv/bin/python ] && PYTHON=.venv/bin/python
fi
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$PWD"
if ! head="$("$PYTHON" tests/gpu/found.py)"; then
    echo "run_on_gpu: no GPU was tried: $head" >&2
    exit 77
fi
code=0
tests="$(timeout 580 "$PYTHON" -m pytest -m cuda -n 0 -rA -p no:logging --timeout 120 "${@:2}" tests/gpu tests/search_spaces \
    tests/training 2>&1)" || code=1
printf '%s\n\n```\n%s\n```\n' "$head" "$tests" | tee "$report"
exit "$code"
