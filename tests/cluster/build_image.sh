#!/usr/bin/env bash
# Builds docker/Dockerfile without a container engine or a registry, and runs a part of the tests inside the image.
#
#   sudo tests/cluster/build_image.sh        15 minutes and 25 GB of disk with DEVICE=cuda; Debian, root
#
# The base is made by debootstrap, the build runs under buildah in a chroot. DEVICE=cpu needs PyTorch's own index.
# Needs debootstrap, buildah and uv. Everything it makes lies in WORK, and is removed at the end.
set -euo pipefail
cd "$(dirname "$0")/../.."

DEVICE=${DEVICE:-cpu}
WORK=${WORK:-$(mktemp -d -t tuner-image-XXXXXX)}
buildah() { command buildah --root "$WORK/store" --runroot "$WORK/run" --storage-driver vfs "$@"; }
clean() {
    buildah rm --all >/dev/null 2>&1 || true
    rm -rf "$WORK"
}
trap clean EXIT

echo "== a base with Python, by debootstrap"
mkdir -p "$WORK/base"
debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$WORK/base" >"$WORK/debootstrap.log"
cp /etc/ssl/certs/ca-certificates.crt "$WORK/base/etc/ssl/certs/"  # this machine's, where a proxy has its own
printf 'FROM scratch\nCOPY base /\nENV SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt\n' >"$WORK/Dockerfile"
buildah build --isolation chroot --tag localhost/base --file "$WORK/Dockerfile" "$WORK"
rm -rf "$WORK/base"

echo "== the image ($DEVICE)"
buildah build --isolation chroot --pull-never --build-arg BASE=localhost/base --build-arg DEVICE="$DEVICE" \
    --tag localhost/tuner --file docker/Dockerfile .
buildah rmi --force localhost/base >/dev/null

echo "== tests inside it, as its own user"
uv pip install --quiet --target "$WORK/pytest" --python-version 3.11 pytest pytest-timeout httpx hypothesis
chmod -R a+rX "$WORK/pytest"
container=$(buildah from --pull-never localhost/tuner)
inside() {
    buildah run --isolation chroot --volume "$PWD/tests:/opt/tuner/tests:ro" --volume "$WORK/pytest:/opt/pytest:ro" \
        --volume "$PWD/pyproject.toml:/opt/tuner/pyproject.toml:ro" "$container" -- "$@"
}
inside id --user --name
inside env PYTHONPATH=/opt/pytest python -m pytest -p no:cacheprovider \
    tests/test_layers.py tests/spec/test_experiment.py tests/record/test_journal.py tests/training/test_loop.py \
    tests/tuning/checks/test_refusals.py
inside python -m tuner.run --space quadratic --num-samples 4 --wandb disabled --results /storage/results
inside ray --version
echo "image ok"
