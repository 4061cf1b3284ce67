#!/usr/bin/env bash
# Trains on 4 workers, which are told to stop at step 30; goes on with 3; and prints the ledger of its samples, which are those of a run in which nothing happened.
# From the root of the repository: examples/finetune-resume/run.sh [python [folder for runs and ledgers]]
set -euo pipefail
penstock=${PENSTOCK_BINARY:-bin/penstock} python=${1:-python3} dir=${2:-}
[ -n "$dir" ] || { dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT; }
mkdir "$dir/stopped" "$dir/whole"
train() { "$penstock" train examples/finetune-resume/train.yaml --set train.storage="$dir/runs" "$@" -- "$python" examples/finetune-resume/train.py >>"$dir/log" 2>&1; }
train --name stopped --workers 4 --set train.config.ledger="$dir/stopped" --set train.config.stop=30 && rc=0 || rc=$?
[ "$rc" = 75 ] || { echo "want exit code 75 (preempted), got $rc"; tail -20 "$dir/log"; exit 1; }
"$penstock" status stopped --storage "$dir/runs"
"$penstock" resume stopped --storage "$dir/runs" --workers 3 >>"$dir/log" 2>&1
train --name whole --workers 3 --set train.config.ledger="$dir/whole"
printf '\nstopped on 4 workers, gone on with 3:\n'
"$python" examples/finetune-resume/ledger.py "$dir/stopped" "$dir/whole"
