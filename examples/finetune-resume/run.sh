#!/usr/bin/env bash
# Trains on 4 workers, which are told to stop at step 30; goes on with 3; and shows that the samples are those of a run in which nothing happened.
# From the root of the repository: examples/finetune-resume/run.sh [python]
set -euo pipefail
python=${1:-python3}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/stopped" "$dir/whole"
train() { bin/penstock train examples/finetune-resume/train.yaml --set train.storage="$dir/runs" "$@" -- "$python" examples/finetune-resume/train.py >>"$dir/log" 2>&1; }
train --name stopped --workers 4 --set train.config.ledger="$dir/stopped" --set train.config.stop=30 && rc=0 || rc=$?
[ "$rc" = 75 ] || { echo "want exit code 75 (preempted), got $rc"; tail -20 "$dir/log"; exit 1; }
bin/penstock status stopped --storage "$dir/runs"
bin/penstock resume stopped --storage "$dir/runs" --workers 3 >>"$dir/log" 2>&1
train --name whole --workers 3 --set train.config.ledger="$dir/whole"
for run in stopped whole; do sort -n -k1,1 -k2,2 "$dir/$run"/*.txt >"$dir/$run.txt"; done
cmp "$dir/stopped.txt" "$dir/whole.txt"
echo "stopped on 4 workers, gone on with 3: $(wc -l <"$dir/whole.txt") samples, each in the same step as in a run without a stop"
