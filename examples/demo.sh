#!/usr/bin/env bash
# What `make demo` runs: the main job on the data that the repository ships. No server, no network. What it writes is in the folder $1 (out).
set -euo pipefail
cd "$(dirname "$0")/.."
penstock=${PENSTOCK_BINARY:-bin/penstock} out=${1:-out}
bold='' plain=''
[ ! -t 1 ] || bold=$'\033[1m' plain=$'\033[0m'
say() { printf '\n%s$ %s%s\n' "$bold" "$*" "$plain"; "$@"; }
say "$penstock" show -n 3 examples/data/flights/
say "$penstock" explain examples/flights.yaml
say "$penstock" run examples/flights.yaml ${1:+--set "sink.parquet.path=$1/flights/"}
say "$penstock" show -n 5 "$out/flights/"
go build -C examples/tabular-go -o ../../bin/tabular-go .
printf '\nTwo workers train a small network. One of them is killed on purpose, and the run goes on from its last checkpoint:\n'
say bin/tabular-go -data 'examples/data/housing/*.parquet' -storage "$out/runs" -workers 2 -crash 30
printf '\nThe output is in %s/flights/ and %s/runs/. Next: bin/penstock --help, README.md.\n' "$out" "$out"
