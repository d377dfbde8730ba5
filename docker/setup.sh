#!/usr/bin/env bash
# `ray up` runs this on every node, after the code was synced to ~/tuner: installs it.
#
#   setup.sh STORAGE        the folder that all nodes share; data sets are cached in STORAGE/cache
set -euo pipefail
storage=${1:?the folder that all nodes share}
probe=$storage/.tuner-$(hostname)-$$
if ! (mkdir "$probe" && rmdir "$probe"); then
    echo "setup.sh: cannot write to $storage; mount the shared folder there, writable for $(id -un)" >&2
    exit 1
fi

chmod 600 ~/.ray/auth_token
export PATH=$HOME/.uv/bin:$PATH
command -v uv >/dev/null || { python3 -m venv ~/.uv && ~/.uv/bin/pip install --quiet uv==0.13.8; }
cd ~/tuner
# The same Python on every node and where jobs come from: Ray refuses another one, down to the patch.
[ -d .venv ] || uv venv --quiet --python "${TUNER_PYTHON:-3.11}"
uv pip install --quiet --compile-bytecode --constraints constraints.txt --editable '.[bohb,optuna,cluster]' "${@:2}"

# Ray's launcher sources ~/.bashrc before each command; what `ray job submit` starts inherits it from Ray.
cat >~/tuner/env.sh <<END
export PATH=$HOME/tuner/.venv/bin:\$PATH TUNER_CACHE=$storage/cache
export RAY_AUTH_MODE=token RAY_ENABLE_UV_RUN_RUNTIME_ENV=0
END
grep -qs tuner/env.sh ~/.bashrc || echo '. ~/tuner/env.sh' >>~/.bashrc
