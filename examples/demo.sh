#!/usr/bin/env bash
# What `make demo` runs: the main job on the data that the repository ships. No server, no network.
set -euo pipefail
cd "$(dirname "$0")/.."
bold='' plain=''
[ ! -t 1 ] || bold=$'\033[1m' plain=$'\033[0m'
say() { printf '\n%s$ %s%s\n' "$bold" "$*" "$plain"; "$@"; }
say bin/penstock show -n 3 examples/data/flights/
say bin/penstock explain examples/flights.yaml
say bin/penstock run examples/flights.yaml
say bin/penstock show -n 5 out/flights/
go build -C examples/tabular-go -o ../../bin/tabular-go .
printf '\nTwo workers train a small network. One of them is killed on purpose, and the run goes on from its last checkpoint:\n'
say bin/tabular-go -data 'examples/data/housing/*.parquet' -storage out/runs -workers 2 -crash 30
printf '\nThe output is in out/flights/ and out/runs/. Next: bin/penstock --help, README.md.\n'
