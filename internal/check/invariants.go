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
		Number: 2, Sentence: "At most one container of the current attempt runs per job and rank. A container of an " +
			"older attempt may overlap it only on a machine that was declared lost, and never for at_most_one jobs.",
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
		Number: 5, Sentence: "A job changes its state only as the list of transitions allows, and has one terminal " +
			"event, after which its state is final.",
		Reads: "job_events, berth.Transitions and berth.ParentTransitions",
		job:   listedTransitions,
	},
	{
		Number: 6, Sentence: "Every job is terminal, waits in the queue, or makes progress within its state's " +
			"budget.",
		Reads: "jobs, allocations of the current attempt, deps and holds of blocked steps, the database's clock",
		job:   makesProgress, family: stepsAreLetGo,
	},
	{
		Number: 7, Sentence: "Each accepted submit is one job; each idempotency key is at most one job.",
		Reads: "jobs, job_specs, archived_jobs; the client's list of accepted submits, where there is one",
		job:   submittedOnce, cluster: acceptedOnce,
	},
	{
		Number: 8, Sentence: "Every container that an engine reported has an allocation that was committed and " +
			"claimed before the container was created.",
		Reads: "container events against allocations",
		job:   containersHaveRows, cluster: containersHaveJobs,
	},
	{
		Number: 9, Sentence: "The reserved capacity of a machine never exceeds its total, and its counters are the " +
			"sum of its live allocations.",
		Reads: "allocations in the order of the ledger, capacity in machine_events, counters of machines and " +
			"gpu_devices",
		machine: withinCapacity,
	},
	{
		Number: 10, Sentence: "The ranks of an attempt are reserved all at once or not at all, start only when all " +
			"are ready, and never continue with only a part of them. Capacity is kept for a gang's repair for a " +
			"minute at most.",
		Reads: "allocations of each attempt, members of the spec, nomination_log",
		job:   func(c *jobCase) { gangsAreWhole(c); gangsStartTogether(c); repairsAreBrief(c); followersStop(c) },
	},
	{
		Number: 11, Sentence: "No job is placed beyond the limits that its tenant and the tenants above it had at " +
			"some time in the 30 s before.",
		Reads:   "tenant_log, taken_seq, freed_seq and orphaned_seq of allocations",
		holding: withinQuotas,
	},
	{
		Number: 12, Sentence: "The cost of launches adds up to the micro-dollar: each launch has cost its price for " +
			"its time, the daily costs of a tenant are the sum of its launches, and no launch was admitted beyond a " +
			"limit.",
		Reads:  "price, reserved, settled and times of launches; spend, pruned_spend, burst_policies, tenant_log",
		launch: launchesArePaid, cluster: func(c *clusterCase) { spendsAddUp(c); admittedWithin(c) },
	},
	{
		Number: 13, Sentence: "After a cancel no part of the job is placed or started. The job ends as canceled, or " +
			"as succeeded if its work had ended before.",
		Reads: "job_events, orders, exit and claimed_at of allocations, cancel_requested_at",
		job:   cancelsHold,
	},
	{
		Number: 14, Sentence: "A preempted job stops and is queued again: its attempt never runs again, its devices " +
			"are free before another job gets them, no retry is spent, and the capacity that it released is kept for " +
			"the job for which it was preempted.",
		Reads: "job_events, attempts, allocations, gave_way_to of jobs, nomination_log in the order of the ledger",
		job:   victimsGiveWay, machine: nominationsHold,
	},
	{
		Number: 15, Sentence: "A job resumes from the newest complete checkpoint of an earlier attempt that was not " +
			"rejected, or else from the checkpoint with which the job was submitted, and never from the beginning " +
			"while one of these exists. Each rejection has an event.",
		Reads: "resume_from of attempts, checkpoints, checkpoint_shards, job_sources, job_events",
		job:   resumesFromVerified,
	},
	{
		Number: 16, Sentence: "Attempts that end for infrastructure or policy never spend the user's retries, and " +
			"the counts of a job are the sum of its attempts.",
		Reads: "budget and outcome of attempts, failures and losses of jobs",
		job:   budgetsAddUp,
	},
	{
		Number: 17, Sentence: "No job is placed on a machine that is not ready, or on a device that is not healthy.",
		Reads:   "taken_seq of allocations against machine_events",
		machine: placedOnReady,
	},
	{
		Number: 18, Sentence: "A launch has one instance, and an instance one launch: only the last launch of a " +
			"machine may be open, requests are recorded before they are sent, and an instance counts as gone only " +
			"after two reads a minute apart that do not show it.",
		Reads:  "launches, id and incarnation of cluster, state and joined_token of machines",
		launch: func(c *launchCase) { launchesAreSingle(c); sendsComeFirst(c); endsAreProved(c) },
	},
	{
		Number: 20, Sentence: "After faults have stopped, all jobs become terminal, all reservations are released, " +
			"and no container is left running or created.",
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
		Number: 24, Sentence: "Capacity that a machine may still use is never released by time alone, but by a " +
			"report of its agent or its provider, by a new boot, or by an operator.",
		Reads: "freed_from and freed_by of allocations, exit, job_events, host_boot in machine_events",
		job:   freedOnConfirmation, machine: freedByBoot,
	},
	{
		Number: 25, Sentence: "No two members of gangs have the same port of a machine at the same time.",
		Reads:   "port, reserved_at and released_at of allocations",
		machine: portsGivenOnce,
	},
	{
		Number: 26, Sentence: "The elements of an array that hold capacity at the same time are at most as many as " +
			"its setting parallel.",
		Reads:  "taken_seq, freed_seq and orphaned_seq of the allocations of its elements, parallel of its row",
		family: parallelHolds,
	},
	{
		Number: 27, Sentence: "A parent ends when all of its elements have ended, its final state follows from " +
			"theirs, and each of its indexes is exactly one element.",
		Reads:  "jobs of one parent, total, indexes and state of its row",
		family: parentsFollow,
	},
	{
		Number: 28, Sentence: "No step of a pipeline is placed before all steps that it needs have ended as its " +
			"condition demands.",
		Reads:  "deps, job_needs, state of the steps, taken_seq and freed_seq of their allocations",
		family: needsComeFirst,
	},
	{
		Number: 29, Sentence: "The counters of stored data are the sum of the rows that count, by tenant and kind.",
		Reads:   "tenant_storage and storage_changes against uploads, secrets, log_chunks, outputs and checkpoints",
		cluster: storageAddsUp,
	},
	{
		Number: 30, Sentence: "The checkpoint from which a live job started is never missing, and has a part for " +
			"each member or gives all its parts to each member. No pinned checkpoint is pruned.",
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
		Number: 32, Sentence: "No job is placed on a machine inside its maintenance window.",
		Reads:   "maintenance_machines, updated_at of maintenance, reserved_at of allocations",
		machine: windowsKeptFree,
	},
	{
		Number: 33, Sentence: "After a refusal by a cloud, Berth launches no more of an offering for at most an " +
			"hour, or of a quota for at most half an hour, and tries again with one launch at a time. Only refused " +
			"credentials and settings close a part of a cloud without an end.",
		Reads:   "breakers",
		cluster: refusalsPass,
	},
	{
		Number: 34, Sentence: "A job with alternatives uses one of them: its row has the class of the alternative in " +
			"force, and the members of an attempt that holds capacity have exactly the request of that alternative.",
		Reads: "class, alternatives and alternative of jobs, alternative of attempts, classes, allocations",
		job:   hardwareInForce,
	},
	{
		Number: 35, Sentence: "The members of a gang with groups that holds capacity have exactly the resources of " +
			"their groups, by rank.",
		Reads: "class, grouped and lead_first of jobs, classes, allocations",
		job:   membersSuitTheirGroups,
	},
	{
		Number: 36, Sentence: "A chunk counts exactly the checkpoints that name it: a partial or verified checkpoint " +
			"with chunks names its chunks, each of which has a row, and no other checkpoint names any.",
		Reads:   "chunks, chunk_refs, checkpoints",
		cluster: chunksAddUp,
		job:     chunksFollowCheckpoints,
	},
	{
		Number: 37, Sentence: "A debug job has at most one attempt, with one member on the machine of the failed " +
			"member that it holds, which was placed after that member had freed its capacity.",
		Reads: "debug and execution of jobs, holds, taken_seq and freed_seq of allocations",
		job:   holdsFollow,
	},
	{
		Number: 38, Sentence: "No machine that is used by one tenant at a time is used by two, except with " +
			"reservations that were committed without this rule.",
		Reads:   "one_tenant, taken_seq and freed_seq of allocations, tenant of jobs",
		machine: machinesKeptWhole,
	},
	{
		Number: 41, Sentence: "No reservation of an untrusted tenant was committed on a machine that did not meet " +
			"the security floors at the commit.",
		Reads:   "untrusted and taken_seq of allocations, meets_floors of machine_events",
		machine: untrustedKeptOff,
	},
}
