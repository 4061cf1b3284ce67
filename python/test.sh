#!/usr/bin/env bash
# Runs the Python tests: with $PYTHON, else in bin/venv. Where that cannot be made they are skipped, and fail where CI=true. Arguments are pytest's.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-}
if [ -z "$python" ]; then
	if ! python/venv.sh bin/venv; then
		[ "${CI:-}" != true ] || { echo "python: the tests cannot run, and CI=true" >&2; exit 1; }
		echo "python: the tests are skipped" >&2
		exit 0
	fi
	python=bin/venv/bin/python
fi
export PENSTOCK_TEST_BIN=${PENSTOCK_TEST_BIN:-$PWD/bin}
exec "$python" -m pytest -q -p no:cacheprovider -c python/pyproject.toml "$@" python/tests
