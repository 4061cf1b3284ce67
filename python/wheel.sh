#!/usr/bin/env bash
# Makes python/dist/penstock-*.whl around the binary $1, which was built for GOARCH $2, with $PYTHON, bin/venv or python3.
set -euo pipefail
cd "$(dirname "$0")/.."
export PENSTOCK_BINARY=$PWD/$1 PENSTOCK_GOARCH=$2
python=${PYTHON:-$PWD/bin/venv/bin/python}
[ -n "${PYTHON:-}" ] || [ -x "$python" ] || python=python3
if "$python" -c 'import hatchling' 2>/dev/null; then
	(cd python && "$python" -m hatchling build -t wheel -d dist)
else # pip gets the build backend
	"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir python/dist ./python
	ls python/dist/*.whl
fi
