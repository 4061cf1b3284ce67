#!/usr/bin/env bash
# Makes penstock-*.whl in the folder $3 (default: python/dist) around the binary $1, which was built for GOARCH $2, with $PYTHON, bin/venv or python3.
# Paths are those from the root of the repository.
set -euo pipefail
cd "$(dirname "$0")/.."
PENSTOCK_BINARY=$(realpath "$1") PENSTOCK_GOARCH=$2
export PENSTOCK_BINARY PENSTOCK_GOARCH
dist=$(realpath -m "${3:-python/dist}")
python=${PYTHON:-$PWD/bin/venv/bin/python}
[ -n "${PYTHON:-}" ] || [ -x "$python" ] || python=python3
if "$python" -c 'import hatchling' 2>/dev/null; then
	(cd python && "$python" -m hatchling build -t wheel -d "$dist")
else # pip gets the build backend
	"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$dist" ./python
	ls "$dist"/*.whl
fi
