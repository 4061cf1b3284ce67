# Penstock. `make demo` shows it, `make test` proves it. See CONTRIBUTING.md.

GO      ?= go
TAGS    ?= assert
BIN     := bin
TOOLS   := $(BIN)/tools
PKGS    := ./...
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)

.DEFAULT_GOAL := help
.PHONY: help build wheel venv demo test test-python check race fuzz bench bench-peers soak proto tools clean

help: ## what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build bin/penstock
	@mkdir -p $(BIN)
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/penstock ./cmd/penstock

GOARCH  ?= $(shell $(GO) env GOARCH)
wheel: ## build python/dist/penstock-*.whl with the binary in it (GOARCH=amd64 or arm64, PYTHON=)
	@mkdir -p $(BIN)/wheel
	CGO_ENABLED=0 GOOS=linux GOARCH=$(GOARCH) $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/wheel/penstock-$(GOARCH) ./cmd/penstock
	PYTHON='$(PYTHON)' python/wheel.sh $(BIN)/wheel/penstock-$(GOARCH) $(GOARCH)

venv: ## make bin/venv, once: PyTorch and what else the Python tests need (5 GB)
	python/venv.sh $(BIN)/venv

demo: build ## build, then run the main job on the data that the repository ships
	@./examples/demo.sh

# Servers and checkers of the tests, from their own module: users of the library never see them.
tools: $(TOOLS)/staticcheck $(TOOLS)/versitygw $(TOOLS)/fake-gcs-server $(TOOLS)/benchstat $(TOOLS)/parquetgo
$(TOOLS)/staticcheck: tools/go.mod ; @mkdir -p $(TOOLS) && $(GO) build -C tools -o ../$@ honnef.co/go/tools/cmd/staticcheck
$(TOOLS)/versitygw: tools/go.mod ; @mkdir -p $(TOOLS) && $(GO) build -C tools -o ../$@ github.com/versity/versitygw/cmd/versitygw
$(TOOLS)/fake-gcs-server: tools/go.mod ; @mkdir -p $(TOOLS) && $(GO) build -C tools -o ../$@ github.com/fsouza/fake-gcs-server
$(TOOLS)/parquetgo: tools/go.mod tools/parquetgo/main.go ; @mkdir -p $(TOOLS) && $(GO) build -C tools -o ../$@ ./parquetgo
$(TOOLS)/protoc-gen-%: tools/go.mod ; @mkdir -p $(TOOLS) && $(GO) build -C tools -o ../$(TOOLS)/ google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc
$(TOOLS)/govulncheck: tools/go.mod ; @mkdir -p $(TOOLS) && $(GO) build -C tools -o ../$@ golang.org/x/vuln/cmd/govulncheck
$(TOOLS)/benchstat: tools/go.mod ; @mkdir -p $(TOOLS) && $(GO) build -C tools -o ../$@ golang.org/x/perf/cmd/benchstat

proto: $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc ## write the Go code of .proto files
	$(GO) run -C tools ./protogen ../$(TOOLS) ../cluster/internal/pb/cluster.proto

# What nodes in network namespaces are made with, in CI, where root can make them. A test says what is missing.
.PHONY: netns
netns:
	@[ "$$CI" != true ] || [ "$$(id -u)" != 0 ] || { command -v ip && command -v tc && command -v nft; } >/dev/null || { apt-get -qq update && apt-get -qq install -y --no-install-recommends iproute2 nftables; } || true
	@[ "$$CI" != true ] || { ip netns add penstock-probe && ip netns del penstock-probe; } 2>/dev/null || \
		echo "skipped: the tests of nodes in network namespaces, which $$(id -un) cannot make here, in $$(grep -rl --include='*_test.go' 'hosttest\.New(' * | xargs -n 1 dirname | sort -u | xargs)"

test: tools netns check ## set up, check and test everything (30 minutes on 2 cold cores at most; PYTHON= of the Python tests)
	$(if $(PYTHON),,@python/venv.sh $(BIN)/venv || [ "$$CI" != true ])
	PENSTOCK_PYTHON='$(PYTHON)' $(GO) test -tags '$(TAGS)' -timeout 20m $(PKGS)
	$(GO) test -C examples/tabular-go ./...
	@$(MAKE) --no-print-directory test-python

test-python: build ## the Python tests, in bin/venv or with PYTHON=/path/to/python
	PYTHON='$(PYTHON)' python/test.sh

check: $(TOOLS)/staticcheck vuln ## gofmt, vet, staticcheck, go.mod, govulncheck
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "gofmt needed: $$out"; exit 1; }
	$(GO) vet -tags '$(TAGS)' $(PKGS)
	$(TOOLS)/staticcheck -tags '$(TAGS)' $(PKGS)
	$(GO) mod tidy -diff
	$(GO) vet -C examples/tabular-go ./...
	$(GO) mod tidy -C examples/tabular-go -diff

# The database is asked once, for its index, so that a machine without it loses seconds: findings fail, a database that is not reached does not.
GOVULNDB ?= https://vuln.go.dev
.PHONY: vuln
vuln: $(TOOLS)/govulncheck ## known vulnerabilities of dependencies that the code calls (GOVULNDB=)
	@GOVULNDB='$(GOVULNDB)' GOVULNCHECK=$(TOOLS)/govulncheck TAGS='$(TAGS)' tools/vuln.sh $(PKGS)

race: tools ## the tests under the race detector
	$(GO) test -race -tags '$(TAGS)' -timeout 30m $(PKGS)

FUZZTIME ?= 60s
fuzz: ## every fuzz target for FUZZTIME (60s)
	@./internal/fuzz.sh $(FUZZTIME)

bench: build ## the quick benchmarks; results below bench/results
	./bench/run.sh

bench-peers: build ## Penstock beside other engines and loaders: 7 GB of packages, 40 minutes (DIR=, ONLY=, QUICK=1)
	DIR='$(DIR)' ONLY='$(ONLY)' QUICK='$(QUICK)' ROUNDS='$(ROUNDS)' ./bench/peers/run.sh

.PHONY: gpu-check
gpu-check: build ## with an NVIDIA GPU: discovery, training, pinned copies; bench/results/gpu.md (PYTHON= with CUDA)
	$(GO) build -o $(BIN)/bench-gpu ./bench/gpu
	PENSTOCK_PYTHON='$(or $(PYTHON),$(wildcard $(BIN)/venv/bin/python))' $(BIN)/bench-gpu -o bench/results/gpu.md

soak: tools ## the long tests: more seeds, Azurite, kill loops, PyTorch's too (needs npm; PYTHON= as for test)
	@mkdir -p $(TOOLS)
	test -d $(TOOLS)/node_modules/azurite || npm install --no-fund --no-audit --prefix $(TOOLS) azurite@3.37.0
	$(if $(PYTHON),,python/venv.sh $(BIN)/venv)
	PENSTOCK_SOAK=1 PENSTOCK_PYTHON='$(PYTHON)' $(GO) test -tags '$(TAGS)' -timeout 180m -count 1 $(PKGS)

clean: ## remove what make built
	rm -rf $(BIN)
