#!/usr/bin/env bash
# Installs the peers, makes the files, measures everything in turn and writes bench/results; see make bench-peers.
#   DIR=...    where packages (7 GB) and files (5 GB) go; default: penstock/peers in the user's cache folder
#   ONLY=...   workloads, by comma: scan, table, shuffle, tokens, many, slots, inflate, resume, handoff, handoff-small, start, and train: bench/train beside the DataLoader and Ray Train, which is not part of QUICK
#   QUICK=1    small files, two rounds, nothing is installed: peers that are not there are "not installed"
#   ROUNDS=N   of engines in turn (3; quick: 2)
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=${DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/penstock/peers}
mkdir -p "$dir"
flags=()
[ -z "${QUICK:-}" ] || flags+=(-quick)
only=${ONLY:-}
only=${only//,train/}
[ -z "$only" ] || flags+=(-only "${only#train,}")
[ -z "${ROUNDS:-}" ] || flags+=(-rounds "$ROUNDS")
if [ -z "${QUICK:-}" ] && ! cmp -s bench/peers/requirements.txt "$dir/venv/installed.txt"; then
	python3 -m venv "$dir/venv"
	nice -n 19 "$dir/venv/bin/pip" install --no-cache-dir --disable-pip-version-check -r bench/peers/requirements.txt
	cp bench/peers/requirements.txt "$dir/venv/installed.txt"
fi
[ ! -x "$dir/venv/bin/python" ] || flags+=(-venv "$dir/venv")
go build -o bin/peers ./bench/peers
[ "${ONLY:-}" = train ] || bin/peers run "${flags[@]}" "$dir"
case ",${ONLY:-train}," in *,train,*)
	[ -n "${QUICK:-}" ] || PENSTOCK_PYTHON=$dir/venv/bin/python ONLY=train bench/run.sh "$dir"
	;;
esac
