#!/usr/bin/env bash
# Runs every fuzz target of the module for a while, one after another.
# usage: internal/fuzz.sh [TIME]   e.g. 60s (default), 15m
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-60s}
git grep -lE '^func Fuzz[A-Za-z0-9_]*\(f \*testing\.F\)' -- '*_test.go' | while read -r file; do
	dir=./$(dirname "$file")
	grep -oE '^func Fuzz[A-Za-z0-9_]*' "$file" | cut -c6- | while read -r target; do
		echo "== $dir $target"
		go test -tags assert -fuzzminimizetime 10x -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$dir"
	done
done
