SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules --no-print-directory

ONCE ?=
ARGS ?=
DRILL ?=
CHECKS ?= 3000
SEED ?=
CI ?=
# Leaves out a debugging page of grpc-go that nothing serves: its templates look methods up by name, and then the linker keeps
# every method of every type, 9 MiB.
TAGS := grpcnotrace
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)

# -race needs a C compiler; without one the tests still run, and say so.
RACE := $(if $(shell command -v "$$(go env CC)" 2>/dev/null),-race)

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

# Not go run: it would not pass a signal to make on to the demo.
.PHONY: demo
demo: servers build ## Play the story through a real Envoy, then stay up (ONCE=1: exit instead)
	go build -o bin/demo ./test/demo
	exec bin/demo $(if $(ONCE),-once)

.PHONY: test
test: servers ## Every test: unit, property, parity, store suite, gRPC, and end to end through a real Envoy
ifeq ($(RACE),)
	@echo '!!! no C compiler: the race detector is OFF' >&2
	@[ '$(CI)' != true ]
endif
	go test $(RACE) -shuffle=on -count=1 ./...

.PHONY: bench
bench: servers ## Throughput, CPU per call and memory beside a bare gRPC server (ARGS=… for the program)
	go run ./test/bench $(ARGS)

.PHONY: bench-check
bench-check: servers ## The ratios of `make bench` in short, against floors below which something has become slow
	go run ./test/bench -gate $(ARGS)

.PHONY: profile
profile: servers ## CPU and allocation profiles of a loaded server, in profile/
	go run ./test/bench -profile profile $(ARGS)

.PHONY: benchmarks
benchmarks: servers ## Go benchmarks of each stage of a call, for benchstat (ARGS=… for go test)
	go test -run '^$$' -bench . -count 6 $(ARGS) ./descriptors ./lua ./rls ./envoy ./store/memory ./store/redis

.PHONY: chaos
chaos: servers ## Failure drills on real servers under load (DRILL=frozen for one of them, ARGS=… for the program)
	go run ./test/chaos -drill "$(DRILL)" $(ARGS)

.PHONY: reload
reload: ## 500 calls a second for a minute while the policies change every 100 ms
	RELOAD_FOR=60s go test -run TestReloadUnderLoad -v -count=1 ./cmd/sentinel-rls

.PHONY: values
values: servers ## A million values under detailed_metric against the running drop-in: its memory stays
	COMPAT_VALUES=1000000 go test -run TestCompatMemoryStays -v -count=1 ./cmd/sentinel-rls

.PHONY: flood
flood: servers ## Forged tokens of unknown keys beside valid callers (ARGS=… for the program)
	go run ./test/flood $(ARGS)

.PHONY: sizing
sizing: servers ## Bytes of Redis' and Valkey's memory that one bucket takes
	go run ./test/sizing $(ARGS)

.PHONY: parity
parity: servers ## Scripts against the Go rules on real servers (CHECKS=3000 SEED=n)
	PARITY_CHECKS='$(CHECKS)' PARITY_SEED='$(SEED)' go test -run TestParity -v -count=1 -timeout 60m ./lua/

.PHONY: cases
cases: servers ## Each fault case: its test and result, or why it does not apply
	go run ./test/cases

.PHONY: conformance
conformance: build ## Every shared scenario of envoyproxy/ratelimit against bin/sentinel-rls compat, over gRPC and /json
	test/dropin/conformance bin/sentinel-rls
	go test -run 'TestCompatConformance|TestJSON' -count=1 ./cmd/sentinel-rls

.PHONY: start
start: servers ## Time from the start of the process to gRPC health SERVING (ARGS='-n 50 -check')
	go run ./test/start $(ARGS)

.PHONY: image
image: ## Build the container image sentinel-rls:dev from the Dockerfile
	docker build --build-arg VERSION=$(VERSION) -t sentinel-rls:dev .

.PHONY: containers
containers: servers ## Image and docker-compose.yaml on a Docker engine, which root may start here for as long as it takes
	test/lab/run

.PHONY: lint
lint: ## vet, go fix, staticcheck, gofumpt, tidy, import rule, shell syntax
	go vet ./...
	go fix -diff ./...
	go mod tidy -diff
	go -C tools mod tidy -diff
	go -C test/containers mod tidy -diff
	go tool -modfile=tools/go.mod staticcheck ./...
	cd test/containers && go vet . && go fix -diff . && go tool -modfile=../../tools/go.mod staticcheck .
	@unformatted=$$(go tool -modfile=tools/go.mod gofumpt -l .); \
	if [ -n "$$unformatted" ]; then printf 'not gofumpt-formatted:\n%s\n' "$$unformatted" >&2; exit 1; fi
	for script in .ci/run tools/fetch test/lab/* test/dropin/conformance; do bash -n $$script; done
	go test -count=1 ./internal/project

.PHONY: tools
tools: ## Put what PATH lacks of Envoy 1.40, Valkey 9 and Redis into .tools/
	tools/fetch

# As tools, but a server that cannot be had is an error only in CI: elsewhere its tests are skipped and say so.
.PHONY: servers
servers:
	@tools/fetch || { echo '!!! a server is missing: what needs it will be skipped' >&2; [ '$(CI)' != true ]; }

.PHONY: build
build: ## Build bin/sentinel-rls
	CGO_ENABLED=0 go build -trimpath -tags=$(TAGS) -ldflags '-s -w -X main.version=$(VERSION)' -o bin/sentinel-rls ./cmd/sentinel-rls

.PHONY: run
run: build ## Serve with the memory store and a built-in demo policy (ARGS=… to add flags)
	bin/sentinel-rls serve $(ARGS)

.PHONY: clean
clean: ## Remove what was built and fetched
	rm -rf bin .tools out profile
