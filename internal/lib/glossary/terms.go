package glossary

// Terms lists the words of Berth, by section. Each word has one entry. A meaning is one
// phrase without a full stop and without a bar, since the document renders it as the cell
// of a table.
//
// A term of another system is the closest one, not an equal one: where Berth differs, the
// meaning says so. Many systems use one word for several of these terms; the comments
// below name the pairs that readers confuse.
var Terms = []Section{
	// The words of a job file and of the answers of the API: users meet these first.
	{Title: "Work", Terms: []Term{
		{
			Word:    "job",
			Meaning: "the unit of submission: a container, its resources and its policy; one row in PostgreSQL",
			Slurm:   "job", Kubernetes: "Job",
		},
		{
			Word:    "job file",
			Meaning: "the YAML or JSON description of one job",
			Slurm:   "batch script", Kubernetes: "manifest",
		},
		{
			Word:    "array",
			Meaning: "a parent row with many jobs of one job file",
			Slurm:   "job array", Kubernetes: "indexed Job",
		},
		// Element, step and child are three words on purpose: only code and texts that
		// serve arrays and pipelines alike use child.
		{Word: "element", Meaning: "one job of an array, identified by its index", Slurm: "array task"},
		{
			Word:       "pipeline",
			Meaning:    "a parent row with steps that depend on each other",
			Kubernetes: "DAG workflow (Argo)",
		},
		{
			Word:       "step",
			Meaning:    "one part of a pipeline: a job, an array or a nested pipeline",
			Kubernetes: "task (Argo)",
		},
		// Level belongs to pipelines alone; a range of priorities is a band.
		{Word: "level", Meaning: "the steps of one pipeline, without the steps of pipelines nested in it"},
		{
			Word: "parent",
			Meaning: "the row of an array or a pipeline; it holds no capacity, and its status follows from " +
				"its children",
			Kubernetes: "owner",
		},
		{Word: "child", Meaning: "an element or a step, where both behave the same", Kubernetes: "dependent"},
		{
			Word:       "reconcile",
			Meaning:    "compare rows with the desired state and take the next steps; every pass is repeatable",
			Kubernetes: "reconcile",
		},
		{
			Word:    "gang",
			Meaning: "a job of several members: placed, started and stopped together",
			Slurm:   "multi-node job", Kubernetes: "pod group (Kueue)",
		},
		{
			Word:    "member",
			Meaning: "one container of a gang; a job without `members` has one",
			Slurm:   "task of one node", Kubernetes: "pod",
		},
		{
			Word: "debug job",
			Meaning: "a job that holds a failed attempt (`hold_on_failure`): it has the files of the failed member " +
				"and sleeps, so that users can look at them; it gives way to every other job",
			Kubernetes: "debug container",
		},
		{
			Word:    "rank",
			Meaning: "the index of a member, from 0 (`BERTH_MEMBER`, `NODE_RANK`)",
			Slurm:   "`SLURM_PROCID`", Other: "MPI rank",
		},
		// Member is the word of everything that users see; rank is only the index of a
		// member.
		{
			Word:    "group",
			Meaning: "the members of a gang with the same resources and command; a gang without `groups` has none",
			Slurm:   "component of a heterogeneous job", Kubernetes: "replicated job (JobSet)",
		},
		{Word: "peer", Meaning: "another member of the same gang, known by host and port"},
		{
			Word:    "attempt",
			Meaning: "one run of a job, numbered from 1; writes of an older attempt are rejected",
			Slurm:   "restart count", Nomad: "allocation",
		},
		{
			Word: "execution",
			Meaning: "how many copies of a job may run at once: `at_least_once` (an old copy may overlap " +
				"its replacement) or `at_most_one`",
		},
		{
			Word: "repair",
			Meaning: "the next attempt of a gang that lost a member: the other members return to their " +
				"machines",
		},
		{
			Word:    "checkpoint",
			Meaning: "a numbered folder of saved state; verified once the hash of every file is on record",
		},
		{
			Word: "restore",
			Meaning: "copy a verified checkpoint into the container of a new attempt; for the database: " +
				"put a backup back",
		},
		{Word: "dead letter", Meaning: "a failed job without retries left; a person decides about it"},
		{
			Word:    "retention",
			Meaning: "the time for which ended jobs stay in the live tables before the archive",
			Slurm:   "`MinJobAge`", Kubernetes: "`ttlSecondsAfterFinished`",
		},
		{
			Word:       "schedule",
			Meaning:    "a row with the times at which to submit a job, an array or a pipeline",
			Kubernetes: "CronJob", Temporal: "Schedule",
		},
		{Word: "fire", Meaning: "one time of a schedule, with its result", Temporal: "action"},
		{
			Word:     "clock",
			Meaning:  "the Temporal Schedule that Berth creates from a schedule's row",
			Temporal: "Schedule",
		},
	}},
	// The words between the control plane and the agents. The life of an allocation runs
	// through reserved, claimed, exited and sealed; orphaned is the branch for a silent
	// machine.
	{Title: "Machines and capacity", Terms: []Term{
		{Word: "machine", Meaning: "a host with an agent", Slurm: "node", Kubernetes: "node", Nomad: "client"},
		{Word: "pool", Meaning: "set of machines with rules", Slurm: "partition", Kubernetes: "node pool"},
		{
			Word:       "taint",
			Meaning:    "a mark of a machine or pool that keeps jobs away unless they tolerate it",
			Kubernetes: "taint",
		},
		{
			Word:       "toleration",
			Meaning:    "an entry of a job's placement that accepts machines with a taint",
			Kubernetes: "toleration",
		},
		{
			Word:    "security floor",
			Meaning: "the oldest version of a machine's component without a known vulnerability that a job could use",
		},
		{
			Word:    "waiver",
			Meaning: "an operator's statement, until a date, that a version below a security floor is secure",
		},
		{
			Word:       "volume",
			Meaning:    "a folder of machines that an operator shares with jobs under a name",
			Kubernetes: "hostPath volume", Nomad: "host volume",
		},
		{Word: "GPU", Meaning: "a device or a MIG slice; a share is a part of one, in thousandths", Slurm: "gres"},
		{
			Word:    "allocation",
			Meaning: "the reservation of one member on one machine",
			Slurm:   "job step allocation", Kubernetes: "pod bound to a node", Nomad: "allocation",
		},
		{
			Word:    "grant",
			Meaning: "all allocations of one attempt, as its workflow receives them",
			Slurm:   "allocation",
		},
		// Claim has this meaning alone. The part of a device that an allocation uses is a
		// device allocation (device_allocations).
		{Word: "claim", Meaning: "an agent takes up an allocation; no container runs without a claim"},
		{
			Word:       "lease",
			Meaning:    "a right that expires: a machine's right to count as alive, the leader's right to place",
			Kubernetes: "Lease",
		},
		{
			Word: "epoch",
			Meaning: "a counter of incarnations: of a machine (reboots, loss of all its members), or of a " +
				"lease (terms of the leader)",
			Other: "Raft term",
		},
		{
			Word:    "order",
			Meaning: "an instruction of the control plane to an agent: start, checkpoint, stop, kill or forget",
		},
		{
			Word:       "report",
			Meaning:    "an agent's message about a member: its phase and its exit",
			Kubernetes: "pod status",
		},
		// Exited frees the devices of a member, sealed its data: a machine is not retired
		// between the two.
		{Word: "exited", Meaning: "the container is gone and its devices are free", Kubernetes: "terminated"},
		{
			Word:    "sealed",
			Meaning: "the member's logs and checkpoints are stored, or an event records that they are lost",
		},
		{
			Word:       "orphaned",
			Meaning:    "the machine is silent; the allocation counts as used until its end is confirmed",
			Kubernetes: "unknown",
		},
		{
			Word:    "drain",
			Meaning: "give a machine no new work and move its jobs away by a deadline",
			Slurm:   "drain", Kubernetes: "drain", Nomad: "drain",
		},
		{
			Word:    "maintenance window",
			Meaning: "a drain of machines that is planned ahead, with an end at which healthy machines return",
			Slurm:   "reservation with flags=maint",
		},
		{
			Word: "approval",
			Meaning: "an admin's consent to the equipment of a machine that joined; without it the machine " +
				"is `pending` and gets no work",
			Kubernetes: "CertificateSigningRequest approval",
		},
		{
			Word:       "provider",
			Meaning:    "one account of a cloud, or a program, that creates and terminates machines",
			Kubernetes: "cloud provider",
		},
		{
			Word:       "launch",
			Meaning:    "a request for one machine of a cloud, from its creation to the proven end of the instance",
			Slurm:      "ResumeProgram",
			Kubernetes: "NodeClaim (Karpenter)",
		},
		{
			Word:       "offering",
			Meaning:    "a machine type in a region and zone, on demand or spot; an offer adds its shape and price",
			Kubernetes: "offering (Karpenter)",
		},
		{
			Word:    "fence",
			Meaning: "how long an unreachable machine may continue `at_most_one` work",
			Slurm:   "fencing (Pacemaker)", Kubernetes: "fencing (Pacemaker)",
		},
		{
			Word: "deadman",
			Meaning: "the fencing watchdog: a process that ends `at_most_one` work on a machine with an " +
				"expired lease",
			Other: "watchdog",
		},
		{
			Word:    "gate",
			Meaning: "a folder that a container mounts; while it is closed, no engine can start the container",
		},
	}},
	// The words inside the control plane, which operators meet in logs and metrics.
	{Title: "Control plane", Terms: []Term{
		{
			Word:       "leader",
			Meaning:    "the one process that places jobs, releases expired reservations and reconciles",
			Kubernetes: "leader",
		},
		// Poke and hint carry no data: the receiver reads the rows. A poke goes to a
		// workflow of Temporal, a hint to a process.
		{Word: "poke", Meaning: "an empty signal that makes a workflow read its row", Temporal: "signal"},
		{
			Word:       "hint",
			Meaning:    "an empty notification between processes of the control plane; it may be lost",
			Kubernetes: "watch event",
		},
		// Settle is the decision about a job; exited and sealed are facts about one
		// member.
		{Word: "settle", Meaning: "decide the result of a job after all its members have ended"},
		{
			Word: "watermark",
			Meaning: "a number that grows with the database and is also kept outside of it; it reveals a " +
				"restored backup",
		},
		{
			Word: "signed address",
			Meaning: "a request to the object store that berthd signs for one machine: one object, one method, " +
				"five minutes",
		},
		{Word: "leap", Meaning: "the jump of ids, terms and watermarks after a restore of the database"},
		{
			Word:    "blocker",
			Meaning: "one reason why a job does not start",
			Slurm:   "pending reason", Kubernetes: "scheduling event",
		},
		{
			Word:       "admission",
			Meaning:    "the decision whether a call or a start is accepted now, by limits and load",
			Kubernetes: "admission control",
		},
		{
			Word:    "waiter",
			Meaning: "the part of a control plane process that waits for the end of one member, and decides nothing",
		},
	}},
	// The words of placement and of tenants. A guarantee and a limit are two rules of one
	// quota: between the two a tenant borrows.
	{Title: "Queue and quotas", Terms: []Term{
		{
			Word: "tenant",
			Meaning: "a team that owns jobs and is charged for them; tenants form a tree, and a group of " +
				"tenants is a tenant too",
			Slurm: "account", Kubernetes: "namespace",
		},
		{
			Word:    "quota",
			Meaning: "the rules of one tenant: guarantee, limit, jobs at once, budget",
			Slurm:   "association limits", Kubernetes: "ResourceQuota",
		},
		{
			Word:       "guarantee",
			Meaning:    "the capacity that a tenant can take back from borrowers",
			Kubernetes: "nominal quota (Kueue)",
		},
		{
			Word:    "limit",
			Meaning: "the capacity that a tenant never exceeds",
			Slurm:   "GrpTRES", Kubernetes: "quota hard limit",
		},
		// The retry budget of an attempt is another thing; texts call it by its full
		// name.
		{Word: "budget", Meaning: "the GPU hours that a tenant may spend", Slurm: "GrpTRESMins"},
		{
			Word:       "borrow",
			Meaning:    "hold more than the guarantee while other tenants leave capacity unused",
			Kubernetes: "borrowing (Kueue)",
		},
		{
			Word:    "share",
			Meaning: "the largest part of any one resource that a tenant holds",
			Other:   "dominant share (DRF)",
		},
		{
			Word:    "band",
			Meaning: "a range of priorities; jobs of a higher band come first",
			Slurm:   "priority tier", Kubernetes: "PriorityClass",
		},
		// Class and holder are words of placement; users see jobs and their status.
		{Word: "class", Meaning: "jobs with equal placement requests"},
		{Word: "holder", Meaning: "a job that holds capacity: it runs or is about to start"},
		{
			Word: "backfill",
			Meaning: "start a job before one that waits for capacity, where that delays no reserved start; " +
				"`berth schedule backfill` fires past times",
			Slurm: "backfill", Temporal: "backfill",
		},
		{
			Word:    "reserved start",
			Meaning: "the time from which capacity is kept for a blocked job",
			Slurm:   "backfill reservation",
		},
		{
			Word:    "preempt",
			Meaning: "stop a running job for another one; the preempted job waits again at its old place",
			Slurm:   "preempt", Kubernetes: "preemption",
		},
		// A victim is already chosen; a job that preemption may stop is a candidate.
		{Word: "victim", Meaning: "a job that preemption stops", Kubernetes: "victim"},
		{
			Word: "board",
			Meaning: "the positions and reasons of all waiting jobs, from one reading of the rows and one plan; the " +
				"callers of a replica share it",
			Slurm: "squeue's REASON and START_TIME",
		},
		{
			Word: "nomination",
			Meaning: "capacity that is kept for one waiting job, mostly released by its victims; tables " +
				"`nominations` and `nomination_log`, flag `--nomination-for`",
			Kubernetes: "nominated node",
		},
		// The terms below are the placement algorithm's own and occur in its comments and
		// its design document.
		{Word: "headroom", Meaning: "an account's unused quota over time, per resource and in jobs"},
		{
			Word: "fragmentation cost",
			Meaning: "the GPU share that later jobs are expected to lose when a job takes a certain place; " +
				"placement minimizes it",
			Other: "FGD fragmentation gradient",
		},
		{
			Word: "preemption bound",
			Meaning: "per machine, the most capacity that preemption could free and the least that it " +
				"would cost; it only prunes the search",
		},
	}},
}
