#!/usr/bin/env bash
# Measures the streaming core, reading from buckets, the order of shards, training, clusters and what their nodes exchange, and writes bench/results/core.md, remote.md, order.md, train.md, cluster.md and exchange.md.
# usage: bench/run.sh [WORKDIR]; only the core: ONLY=core bench/run.sh [WORKDIR]; only the order: ONLY=order bench/run.sh [WORKDIR]; only buckets: ONLY=remote bench/run.sh; only training: ONLY=train bench/run.sh; only clusters: ONLY=cluster bench/run.sh; only plans on several nodes: ONLY=nodes bench/run.sh; only what nodes exchange: ONLY=exchange bench/run.sh (root, with ip and tc); only the regression check: ONLY=regress
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
regress() { # against bench/results/regress.json, which it writes anew where nothing is slower
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

	"$core" compare 9 "$core scan 1 $a $b" "$core scan 2 $a $b" "$core scan 1 $a & $core scan 1 $b" "$core scan 1 $a $b" >"$dir/cmp"
	read -r t1 t2 tp t1again < <(awk '{printf "%s ", $1} END {print ""}' "$dir/cmp")
	echo "| two tasks against two processes on half the files each, speed-up | $(calc '%.2fx' "$tp/$t2") (one task $t1 s, two $t2 s, two processes $tp s; A/A $(calc '%.2f' "$t1again/$t1")) | >= 0.9x |"

	r=$("$core" inflate 16777216)
	echo "| rows of 1 KiB..16 MiB, 20x map, slow consumer, budget 512 MiB: peak memory | $(mib "$(num peak_rss_bytes <<<"$r")"), budget at most $(mib "$(num peak_budget_bytes <<<"$r")"), left over $(num held_after <<<"$r") bytes, $(num goroutines_left <<<"$r") goroutines | <= 790 MiB, 0, 0 |"
	r=$("$core" inflate 67108864)
	echo "| the same with rows of 64 MiB | $(mib "$(num peak_rss_bytes <<<"$r")") | <= 790 MiB + largest output ($(mib "$(num largest_output <<<"$r")")) |"

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
	cat >"$dir/wide.yaml" <<-SPEC
		version: 1
		source: {parquet: {paths: ["$dir/wide"]}}
		steps: [{filter: id >= 500000 && id < 510000}, {select: [id, c07, c31]}]
		sink: {count: {}}
	SPEC
	r=$(bin/penstock run "$dir/wide.yaml" --json | tail -1)
	read_bytes=$(num bytes_read <<<"$r")
	echo "| 1 % filter on a sorted column, 3 of 50 columns: share of the file read, footer and indexes included | $(calc '%.2f %%' "100*$read_bytes/$size") ($read_bytes of $size bytes, $(num rows_out <<<"$r") rows) | <= 1 % + footers and indexes |"
} | tee "$out"
if [ "${ONLY:-}" = core ]; then
	exit
fi

order
remote
train
cluster
exchange
regress
