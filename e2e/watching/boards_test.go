package watching_test

// Values from rows are the same on every replica: max takes one of them. Counters belong to one
// process each: sum adds them up.

// boards are the dashboards of deploy/grafana.
var boards = []dashboard{overviewBoard, queueBoard, machinesBoard, controlBoard, cloudBoard}

// one returns a line without a legend, for a single number.
func one(expr string) []line { return []line{{expr, ""}} }

// quantiles returns the lines of a histogram's median and 99th percentile, by a label or over all.
func quantiles(metric, by string) []line {
	labels, legend := "le", ""
	if by != "" {
		labels, legend = "le, "+by, "{{"+by+"}} "
	}
	var list []line
	for _, q := range []struct{ value, name string }{{"0.5", "median"}, {"0.99", "99 %"}} {
		list = append(list, line{"histogram_quantile(" + q.value + ", sum by (" + labels + ") (rate(" + metric +
			"_bucket[$__rate_interval])))", legend + q.name})
	}
	return list
}

var overviewBoard = dashboard{
	uid: "berth-overview", title: "Berth: overview", about: "Whether the cluster works, and what it works on.",
	rows: []row{
		{"Now", []panel{
			{title: "Replicas", about: "Processes of berthd that answer Prometheus.", unit: "none", stat: true,
				lines: one(`count(berth_build_info)`)},
			{title: "Leader", about: "1 while a process has the lead. Without one no job is placed.", unit: "none", stat: true,
				lines: one(`max(berth_leader_present)`)},
			{title: "Running jobs", about: "Jobs with running containers.", unit: "none", stat: true,
				lines: one(`max(berth_jobs{status="running"})`)},
			{title: "Waiting jobs", about: "Jobs that wait for placement, held ones among them.", unit: "none", stat: true,
				lines: one(`max(sum by (instance) (berth_waiting_jobs))`)},
			{title: "GPUs reserved", about: "Share of all GPUs that jobs have reserved.", unit: "percentunit", stat: true,
				lines: one(`sum(max by (model) (berth_gpus{kind="reserved"})) / sum(max by (model) (berth_gpus{kind="total"}))`)},
			{title: "Silent machines", about: "Machines whose agents do not call, without machines in maintenance and drained ones that hold no work.",
				unit: "none", stat: true, lines: one(`max(berth_machines_silent)`)},
		}},
		{"Work", []panel{
			{title: "Jobs by status", about: "Live jobs.", unit: "none",
				lines: []line{{`max by (status) (berth_jobs)`, "{{status}}"}}},
			{title: "Ended attempts", about: "Attempts per second by the next status of the job.", unit: "ops",
				lines: []line{{`sum by (next) (rate(berth_attempts_ended_total[$__rate_interval]))`, "{{next}}"}}},
			{title: "Reasons of failures", about: "Failed and repeated attempts per second, by reason. Distinguishes bad scripts from bad machines.", unit: "ops",
				lines: []line{{`topk(10, sum by (reason) (rate(berth_attempts_ended_total{next=~"failed|retrying"}[$__rate_interval])))`, "{{reason}}"}}},
		}},
		{"Tenants", []panel{
			{title: "Running jobs by tenant", about: "The ten tenants with the most running jobs.", unit: "none",
				lines: []line{{`topk(10, max by (tenant) (berth_tenant_jobs{state="running"}))`, "{{tenant}}"}}},
			{title: "Waiting jobs by tenant", about: "The ten tenants with the most waiting jobs.", unit: "none",
				lines: []line{{`topk(10, max by (tenant) (berth_tenant_jobs{state="waiting"}))`, "{{tenant}}"}}},
			{title: "Stored data by tenant", about: "Uploads, logs, outputs and checkpoints of the ten tenants with the most data.", unit: "bytes",
				lines: []line{{`topk(10, sum by (tenant) (max by (tenant, kind) (berth_tenant_storage_bytes)))`, "{{tenant}}"}}},
		}},
		{"Losses", []panel{
			{title: "Lost GPU time", about: "GPUs' worth of work per second that repeated attempts have lost since their last checkpoint, by reason.", unit: "none",
				lines: []line{{`topk(10, sum by (reason) (rate(berth_lost_gpu_seconds_total[$__rate_interval])))`, "{{reason}}"}}},
			{title: "Machines declared lost", about: "Within the last hour.", unit: "none",
				lines: []line{{`sum(increase(berth_scheduler_lost_machines_total[1h]))`, "lost"}}},
			{title: "Versions", about: "Replicas by version; two during an upgrade.", unit: "none",
				lines: []line{{`count by (version) (berth_build_info)`, "{{version}}"}}},
		}},
	},
}

var queueBoard = dashboard{
	uid: "berth-queue", title: "Berth: queue and placement", about: "Why jobs wait, for how long, and what the leader does about it.",
	rows: []row{
		{"Waiting", []panel{
			{title: "Waiting jobs by reason", about: "The first reason that berth explain gives. Ready jobs start in the next cycle.", unit: "none",
				lines: []line{{`max by (reason) (berth_waiting_jobs) > 0`, "{{reason}}"}}},
			{title: "Longest wait", about: "Of jobs that may be placed; held jobs and blocked steps do not count.", unit: "s",
				lines: []line{{`max(berth_oldest_waiting_job_seconds)`, "cluster"}}},
			{title: "Longest wait by tenant", about: "The ten tenants with the longest waits.", unit: "s",
				lines: []line{{`topk(10, max by (tenant) (berth_tenant_oldest_waiting_job_seconds))`, "{{tenant}}"}}},
			{title: "Wait until placement", about: "Of the attempts placed lately, by request.", unit: "s",
				lines: quantiles("berth_scheduler_wait_seconds", "needs")},
			{title: "Wait over estimate", about: "Wait of a job over the wait that berth explain had estimated; 1 is exact.", unit: "none",
				lines: quantiles("berth_start_estimate_ratio", "by")},
			{title: "Queue of the leader", about: "Jobs that wait for placement, as the leader knows them.", unit: "none",
				lines: []line{{`sum(berth_scheduler_queue_jobs)`, "jobs"}}},
		}},
		{"Placement", []panel{
			{title: "Decisions", about: "Per second: placements, refused placements (repeated in the next cycle), preemptions, failed queue timeouts.", unit: "ops",
				lines: []line{
					{`sum(rate(berth_scheduler_placements_total[$__rate_interval]))`, "placed"},
					{`sum(rate(berth_scheduler_refusals_total[$__rate_interval]))`, "refused"},
					{`sum(rate(berth_scheduler_preemptions_total[$__rate_interval]))`, "preempted"},
					{`sum(rate(berth_scheduler_queue_timeouts_total[$__rate_interval]))`, "timed out"},
				}},
			{title: "Scheduling cycle", about: "Time to read the changes and to plan.", unit: "s",
				lines: quantiles("berth_scheduler_cycle_seconds", "")},
			{title: "Commit", about: "Time to commit a batch of placements.", unit: "s",
				lines: quantiles("berth_scheduler_commit_seconds", "")},
		}},
	},
}

var machinesBoard = dashboard{
	uid: "berth-machines", title: "Berth: machines and GPUs", about: "Capacity, its use by reservations, and the health of machines.",
	rows: []row{
		{"GPUs", []panel{
			{title: "GPUs by model", about: "All GPUs, and the reserved ones. A quarter of a GPU counts 0.25.", unit: "none",
				lines: []line{
					{`max by (model) (berth_gpus{kind="reserved"})`, "{{model}} reserved"},
					{`max by (model) (berth_gpus{kind="total"})`, "{{model}}"},
				}},
			{title: "Reserved and busy", about: "Shares of all GPUs: reserved by jobs, and busy as agents measure it. A gap is paid for and not used.", unit: "percentunit",
				lines: []line{
					{`sum(max by (model) (berth_gpus{kind="reserved"})) / sum(max by (model) (berth_gpus{kind="total"}))`, "reserved"},
					{`sum(max by (model) (berth_gpus{kind="busy"})) / sum(max by (model) (berth_gpus{kind="total"}))`, "busy"},
				}},
			{title: "GPUs out of use", about: "Broken, or used by programs outside of Berth.", unit: "none",
				lines: []line{{`max by (model) (berth_gpus{kind="unhealthy"})`, "{{model}}"}}},
		}},
		{"Capacity", []panel{
			{title: "CPU cores", about: "All cores, the reserved ones, and the ones that jobs use.", unit: "none",
				lines: []line{{`max by (kind) (berth_cpu_cores)`, "{{kind}}"}}},
			{title: "Memory", about: "All memory, the reserved part, and the part that jobs use.", unit: "bytes",
				lines: []line{{`max by (kind) (berth_memory_bytes)`, "{{kind}}"}}},
			{title: "Disk", about: "All disk space that machines offer, and the reserved part.", unit: "bytes",
				lines: []line{{`max by (kind) (berth_disk_bytes)`, "{{kind}}"}}},
		}},
		{"Health", []panel{
			{title: "Machines by state", about: "Retired machines are left out.", unit: "none",
				lines: []line{{`max by (state) (berth_machines{state!="retired"})`, "{{state}}"}}},
			{title: "Fullest disks", about: "Free share of the ten fullest machines. Below 0.05 agents end jobs that use too much.", unit: "percentunit",
				lines: []line{{`bottomk(10, min by (machine) (berth_machine_disk_free_ratio))`, "{{machine}}"}}},
			{title: "Machines without new work", about: "Machines whose engine is silent, that an operator must look at, or that have not returned from maintenance.", unit: "none",
				lines: []line{
					{`max(berth_machines_engine_silent)`, "engine silent"},
					{`max(berth_scheduler_marked_machines)`, "marked"},
					{`max(berth_scheduler_maintenance_waiting_machines)`, "maintenance late"},
				}},
			{title: "Silent machines", about: "Silent machines that are not declared lost, and whether verdicts are frozen.", unit: "none",
				lines: []line{
					{`max(berth_scheduler_silent_machines)`, "silent"},
					{`max(berth_scheduler_verdicts_frozen)`, "frozen"},
				}},
			{title: "Orphaned jobs", about: "Jobs per hour that had to leave a silent machine.", unit: "none",
				lines: []line{{`sum(increase(berth_scheduler_orphaned_jobs_total[1h]))`, "jobs"}}},
			{title: "Maintenance", about: "Machines per hour that windows have closed, and returned.", unit: "none",
				lines: []line{
					{`sum(increase(berth_scheduler_maintenance_closed_total[1h]))`, "closed"},
					{`sum(increase(berth_scheduler_maintenance_returned_total[1h]))`, "returned"},
				}},
		}},
	},
}

var controlBoard = dashboard{
	uid: "berth-control-plane", title: "Berth: control plane", about: "The processes of berthd and their dependencies.",
	rows: []row{
		{"Dependencies", []panel{
			{title: "Dependencies", about: "Share of the replicas that a dependency answers.", unit: "percentunit",
				lines: []line{{`avg by (dependency) (berth_dependency_up)`, "{{dependency}}"}}},
			{title: "Latency", about: "The latency that determines the limit of calls.", unit: "s",
				lines: []line{{`max by (dependency) (berth_dependency_latency_seconds)`, "{{dependency}}"}}},
			{title: "Waiting calls", about: "Calls that wait for the limit, of all replicas.", unit: "none",
				lines: []line{{`sum by (dependency, class) (berth_dependency_queued) > 0`, "{{dependency}} {{class}}"}}},
			{title: "Calls in flight", about: "Of all replicas, and the sum of their limits.", unit: "none",
				lines: []line{
					{`sum by (dependency) (berth_dependency_in_flight)`, "{{dependency}}"},
					{`sum by (dependency) (berth_dependency_limit)`, "limit of {{dependency}}"},
				}},
			{title: "Calls given up", about: "Per second, after a wait for the limit.", unit: "ops",
				lines: []line{{`sum by (dependency, class) (rate(berth_dependency_rejected_total[$__rate_interval])) > 0`, "{{dependency}} {{class}}"}}},
			{title: "Repeats", about: "Repeats of failed calls per second: made, and postponed for want of budget.", unit: "ops",
				lines: []line{
					{`sum by (dependency) (rate(berth_retries_total[$__rate_interval]))`, "{{dependency}} made"},
					{`sum by (dependency) (rate(berth_retries_refused_total[$__rate_interval]))`, "{{dependency}} postponed"},
				}},
		}},
		{"Calls", []panel{
			{title: "Calls by status", about: "Per second, of all routes.", unit: "reqps",
				lines: []line{{`sum by (status) (rate(berth_http_request_seconds_count[$__rate_interval]))`, "{{status}}"}}},
			{title: "Slowest routes", about: "99th percentile of the ten slowest routes. Streams and long polls take as long as their clients want.", unit: "s",
				lines: []line{{`topk(10, histogram_quantile(0.99, sum by (le, method, route) (rate(berth_http_request_seconds_bucket[$__rate_interval]))))`,
					"{{method}} {{route}}"}}},
			{title: "Wrong tokens", about: "Calls per second without a valid token.", unit: "reqps",
				lines: []line{{`sum by (caller, status) (rate(berth_http_wrong_tokens_total[$__rate_interval]))`, "{{caller}} {{status}}"}}},
		}},
		{"Work behind the calls", []panel{
			{title: "Ended and not settled", about: "Jobs that ended over a second ago and are still shown as running.", unit: "none",
				lines: []line{{`max(berth_admission_unsettled)`, "jobs"}}},
			{title: "Members in wait", about: "Activities that wait for running members.", unit: "none",
				lines: []line{{`sum by (state) (berth_waiters)`, "{{state}}"}}},
			{title: "Repairs", about: "Per second, by kind.", unit: "ops",
				lines: []line{{`topk(10, sum by (kind) (rate(berth_scheduler_repairs_total[$__rate_interval])))`, "{{kind}}"}}},
			{title: "Delay of the leader's data", about: "Age of the oldest transaction that keeps the leader from newer rows.", unit: "s",
				lines: []line{{`max(berth_scheduler_feed_lag_seconds)`, "delay"}}},
			{title: "Webhooks", about: "Calls per second by result, and calls that are still to be made.", unit: "none",
				lines: []line{
					{`sum by (result) (rate(berth_webhooks_total[$__rate_interval]))`, "{{result}} per second"},
					{`max(berth_webhooks_waiting)`, "to be made"},
				}},
			{title: "Delay of webhooks", about: "Delay of the call that is overdue by the most.", unit: "s",
				lines: []line{{`max(berth_webhooks_overdue_seconds)`, "delay"}}},
		}},
		{"Processes", []panel{
			{title: "CPU", about: "Cores in use by each replica.", unit: "none",
				lines: []line{{`rate(process_cpu_seconds_total[$__rate_interval]) and on (instance) berth_build_info`, "{{instance}}"}}},
			{title: "Memory", about: "Resident memory of each replica.", unit: "bytes",
				lines: []line{{`process_resident_memory_bytes and on (instance) berth_build_info`, "{{instance}}"}}},
			{title: "Open files", about: "Share of the limit; each connection is one.", unit: "percentunit",
				lines: []line{{`process_open_fds / process_max_fds and on (instance) berth_build_info`, "{{instance}}"}}},
			{title: "Days of the certificate", about: "Until the end of the certificate that the replica serves.", unit: "d", stat: true,
				lines: one(`(min(berth_tls_certificate_end_seconds) - time()) / 86400`)},
			{title: "Object store", about: "Free share of an object store in a folder.", unit: "percentunit", stat: true,
				lines: one(`min(berth_object_store_free_ratio)`)},
		}},
	},
}

var cloudBoard = dashboard{
	uid: "berth-cloud", title: "Berth: clouds", about: "Machines that Berth launches in clouds, their cost, and refusals of the clouds.",
	rows: []row{
		{"Now", []panel{
			{title: "Machines at work", about: "Launches whose agents have joined.", unit: "none", stat: true,
				lines: one(`max(berth_cloud_launches{state="serving"})`)},
			{title: "On their way", about: "Launches whose agents have not joined.", unit: "none", stat: true,
				lines: one(`sum(max by (state) (berth_cloud_launches{state=~"requested|sent|running"}))`)},
			{title: "Unresolved", about: "Launches that may have created an instance which the cloud does not show.", unit: "none", stat: true,
				lines: one(`max(berth_cloud_launches{state="unresolved"})`)},
			{title: "Longest termination", about: "Time for which a cloud has been asked to terminate an instance that has not ended.", unit: "s", stat: true,
				lines: one(`max(berth_cloud_launch_state_seconds{state="terminating"})`)},
			{title: "Largest share spent", about: "Of the tenants with a limit: settled and reserved spend over the limit of the period.", unit: "percentunit", stat: true,
				lines: one(`max(sum by (tenant) (max by (tenant, kind) (berth_cloud_spend_dollars{kind=~"reserved|settled"})) / on (tenant) max by (tenant) (berth_cloud_spend_dollars{kind="limit"}))`)},
			{title: "Waits for an admin", about: "Scopes that clouds refuse until credentials, rights or settings are corrected.", unit: "none", stat: true,
				lines: one(`sum(max by (scope) (berth_cloud_breakers_lasting))`)},
		}},
		{"Launches", []panel{
			{title: "Launches by state", about: "Launches that are not settled.", unit: "none",
				lines: []line{{`max by (state) (berth_cloud_launches)`, "{{state}}"}}},
			{title: "Longest time in a state", about: "Of states that a launch leaves without work on the machine.", unit: "s",
				lines: []line{{`max by (state) (berth_cloud_launch_state_seconds{state=~"requested|sent|unresolved|running|terminating"})`, "{{state}}"}}},
			{title: "Delay of launches", about: "Time from the request of a launch to its first call of the cloud.", unit: "s",
				lines: quantiles("berth_cloud_launch_delay_seconds", "")},
			{title: "Decisions of the scaler", about: "Per hour: machines launched, requests refused, machines drained, undrained and stopped.", unit: "none",
				lines: []line{{`sum by (kind) (increase(berth_cloud_decisions_total[1h]))`, "{{kind}}"}}},
			{title: "Refusals of clouds", about: "Scopes that are not tried now after a refusal: an offering without capacity, a provider, or a pool.", unit: "none",
				lines: []line{
					{`max by (scope) (berth_cloud_breakers_open)`, "{{scope}}"},
					{`max by (scope) (berth_cloud_breakers_lasting)`, "{{scope}}, until corrected"},
				}},
			{title: "Sweeps", about: "Per hour, by provider: complete sweeps for instances that no launch needs, and sweeps that failed.", unit: "none",
				lines: []line{{`sum by (provider, result) (increase(berth_cloud_sweeps_total[1h]))`, "{{provider}}, {{result}}"}}},
			{title: "Credentials of machines", about: "Machines by the condition of their credential, and those in contact whose renewal is overdue.", unit: "none",
				lines: []line{
					{`max by (state) (berth_machine_credentials)`, "{{state}}"},
					{`max(berth_machine_renewals_overdue)`, "overdue and in contact"},
				}},
		}},
		{"Spend in the present period", []panel{
			{title: "Share of the limit", about: "Settled and reserved spend over the limit, of the ten tenants with the largest shares.", unit: "percentunit",
				lines: []line{{`topk(10, sum by (tenant) (max by (tenant, kind) (berth_cloud_spend_dollars{kind=~"reserved|settled"})) / on (tenant) max by (tenant) (berth_cloud_spend_dollars{kind="limit"}))`, "{{tenant}}"}}},
			{title: "Spend and limit", about: "Settled and reserved spend of the ten tenants with the most, tenants below them included, and their limits.", unit: "currencyUSD",
				lines: []line{
					{`topk(10, sum by (tenant) (max by (tenant, kind) (berth_cloud_spend_dollars{kind=~"reserved|settled"})))`, "{{tenant}}"},
					{`max by (tenant) (berth_cloud_spend_dollars{kind="limit"})`, "limit of {{tenant}}"},
				}},
			{title: "Reserved", about: "Spend that launches have reserved and that is not settled, of the ten tenants with the most.", unit: "currencyUSD",
				lines: []line{{`topk(10, max by (tenant) (berth_cloud_spend_dollars{kind="reserved"}))`, "{{tenant}}"}}},
		}},
	},
}
