#!/usr/bin/env bash
# Measures the streaming core, reading from buckets, the order of shards, how batches are assembled, training, clusters and what their nodes exchange, and writes bench/results/core.md, remote.md, order.md, batches.md, train.md, cluster.md and exchange.md.
# usage: bench/run.sh [WORKDIR]; only the core: ONLY=core bench/run.sh [WORKDIR]; only the order: ONLY=order bench/run.sh [WORKDIR]; only batches: ONLY=batches bench/run.sh; only buckets: ONLY=remote bench/run.sh; only training: ONLY=train bench/run.sh; only clusters: ONLY=cluster bench/run.sh; only plans on several nodes: ONLY=nodes bench/run.sh; only what nodes exchange: ONLY=exchange bench/run.sh (root, with ip and tc); only the regression check: ONLY=regress
# Training in Python is measured where PENSTOCK_PYTHON (or python3) has numpy, torch and pyarrow.
# Needs bin/penstock (make build); uses valgrind for instruction counts where it is installed.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=${1:-$(mktemp -d)}
mkdir -p "$dir"
out=bench/results/core.md
core=bin/bench-core
order() { # every figure of order.md; a part of them: bin/bench-order report -only resume,memory DIR
	go build -o bin/bench-order ./bench/order
	bin/bench-order report "$dir/order" | tee "$dir/order.md"
	mv "$dir/order.md" bench/results/order.md
}
remote() { # every figure of remote.md; a part of them: bin/bench-remote -only first,hedge DIR
	go build -o bin/bench-remote ./bench/remote
	bin/bench-remote "$dir" | tee "$dir/remote.md"
	mv "$dir/remote.md" bench/results/remote.md
}
batches() { # every figure of batches.md; a part of them: bin/bench-batches -only shuffled DIR
	go build -o bin/bench-batches ./bench/batches
	bin/bench-batches "$dir/batches" | tee "$dir/batches.md"
	mv "$dir/batches.md" bench/results/batches.md
}
train() { # every figure of train.md; a part of them: bin/bench-train -only overhead,paced DIR
	go build -o bin/bench-train ./bench/train
	bin/bench-train "$dir/train" | tee "$dir/train.md"
	mv "$dir/train.md" bench/results/train.md
}
cluster() { # every figure of cluster.md; a part of them: bin/bench-cluster -only trip,lost DIR
	go build -o bin/bench-cluster ./bench/cluster
	bin/bench-cluster -penstock bin/penstock "$dir/cluster" | tee "$dir/cluster.md"
	mv "$dir/cluster.md" bench/results/cluster.md
}
exchange() { # every figure of exchange.md; a part of them: bin/bench-exchange -only trip DIR
	go build -o bin/bench-exchange ./bench/exchange
	bin/bench-exchange "$dir/exchange" | tee "$dir/exchange.md"
	mv "$dir/exchange.md" bench/results/exchange.md
}
nodes() { # every figure of nodes.md; a part of them: PENSTOCK_FIGURE=tasks, splits or scan
	PENSTOCK_FIGURES=$PWD/bench/results/nodes.md go test -count=1 -run TestFigures -timeout 20m ./exec/remote
	cat bench/results/nodes.md
}
regress() { # against bench/results/regress.json, which keeps the better of last and now where nothing is slower; to write what is measured: bin/bench-regress -update bench/results/regress.json DIR
	go build -o bin/bench-regress ./bench/regress
	bin/bench-regress bench/results/regress.json "$dir"
}
if [ "${ONLY:-}" = regress ]; then
	regress
	exit
fi
if [ "${ONLY:-}" = remote ]; then
	remote
	exit
fi
if [ "${ONLY:-}" = batches ]; then
	batches
	exit
fi
if [ "${ONLY:-}" = train ]; then
	train
	exit
fi
if [ "${ONLY:-}" = nodes ]; then
	nodes
	exit
fi
if [ "${ONLY:-}" = cluster ]; then
	cluster
	exit
fi
if [ "${ONLY:-}" = exchange ]; then
	exchange
	exit
fi
if [ "${ONLY:-}" = order ]; then
	order
	exit
fi
go build -o "$core" ./bench/core
num() { sed -n "s/.*\"$1\":\([0-9.e+-]*\).*/\1/p"; }
calc() { awk "BEGIN {printf \"$1\", $2}"; }
mib() { calc '%.0f MiB' "$1/1048576"; }

[ -d "$dir/taxi" ] || "$core" gen "$dir/taxi" 4000000
[ -d "$dir/m" ] || { mkdir -p "$dir/m" && "$core" many "$dir/m" make; }
[ -d "$dir/wide" ] || "$core" wide "$dir/wide"
a=$dir/taxi/part0 b=$dir/taxi/part1

{
	echo "# The streaming core, measured"
	echo
	echo "$(date -u +%F), $(nproc) cores, $(awk -F': ' '/model name/ {print $2; exit}' /proc/cpuinfo), $(go version | cut -d' ' -f3). Made by \`make bench\`; ratios are of one run, commands in turn."
	echo
	echo "| what | figure | goal |"
	echo "|---|---|---|"

	if command -v valgrind >/dev/null; then
		ir() { GODEBUG=asyncpreemptoff=1 GOGC=off GOMAXPROCS=1 valgrind --tool=callgrind --callgrind-out-file=/dev/null "$@" 2>&1 | sed -n 's/.*I *refs: *//p' | tr -d ,; }
		bare=$(ir "$core" bare "$a" "$b") engine=$(ir "$core" engine "$a" "$b") again=$(ir "$core" bare "$a" "$b")
		echo "| engine against a bare loop over the same kernels, instructions | $(calc '%+.1f %%' "100*($engine/$bare-1)") (bare against bare: $(calc '%+.1f %%' "100*($again/$bare-1)")) | <= +5 % |"
	fi

	for part in part0 part1; do # the same files under 25 names: seconds of work without an end between
		[ -d "$dir/many-$part" ] || {
			mkdir -p "$dir/many-$part"
			for i in $(seq 25); do for f in "$dir/taxi/$part"/*.parquet; do ln "$f" "$dir/many-$part/$i-${f##*/}"; done; done
		}
	done
	ma=$dir/many-part0 mb=$dir/many-part1
	"$core" compare 7 "$core scan 1 1 $ma $mb" "$core scan 2 1 $ma $mb" "$core scan 1 1 $ma & $core scan 1 1 $mb" "$core scan 2 1 $ma $mb" >"$dir/cmp"
	read -r t1 t2 tp t2again < <(awk '{printf "%.2f ", $1} END {print ""}' "$dir/cmp")
	read -r c1 c2 cp c2again < <(awk '{printf "%.2f ", $2} END {print ""}' "$dir/cmp")
	echo "| two tasks against two processes on half the files each, speed-up | $(calc '%.2fx' "$tp/$t2"), by CPU time $(calc '%.2fx' "$cp/$c2") (one task $t1 s, two $t2 s, two processes $tp s; CPU $c1 s, $c2 s, $cp s; A/A of two tasks $(calc '%.2f' "$t2again/$t2"), CPU $(calc '%.2f' "$c2again/$c2")) | >= 0.9x |"

	slow() { echo "$(calc '%.1f s' "$(num fast_seconds <<<"$r")") without the pauses, $(calc '%.0f s' "$(num seconds <<<"$r")") with them, reported and allocated bytes $(calc '%.2f %%' "$(num skew_percent <<<"$r")") apart, left over $(num held_after <<<"$r") bytes, $(num goroutines_left <<<"$r") goroutines"; }
	r=$("$core" inflate 16777216)
	echo "| rows of 1 KiB..16 MiB, 20x map, consumer 10 times too slow, budget 512 MiB: peak memory | $(mib "$(num peak_rss_bytes <<<"$r")"), budget at most $(mib "$(num peak_budget_bytes <<<"$r")"), $(slow) | <= 790 MiB, <= 5 %, 0, 0 |"
	r=$("$core" inflate 67108864)
	echo "| the same with rows of 64 MiB | $(mib "$(num peak_rss_bytes <<<"$r")"), budget at most $(mib "$(num peak_budget_bytes <<<"$r")"), $(slow) | <= 790 MiB + largest output ($(mib "$(num largest_output <<<"$r")")), <= 5 %, 0, 0 |"

	"$core" compare 15 "bin/penstock version" >"$dir/cmp"
	echo "| \`penstock version\`, CPU | $(calc '%.0f ms' "1000*$(cut -d' ' -f2 "$dir/cmp")") | <= 50 ms |"

	r=$(for _ in 1 2 3; do "$core" many "$dir/m"; done | sort -t: -k2 | sed -n 2p)
	echo "| first batch of 1,000 local files of 10 row groups | $(calc '%.2f s' "$(num first_batch_seconds <<<"$r")") (all: $(calc '%.1f s' "$(num seconds <<<"$r")")) | <= 1 s |"

	r=$("$core" partitioned "$dir/partitioned" "$dir/taxi")
	echo "| 4 M rows written into 50 partitions, budget $(num limit_mib <<<"$r") MiB: peak memory | $(num peak_rss_mib <<<"$r") MiB | <= $(num allowed_mib <<<"$r") MiB |"
	[ -d "$dir/tiny" ] || "$core" tiny "$dir/tiny" make
	r=$("$core" tiny "$dir/tiny")
	echo "| first shuffled batch of 20,000 row groups of one row | $(calc '%.2f s' "$(num first_batch_seconds <<<"$r")") | <= 1.5 s |"
	for kind in plain dictionary; do
		[ -d "$dir/large-$kind" ] || "$core" large "$dir/large-$kind" make 1024 $kind
		r=$("$core" large "$dir/large-$kind")
		echo "| shuffled rows of 1 MB, pages of 128 MB ($kind), budget $(num limit_mib <<<"$r") MiB: peak memory | $(num peak_rss_mib <<<"$r") MiB | <= $(num allowed_mib <<<"$r") MiB + one page |"
	done

	size=$(du -cb "$dir"/wide/*.parquet | tail -1 | cut -f1)
	r=$("$core" narrow "$dir/wide")
	asked=$(num asked_bytes <<<"$r")
	echo "| 1 % filter on a sorted column, 3 of 50 columns: share of the file that the process read, as the system counts it: footer and indexes included | $(calc '%.2f %%' "100*$asked/$size") ($asked of $size bytes, $(num rows <<<"$r") rows) | <= 1 % + footers and indexes |"
} | tee "$out"
if [ "${ONLY:-}" = core ]; then
	exit
fi

order
batches
remote
train
cluster
exchange
regress
