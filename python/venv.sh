#!/usr/bin/env bash
# Makes the virtual environment $1 with python/requirements-test.txt, once: 5 GB, most of it PyTorch's. Exits with 3, and says why, where that
# cannot be: no Python of 3.10 or later with venv, no network, no room.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1 wanted=python/requirements-test.txt
cmp -s "$wanted" "$venv/installed.txt" && exit 0
no() { echo "python: $*" >&2; exit 3; }
base=
for p in python3.12 python3.11 python3.13 python3.10 python3; do
	if "$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then base=$p; break; fi
done
[ -n "$base" ] || no "there is no Python of 3.10 or later with venv and pip: install one (python3, python3-venv)"
mkdir -p "$venv"
free=$(df -Pk "$venv" | awk 'NR == 2 {print $4}')
[ -x "$venv/bin/pip" ] || [ "$free" -gt $((7 << 20)) ] || no "$venv needs 7 GiB of disk, and there are $((free >> 20))"
echo "python: making $venv with $("$base" --version) (5 GB, once)" >&2
"$base" -m venv "$venv" || no "$base -m venv failed"
"$venv/bin/python" -m pip install --quiet --no-cache-dir --disable-pip-version-check -r "$wanted" || no "packages could not be installed from the package index: is there a network?"
cp "$wanted" "$venv/installed.txt"
