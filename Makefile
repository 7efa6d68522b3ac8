# Berth. `make help` lists what there is; `make demo` and `make test` do all set-up themselves.
SHELL := /bin/bash
GO    ?= go
BIN   := bin

# Of make chaos: how long, and which choices (0: others each time).
BUDGET ?= 30m
SEED   ?= 0

# Of make fuzz: how long, for each target.
FUZZTIME ?= 10s

# Of make endurance: how long, and how many jobs a second.
MINUTES ?= 30
RATE    ?= 12

# Of make proof-gpu: an interpreter with PyTorch.
PYTHON ?= python3

# Of make bench-family: the folder with Alibaba's lists.
TRACES ?= ../shared/traces

.DEFAULT_GOAL := help

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## install what the tests need (PostgreSQL, Docker engine), start dockerd if none answers
	@scripts/setup.sh test

.PHONY: build
build: ## build all programs into bin/
	$(GO) build -o $(BIN)/ ./cmd/...

.PHONY: test
test: setup compile ## all set-up, then every test; what failed is repeated at the end
	@scripts/test.sh

.PHONY: compile
compile: ## build every test binary, timed apart from the tests
	@scripts/test.sh --compile

.PHONY: demo
demo: ## all set-up, then train a real model through the loss of a machine
	@scripts/setup.sh demo
	@scripts/demo.sh

.PHONY: demo-cloud
demo-cloud: ## all set-up, then train on a machine that is launched for the job, through its loss to the cloud; the bill adds up
	@scripts/setup.sh demo
	@scripts/demo-cloud.sh

# Of make day: a folder for the screens. RECORD=1 also records the answers from which the screens of the guide are
# rendered. OLD and PREVIOUS are as of make upgrade-test, but by default the day is played with this tree.
SCREENS ?=
RECORD  ?=

.PHONY: day
day: ## play a new user's day on a terminal and count the commands to each answer: make day [PREVIOUS=commit] [OLD=folder] [SCREENS=folder] [RECORD=1]
	@scripts/setup.sh day
	@programs="$(if $(OLD),$(abspath $(OLD)))"; \
	[[ -z "$(PREVIOUS)" || -n "$(OLD)" ]] || programs=$$(scripts/previous-programs.sh "$(PREVIOUS)" berth berth-dev berth-agent berth-deadman) || exit 1; \
	$(GO) test ./e2e/day -run '^$$' -bench '^BenchmarkANewUsersDay$$' -benchtime 1x -count=1 -timeout 60m -v -args \
		-programs "$$programs" -screens "$(if $(SCREENS),$(abspath $(SCREENS)))" \
		-record "$(if $(RECORD),$(abspath cmd/berth/testdata/screens))"

.PHONY: proof-gang
proof-gang: ## train with PyTorch over four containers, kill one in mid-epoch: the loss is the same (large image, once)
	@scripts/setup.sh demo
	@scripts/proof-gang.sh

.PHONY: proof-hang
proof-hang: ## the same, with a member that hangs in an all-reduce, in three ways: each hang is found, and the loss is the same
	@scripts/setup.sh demo
	@scripts/proof-gang.sh hang

.PHONY: proof-install
proof-install: ## run the commands of docs/operate/install.md on two empty hosts, from an empty database to a job
	@scripts/setup.sh demo
	$(GO) test ./e2e/install -run '^$$' -bench BenchmarkTheInstallationPage -benchtime 1x -count=1 -timeout 30m -v

.PHONY: proof-gpu
proof-gpu: ## compare readings of a real GPU with programs that train, wait and spin on it, 4 minutes: make proof-gpu PYTHON=python3
	$(GO) test ./e2e/gpuproof -count=1 -v -timeout 10m -args -gpu -python $(PYTHON)
	$(GO) test ./internal/machine/agent -run RealGPU -count=1 -v -args -gpu -python $(PYTHON)

.PHONY: proof-notices
proof-notices: ## read notices and identities from Amazon's mock of the metadata service of EC2 (built once, half a minute), and measure the time to the signal
	$(GO) test ./e2e/noticeproof -count=1 -v -timeout 10m -args -mock
	for test in TestTheTimeFromANoticeToTheSignal TestDockerTheTimeFromANoticeToTheSignal; do \
		$(GO) test ./internal/machine/agent -run "^$$test\$$" -count=1 -v -timeout 20m -args -notice-times || exit 1; \
	done

.PHONY: proof-gce-mock
proof-gce-mock: ## compare the model of GCE in our tests with the in-memory GCE of Kubernetes, by the calls of our provider (a first build takes minutes)
	cd e2e/gceproof && $(GO) mod tidy -diff && $(GO) test -count=1 ./...

.PHONY: stop
stop: ## stop the demo's stack; its data stays
	@scripts/demo.sh stop

.PHONY: bench
bench: setup ## measure Berth against its floor: bare workflows, bare Docker, bare PostgreSQL
	@scripts/bench.sh

# Of make bench-paired: the commit to compare with, and how many pairs of runs.
BASE  ?=
PAIRS ?= 9

.PHONY: bench-paired
bench-paired: setup ## compare the rate of jobs and their CPU with an earlier commit, with an interval of 95 % (15 minutes): make bench-paired BASE=commit PAIRS=9
	@scripts/bench-paired.sh "$(BASE)" -pairs $(PAIRS)

.PHONY: bench-placement
bench-placement: ## measure plans: cold, after a change, one job at a time, and as cluster and queue grow
	$(GO) test ./placement -run '^$$' -bench 'Plan($$|Decide)' -timeout 30m
	$(GO) test ./placement -run '^$$' -bench PlanGrowth -benchtime 1x -timeout 30m

.PHONY: bench-family
bench-family: ## how much of the GPUs is placed of lists made from openb's: make bench-family TRACES=folder (needs openb/ in it)
	$(GO) test ./cmd/berth-sim -run '^$$' -bench Family -benchtime 1x -timeout 30m -v -args -traces $(abspath $(TRACES))

.PHONY: bench-hard
bench-hard: ## the same where GPU models are short, beside first fit, best fit, FGD and a bound (about 5 minutes; -half judge: the other half)
	$(GO) test ./cmd/berth-sim -run '^$$' -bench '^BenchmarkHard$$' -benchtime 1x -timeout 60m -v -args -traces $(abspath $(TRACES))

.PHONY: bench-order
bench-order: ## completion times of the queue's orders beside SRSF, SJF, EASY, Tiresias-L and bounds: make bench-order TRACES=folder (-half judge: the other half)
	$(GO) test ./cmd/berth-sim -run '^$$' -bench '^BenchmarkOrder$$' -benchtime 1x -timeout 60m -v -args -traces $(abspath $(TRACES))

.PHONY: bench-predict
bench-predict: ## how well starts are estimated, without and with time limits: make bench-predict TRACES=folder (-half judge: the other half)
	$(GO) test ./cmd/berth-sim -run '^$$' -bench '^BenchmarkPredict$$' -benchtime 1x -timeout 60m -v -args -traces $(abspath $(TRACES))

.PHONY: bench-burst
bench-burst: ## burst or wait on the seeds 21 to 60: fails unless the scaler costs less than Starburst at no longer wait
	$(GO) test ./cmd/berth-sim -run '^$$' -bench '^BenchmarkBurst$$' -benchtime 1x -timeout 60m -v

.PHONY: bench-queue
bench-queue: setup ## list, queue and show with the reasons of 10,000 waiting jobs for 50 readers: limit 200 ms at the 99th percentile
	$(GO) test ./api -run '^$$' -bench '^BenchmarkReadersOfAQueue$$' -benchtime 1x -count=1 -timeout 20m -v

.PHONY: bench-scale
bench-scale: setup ## measure 300 machines, 5,000 running jobs, floods and overload against bare workflows, at most 15 minutes
	@scripts/bench-scale.sh

.PHONY: bench-replicas
bench-replicas: setup ## lose the replica with the waiters of 5,000 running jobs in every way, about half an hour
	$(GO) test ./e2e/scale -run '^$$' -bench '^BenchmarkReplicas$$' -benchtime 1x -count=1 -timeout 90m -args -agents 100 -running 5000

# Of make upgrade-test: a folder with the programs of the version before, or a commit to build them from (default: the
# one of scripts/previous-version).
OLD      ?=
PREVIOUS ?=

.PHONY: upgrade-test
upgrade-test: setup ## upgrade a loaded cluster from the programs of an earlier commit, in each order, and kill all programs between any two steps (15 minutes): make upgrade-test [PREVIOUS=commit] [OLD=folder]
	@old="$(abspath $(OLD))" && old=$${old:-$$(scripts/previous-programs.sh $(PREVIOUS))} && \
	$(GO) test ./e2e/proof -run '^$$' -bench '^BenchmarkUpgrade$$' -benchtime 1x -count=1 -timeout 60m -args -old "$$old"

.PHONY: siege
siege: setup ## attack a control plane as hostile callers may; a good caller and two agents must not notice, at most 15 minutes
	@scripts/siege.sh

# Of make alarms: words in the names of the alerts to try, between commas (default: all).
ALERTS ?=

.PHONY: alarms
alarms: ## let a real Prometheus watch a real stack while the real faults of most alerts are injected: each alert fires, and is silent again (root, 15 minutes): make alarms [ALERTS=NoLeader,DiskFull]
	@scripts/setup.sh alarms
	@scripts/alarms.sh -alerts "$(ALERTS)"

.PHONY: attacks
attacks: setup ## try the list of attacks with two tenants, two machines and real containers; prints attack, expected, seen
	$(GO) test ./e2e/attacks -run '^TestAttacks$$' -count=1 -timeout 30m -v -args -all

.PHONY: failover
failover: setup ## kill the leader nine times and freeze it nine times; prints the worst takeover, limit 5 s
	$(GO) test ./e2e/proof -run TakenOver -failovers 9 -count=1 -v

# Of make proof-fence: how many cuts side by side, of which fence and margin.
CUTS   ?= 50
FENCE  ?= 20s
MARGIN ?= 5s

.PHONY: proof-fence
proof-fence: setup ## cut 50 machines off around the fence of their at_most_one work: never two alive: make proof-fence CUTS=1 FENCE=15m MARGIN=1m
	$(GO) test ./e2e/proof -run CutsAroundTheFence -count=1 -v -timeout 60m -args -cuts $(CUTS) -cut-fence $(FENCE) -cut-margin $(MARGIN) -cut-seed $(SEED)

# Of make proof-locks: how long each table is locked, how many clusters side by side, and which tables (default: all).
HOLD   ?= 60s
LANES  ?= 6
TABLES ?=

.PHONY: proof-locks
proof-locks: setup ## lock each table for a minute while clusters work, about 20 minutes: no renewal is missed: make proof-locks TABLES=jobs,leases
	$(GO) test ./e2e/proof -run '^TestALockOnAnyTableMissesNoRenewal$$' -count=1 -v -timeout 120m -parallel 20 -args -lock-each -lock-hold $(HOLD) -lock-lanes $(LANES) -lock-only "$(TABLES)"

.PHONY: proof-silence
proof-silence: setup ## cut off three of eight machines for longer than Temporal waits for a heartbeat, half an hour: no activity is repeated
	$(GO) test ./e2e -run '^TestF28NoActivityIsRepeatedWhileVerdictsAreFrozen$$' -count=1 -v -timeout 60m -args -silent-for 28m

# Of make proof-launches: how many machines.
LAUNCHES ?= 1000

.PHONY: proof-launches
proof-launches: setup ## launch 1,000 machines of a cloud while workers and leaders are killed, about 15 minutes: make proof-launches LAUNCHES=200
	@scripts/proof-launches.sh $(LAUNCHES)

.PHONY: proof-idle
proof-idle: setup ## end five idle machines of a cloud, with all pauses of production, about 10 minutes: the terminate call comes within idle_after + 60 s
	$(GO) test ./e2e/chaos -run '^TestIdleMachinesEndInTime$$' -count=1 -v -timeout 60m -args -idle-machines 5

.PHONY: endurance
endurance: setup ## submit jobs steadily for half an hour; what grows with the history fails: make endurance MINUTES=30 RATE=12
	$(GO) test ./e2e/proof -run '^$$' -bench Endurance -benchtime 1x -count=1 -timeout 0 -args -endurance $(MINUTES)m -rate $(RATE) -load-seed $(SEED)

# Of make proof-burst: how many jobs.
JOBS ?= 200

.PHONY: proof-burst
proof-burst: setup ## submit 200 jobs at once to one engine: each gets one container and leaves nothing: make proof-burst JOBS=400
	$(GO) test ./e2e/proof -run '^TestJobsSubmittedAtOnceEachGetOneContainerAndLeaveNothing$$' -count=1 -timeout 60m -v -args -burst $(JOBS)

.PHONY: drill
drill: setup ## lose database, objects and Temporal, restore a backup elsewhere and adopt it, also with machines of a cloud; prints RTO and RPO
	$(GO) test ./e2e/proof -run '^TestDrill(WithMachinesOfACloud)?$$' -count=1 -timeout 30m -v

.PHONY: mutants
mutants: setup ## break one fence at a time, and see that its test notices
	@scripts/mutants.sh

.PHONY: fuzz
fuzz: ## run each fuzz target for 10 s (make test repeats their corpora): make fuzz FUZZTIME=1m
	@scripts/fuzz.sh $(FUZZTIME)

.PHONY: chaos
chaos: setup ## kill processes at every failpoint, then at random and under load: make chaos BUDGET=30m SEED=...
	$(GO) test -count=1 -tags chaos ./internal/machine/agent -run "TestF(8|9|12|20|31|35|36)[A-Z]"
	$(GO) test -race -count=1 -timeout 0 ./db -run "TestF4[45]" -args -race-runs 4000 -race-seed $(SEED)
	$(GO) test -count=1 -v -timeout 0 ./e2e/chaos -run TestNoCellBreaksAPromise -args -budget $(BUDGET) -seed $(SEED)

.PHONY: lint
lint: ## gofmt, vet, staticcheck, revive, module files, subjects of new commits
	$(GO) vet ./...
	$(GO) mod tidy -diff
	$(GO) mod verify
	@scripts/lint.sh
	@scripts/commit-subjects.sh

.PHONY: vuln
vuln: ## find known vulnerabilities that the programs reach: make vuln BERTH_VULNDB=folder (of the Go vulnerability database)
	@scripts/vuln.sh --strict

.PHONY: vuln-calls
vuln-calls: ## the same from source, with the calls that reach each one (minutes)
	@scripts/vuln.sh --strict --source

.PHONY: sbom
sbom: ## write the modules of each program, CycloneDX 1.6, into bin/sbom/ (a first build takes minutes)
	@scripts/sbom.sh

# Of make release: its version.
VERSION ?=

.PHONY: release
release: ## build archives, packages, lists of modules and sums into dist/: make release VERSION=1.2.3 [MINISIGN_KEY=file]
	@scripts/release.sh "$(VERSION)"

.PHONY: release-check
release-check: ## build a release twice, in two folders: the files are equal (RELEASE_CACHE=shared: minutes, not an hour)
	@scripts/release-check.sh

.PHONY: package-test
package-test: ## install the packages on two empty hosts, upgrade them while a job runs, remove and purge them; read the RPMs
	@scripts/setup.sh release
	@command -v rpm >/dev/null || { echo "package-test: rpm is missing: scripts/setup.sh release" >&2; exit 1; }
	$(GO) test ./e2e/install -run 'Package|RPM' -bench BenchmarkPackages -benchtime 1x -count=1 -timeout 40m -v

.PHONY: chart-test
chart-test: ## lint the Helm chart, and compare its objects with golden files and the types of Kubernetes (a first build takes minutes)
	cd deploy/chart/test && $(GO) mod tidy -diff && $(GO) vet ./... && $(GO) test -count=1 ./...

.PHONY: measures
measures: ## how hard the code is to read: sizes, widths, share of comments, words; each with its limit and goal
	@$(GO) test . -run MeasuresOnlyImprove -count=1 -v | grep -E 'limit|goal|FAIL|ok'

.PHONY: fmt
fmt: ## gofmt everything
	gofmt -w $$(git ls-files '*.go')

.PHONY: generate
generate: ## rewrite generated documents and golden files; read the diff
	$(GO) test . ./failure ./internal/check ./placement ./internal/lib/glossary ./internal/lib/jobfile ./api ./internal/control/controlplane ./cmd/berth ./cmd/berthd ./cmd/berth-agent ./e2e/watching -run 'States|Golden|Document|Script|Reference' -update
