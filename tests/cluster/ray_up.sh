#!/usr/bin/env bash
# A real `ray up` of docker/cluster-onprem.yaml over SSH to three hosts on this machine, searches on them, `ray down`.
#
#   sudo PYTHON=.venv/bin/python tests/cluster/ray_up.sh        3 minutes, 6 on a busy machine
#
# Linux, root; 77 where it cannot run.
#
# A host is a network, process and mount namespace with a private copy (overlay) of this machine's files: nothing
# outside is seen, changed or stopped, though `ray down` ends every Ray process of a host. PYTHON is of an environment
# with the project's dependencies and ray[default]; each host has it as its own. Needs openssh-server, rsync, iproute2.
set -euo pipefail
cd "$(dirname "$0")/../.."

PYTHON=$(realpath --no-symlinks "${PYTHON:-.venv/bin/python}")
WORK=$(mktemp -d -t tuner-hosts-XXXXXX)
NET=tnr$$
HOSTS=(laptop head one two) # the first runs `ray up`
pids=()

clean() {
    for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
    wait 2>/dev/null || true
    for i in "${!HOSTS[@]}"; do ip netns del "$NET-$i" 2>/dev/null || true; done
    ip link del "$NET" 2>/dev/null || true
    rm -rf "$WORK"
}
trap clean EXIT

skip() { echo "ray_up.sh is skipped: it needs $1" >&2; exit 77; }
[ "$(id -u)" = 0 ] || skip root
for program in sshd ssh-keygen rsync ip uv; do command -v $program >/dev/null || skip $program; done
ip netns add "$NET-0" 2>/dev/null && ip netns del "$NET-0" || skip "network namespaces"
mkdir -p "$WORK"/try/{upper,work,root}
unshare --mount mount -t overlay overlay -o "lowerdir=/,upperdir=$WORK/try/upper,workdir=$WORK/try/work" "$WORK/try/root" \
    2>/dev/null || skip "overlay file systems in $WORK"

step() { printf '\n== %3ss  %s\n' "$SECONDS" "$*"; }

# A host's files over this machine's, then sshd as its first process: when that is killed, all of the host ends.
host() {
    local name=$1 dir=$WORK/$1
    local root=$dir/root
    mkdir -p "$dir"/{upper,work,root}
    mount -t overlay overlay -o "lowerdir=/,upperdir=$dir/upper,workdir=$dir/work" "$root"
    mkdir -p "$root"/{storage,run/sshd,tmp/ray,root/.ssh,root/tuner}
    mount --bind "$WORK/storage" "$root/storage"
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/dev/shm"
    mount -t tmpfs tmpfs "$root/tmp/ray"
    rm -rf "$root/root/.ray"
    # The workers' Ray gives up a lost head after a minute unless told otherwise.
    echo 'export RAY_gcs_rpc_server_reconnect_timeout_s=5' >"$root/root/.bashrc"
    echo '. ~/.bashrc' >"$root/root/.profile"
    # A host has no way out: what setup.sh would fetch is in the environment, but for what builds the project.
    printf '#!/bin/sh\nPATH=%s exec uv --offline "$@" --no-deps --find-links %s\n' "$PATH" "$WORK/wheels" \
        >"$root/usr/local/bin/uv"
    chmod +x "$root/usr/local/bin/uv"
    ln -sfn "$(dirname "$(dirname "$PYTHON")")" "$root/root/tuner/.venv"
    cp "$WORK/key.pub" "$root/root/.ssh/authorized_keys"
    cp "$WORK/key" "$root/root/.ssh/id_ed25519"
    hostname "$name"
    exec chroot "$root" /usr/sbin/sshd -D -e -f /dev/null -h "$WORK/host_key" -o PermitRootLogin=yes -o StrictModes=no
}

# Runs a command on the laptop, in the project's folder there.
laptop() {
    ip netns exec "$NET-0" ssh -q -i "$WORK/key" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
        root@127.0.0.1 "cd $PWD && . ~/.bashrc && $1"
}

step "hosts: ${HOSTS[*]}"
mkdir -p "$WORK/storage"
python3 -m pip download --quiet --dest "$WORK/wheels" hatchling editables
ssh-keygen -q -t ed25519 -N '' -f "$WORK/key"
ssh-keygen -q -t ed25519 -N '' -f "$WORK/host_key"
ip link add "$NET" type bridge
ip link set "$NET" up
export -f host
export WORK PYTHON
for i in "${!HOSTS[@]}"; do
    ip netns add "$NET-$i"
    ip link add "$NET.$i" type veth peer name eth0 netns "$NET-$i"
    ip link set "$NET.$i" master "$NET" up
    ip -n "$NET-$i" link set lo up
    ip -n "$NET-$i" addr add "10.77.0.1$i/24" dev eth0
    ip -n "$NET-$i" link set eth0 up
    ip -n "$NET-$i" route add default dev eth0
    ip netns exec "$NET-$i" unshare --mount --pid --uts --fork --kill-child bash -c "host ${HOSTS[$i]}" \
        >"$WORK/${HOSTS[$i]}.log" 2>&1 &
    pids+=($!)
done
for _ in $(seq 50); do laptop true 2>/dev/null && break || sleep 0.2; done
laptop "echo 'export PATH=$(dirname "$PYTHON"):\$PATH RAY_AUTH_MODE=token' >> ~/.bashrc"

step "the three edits"
laptop "sed -e 's/192.0.2.10/10.77.0.11/; s/192.0.2.11/10.77.0.12/; s/192.0.2.12/10.77.0.13/; s/ssh_user: tuner/ssh_user: root/' \
    docker/cluster-onprem.yaml > ~/cluster.yaml && diff docker/cluster-onprem.yaml ~/cluster.yaml || true"
laptop "ray get-auth-token --generate >/dev/null && chmod 600 ~/.ray/auth_token && ls -l ~/.ray/auth_token"

step "ray up"
laptop "ray up -y ~/cluster.yaml"

step "ray exec: three nodes join"
laptop "ray exec ~/cluster.yaml 'until [ \$(ray list nodes | grep -c ALIVE) = 3 ]; do sleep 1; done; ray status' | grep -A8 -- '---'"

step "ray exec: a search over the three nodes; one of them has not installed the project"
on() { laptop "ssh -q -o StrictHostKeyChecking=no root@10.77.0.1$1 '$2'"; }
on 3 "cd tuner && rm -rf tuner search_spaces"
search="python -m tuner.run --address auto --results /storage/results --wandb disabled"
laptop "ray exec ~/cluster.yaml '$search --space cifar --num-samples 6 --max-epochs 1 --scheduler fifo --name mine'"
nodes=$(grep trial_started "$WORK/storage/results/mine/journal.jsonl" | grep -o '"node": "[^"]*"' | sort | uniq -c)
echo "$nodes"
[ "$(echo "$nodes" | wc -l)" = 3 ]
test -s "$WORK/storage/results/mine/best/model.pt"
test -s "$WORK/storage/results/mine/best/metrics.json"

step "ray submit"
laptop "ray submit ~/cluster.yaml tuner/run.py -- ${search#*run } --space quadratic --num-samples 4 --name submitted"

step "ray dashboard, and ray job submit through it"
laptop "(ray dashboard ~/cluster.yaml >~/dashboard.log 2>&1 & echo \$! >~/dashboard.pid)
    until curl -s localhost:8265 >/dev/null; do sleep 0.3; done
    curl -s -o /dev/null -w 'without the token: %{http_code}\n' localhost:8265/api/jobs/
    ray job submit --address http://localhost:8265 --working-dir . -- $search --space quadratic --num-samples 4 --name job
    kill \$(cat ~/dashboard.pid)"
test -s "$WORK/storage/results/job/best/config.json"

step "the service on the head: a search by its queue"
cat >"$WORK/storage/queued.py" <<'END'
import subprocess, sys, time
from pathlib import Path
from tuner.serve.client import Client

serve = ["--results", "/storage/results", "--address", "http://127.0.0.1:8265", "--wandb", "disabled", "--port", "0"]
service = subprocess.Popen([sys.executable, "-m", "tuner.serve", *serve], stdout=subprocess.PIPE, text=True)
where, _, token = [service.stdout.readline() for _ in range(3)]
client = Client(where.split(" at ")[1].split()[0], Path(token.split()[-1]).read_text())
client.start("quadratic", num_samples=4, name="queued", priority=1)
print("queued:", client.wait("queued", 120)["state"])
service.terminate()
END
laptop "ray exec ~/cluster.yaml 'python /storage/queued.py'" | grep 'queued: finished'

step "refused: results that nodes do not share, a machine that is no node"
refused() { if said=$(laptop "$1" 2>&1); then echo "was not refused: $said"; exit 1; else echo "$said" | grep 'tuner: error'; fi; }
refused "ray exec ~/cluster.yaml '${search/\/storage/\/tmp} --space quadratic'"
refused "${search/auto/10.77.0.11:6379} --space quadratic"

step "ray down"
laptop "ray down -y ~/cluster.yaml 2>&1 | tail -3"
# It stops the head alone; the workers' raylets end when they have given up the lost head.
for i in 1 2 3; do
    on $i 'for _ in $(seq 60); do pgrep -f [r]aylet >/dev/null || break; sleep 1; done; ! pgrep -f [r]aylet'
    step "host $i: nothing left running"
done
