package check

// Invariants lists the checks, by the numbers of docs/operate/checking.md, which is
// generated from this table. A missing number has no rows to check; that page gives the
// reasons. Each check's comment names its invariant and the argument.
var Invariants = []Invariant{
	{
		Number: 1, Sentence: "No GPU has two overlapping live reservations.",
		Reads:   "device_allocations, taken_seq and freed_seq of allocations, gpu_devices",
		machine: gpusGivenOnce,
	},
	{
		Number: 2, Sentence: "Per job and rank at most one container of the current attempt runs; an older one may " +
			"overlap it only on a machine that was given up as silent, and never for at_most_one work.",
		Reads: "allocations of consecutive attempts; start and die of container events",
		job:   oneLiveRank,
	},
	{
		Number: 3, Sentence: "Attempts strictly increase per job and are never reused.",
		Reads: "attempts, job_events, allocations",
		job:   attemptsIncrease,
	},
	{
		Number: 4, Sentence: "No write of an older attempt or of an older incarnation of a machine was accepted.",
		Reads: "attempt of job_events in the order of seq; machine_epoch of allocations against machine_events",
		job:   noStaleWrite, machine: noStaleMachine,
	},
	{
		Number: 5, Sentence: "Only listed changes of state; terminal is final; exactly one terminal event.",
		Reads: "job_events, berth.Transitions and berth.ParentTransitions",
		job:   listedTransitions,
	},
	{
		Number: 6, Sentence: "Every job is terminal, waits in the queue, or makes progress within its state's budget.",
		Reads: "jobs, allocations of the current attempt, deps and holds of blocked steps, the database's clock",
		job:   makesProgress, family: stepsAreLetGo,
	},
	{
		Number: 7, Sentence: "Each accepted submit is one job; each idempotency key is at most one job.",
		Reads: "jobs, job_specs, archived_jobs; the client's list of accepted submits, where there is one",
		job:   submittedOnce, cluster: acceptedOnce,
	},
	{
		Number: 8, Sentence: "Every container an engine ever saw has an allocation that was committed and claimed " +
			"before.",
		Reads: "container events against allocations",
		job:   containersHaveRows, cluster: containersHaveJobs,
	},
	{
		Number: 9, Sentence: "What is reserved on a machine never exceeds it, and its counters are the sum of its " +
			"live allocations.",
		Reads: "allocations in the order of the ledger, capacity in machine_events, counters of machines and " +
			"gpu_devices",
		machine: withinCapacity,
	},
	{
		Number: 10, Sentence: "The ranks of an attempt are reserved all at once or not at all, begin only when all " +
			"are ready, and do not run on in part; room is kept for a gang's repair for a minute at most.",
		Reads: "allocations of each attempt, members of the spec, nomination_log",
		job:   func(c *jobCase) { gangsAreWhole(c); gangsStartTogether(c); repairsAreBrief(c); followersStop(c) },
	},
	{
		Number: 11, Sentence: "No job is placed beyond the limits of its tenant and of the tenants above it, as " +
			"they stood at most 30 s before.",
		Reads:   "tenant_log, taken_seq, freed_seq and orphaned_seq of allocations",
		holding: withinQuotas,
	},
	{
		Number: 12, Sentence: "The money of launches adds up to the micro-dollar: each has cost its price for its " +
			"time, the days of a tenant cost as much as its launches, and none was admitted beyond a limit.",
		Reads:  "price, reserved, settled and times of launches; spend, pruned_spend, burst_policies, tenant_log",
		launch: launchesArePaid, cluster: func(c *clusterCase) { spendsAddUp(c); admittedWithin(c) },
	},
	{
		Number: 13, Sentence: "After a cancel nothing is started or placed; the job ends canceled, or succeeded by " +
			"work that had ended by itself.",
		Reads: "job_events, orders, exit and claimed_at of allocations, cancel_requested_at",
		job:   cancelsHold,
	},
	{
		Number: 14, Sentence: "A preempted job gives way and is requeued: its attempt never runs again, its " +
			"devices are free before another takes them, no retry budget pays, and what it freed is kept for the " +
			"job it gave way to.",
		Reads: "job_events, attempts, allocations, gave_way_to of jobs, nomination_log in the order of the ledger",
		job:   victimsGiveWay, machine: nominationsHold,
	},
	{
		Number: 15, Sentence: "A job resumes from the newest whole checkpoint of an earlier attempt that was not " +
			"rejected, or else from the one that it started from, never from nothing while there is one; each " +
			"rejection has an event.",
		Reads: "resume_from of attempts, checkpoints, checkpoint_shards, job_sources, job_events",
		job:   resumesFromVerified,
	},
	{
		Number: 16, Sentence: "Attempts are charged by their class: infrastructure and policy never spend the " +
			"user's retries, and the counts of the job are the sum of its attempts.",
		Reads: "budget and outcome of attempts, failures and losses of jobs",
		job:   budgetsAddUp,
	},
	{
		Number: 17, Sentence: "Nothing is placed on a machine that is not ready, or on a device that is not healthy.",
		Reads:   "taken_seq of allocations against machine_events",
		machine: placedOnReady,
	},
	{
		Number: 18, Sentence: "A launch has one instance, and an instance one launch: the last launch of a machine " +
			"alone lacks its end, requests are recorded before they are sent, and an instance is gone by two reads " +
			"a minute apart.",
		Reads:  "launches, id and incarnation of cluster, state and joined_token of machines",
		launch: func(c *launchCase) { launchesAreSingle(c); sendsComeFirst(c); endsAreProved(c) },
	},
	{
		Number: 20, Sentence: "After faults have stopped, everything comes to its end: jobs terminal, reservations " +
			"zero, no container left running, or left over from a create.",
		Reads: "jobs, allocations, counters of machines, container events; only with --settled",
		job:   jobSettled, machine: machineSettled,
	},
	{
		Number: 21, Sentence: "A job's events have no gaps, and replaying them gives its row.",
		Reads: "job_events against jobs and attempts",
		job:   eventsGiveTheRow,
	},
	{
		Number: 23, Sentence: "No event precedes its cause.",
		Reads: "order and times of job_events, times of allocations",
		job:   causesComeFirst,
	},
	{
		Number: 24, Sentence: "Time alone frees nothing: capacity that a machine may use is freed on the word of " +
			"its agent, a new boot, its provider or an operator.",
		Reads: "freed_from and freed_by of allocations, exit, job_events, host_boot in machine_events",
		job:   freedOnConfirmation, machine: freedByBoot,
	},
	{
		Number: 25, Sentence: "No two members of gangs have one port of a machine at the same time.",
		Reads:   "port, reserved_at and released_at of allocations",
		machine: portsGivenOnce,
	},
	{
		Number: 26, Sentence: "Of an array no more elements hold capacity at once than its parallel allows.",
		Reads:  "taken_seq, freed_seq and orphaned_seq of the allocations of its elements, parallel of its row",
		family: parallelHolds,
	},
	{
		Number: 27, Sentence: "A parent ends when its elements have, and as they did; each of its indexes is one " +
			"element.",
		Reads:  "jobs of one parent, total, indexes and state of its row",
		family: parentsFollow,
	},
	{
		Number: 28, Sentence: "No step of a pipeline is placed before all that it needs have ended as its condition " +
			"demands.",
		Reads:  "deps, job_needs, state of the steps, taken_seq and freed_seq of their allocations",
		family: needsComeFirst,
	},
	{
		Number: 29, Sentence: "The counters of stored data are the sum of the rows that count, by tenant and kind.",
		Reads:   "tenant_storage and storage_changes against uploads, secrets, log_chunks, outputs and checkpoints",
		cluster: storageAddsUp,
	},
	{
		Number: 30, Sentence: "The checkpoint from which a live job started is never missing, and no pinned " +
			"checkpoint is pruned.",
		Reads: "job_sources, checkpoints, checkpoint_shards, members of the spec, state of jobs",
		job:   sourcesAreKept,
	},
	{
		Number: 31, Sentence: "No GPU is shared by two tenants, except with reservations that were committed without " +
			"this rule.",
		Reads:   "device_allocations and their tenant, taken_seq and freed_seq of allocations, tenant of jobs",
		machine: tenantsKeptApart,
	},
	{
		Number: 32, Sentence: "Nothing is placed on a machine inside its maintenance window.",
		Reads:   "maintenance_machines, updated_at of maintenance, reserved_at of allocations",
		machine: windowsKeptFree,
	},
	{
		Number: 33, Sentence: "A refusal of a cloud closes an offering for an hour at most and a quota for half an " +
			"hour, and one launch at a time tries it again.",
		Reads:   "breakers",
		cluster: refusalsPass,
	},
	{
		Number: 34, Sentence: "The hardware of a job with alternatives is the one in force: the row has its class, " +
			"and the members of an attempt that holds capacity have exactly its request.",
		Reads: "class, alternatives and alternative of jobs, alternative of attempts, classes, allocations",
		job:   hardwareInForce,
	},
	{
		Number: 35, Sentence: "The members of a gang with groups that holds capacity have exactly the resources of " +
			"their groups, by rank.",
		Reads: "class, grouped and lead_first of jobs, classes, allocations",
		job:   membersSuitTheirGroups,
	},
}
