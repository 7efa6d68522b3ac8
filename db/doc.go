// Package db holds every SQL statement of Berth, hand-written over pgx: one
// statement per decision with its guard in WHERE, lists as unnest, writes that
// belong together in one transaction.
//
// It never decides policy and never talks to Temporal or a machine. Package placement
// decides where jobs run, before a transaction. Package lifecycle decides how a job goes on,
// as functions that db calls inside the transaction: db reads the rows under locks, calls
// the function, writes the result, and publishes hints after the commit
// (docs/adr/0038-decisions-are-pure-functions.md).
//
// # Stores
//
// DB holds one store for each aggregate, with the methods that read and write its rows.
// The doc comment of a store names the rows it owns and the rows it leaves alone. A
// public method opens one transaction, runs functions over it, commits, and publishes
// hints after the commit. Stores never call each other: where two need the same
// statements in one transaction, they share unexported functions over pgx.Tx, and
// where they need the same transactions, functions over core.
//
// A file holds the methods of one store at most. These files hold methods:
//
//	Jobs        archive cancel dispatch events handles jobs jobs_reconcile list load
//	            pipeline_submit submit update waiting
//	Attempts    drain ends orders reconcile runs settle stall stuck suspend waiters waits
//	Parents     dependents lists parent parent_control parent_tell
//	Retries     array_runs retry
//	Schedules   clocks fire schedules schedules_apply
//	Queue       commit explain feed preempt repair withdraw
//	Machines    approvals blame egress engine fleet_use floors machine_history machine_losses machines_read
//	            machines_write prune reap taints
//	Pools       pools
//	Launches    launches launches_breakers launches_prune launches_read launches_sweep
//	Scaling     scaling scaling_ends scaling_idle scaling_notes scaling_quote
//	Burst       burst
//	Offers      offers
//	Spend       spend spend_usage
//	Maintenance maintenance maintenance_pass maintenance_write
//	Agents      claim cloud_notice fix_image host_report machine_use register report report_refused stages
//	            stall_report sync unfinished_report unkillable
//	Tenants     submit_leases tenant_users tenants_read tenants_write usage
//	Storage     storage
//	Tokens      credentials first_token reset_token returns token_events tokens tokens_own
//	JoinTokens  join join_identity join_tokens
//	Secrets     secrets
//	Objects     checkpoints checkpoints_kept inputs objects outputs prune_outputs storage_refused
//	Chunks      chunks chunks_collect chunks_look
//	Uploads     uploads
//	Images      image_requests
//	Logs        log_start logs prune_logs unfinished
//	Outbox      notices
//	Channels    channel_messages channels
//	Leader      incarnation lease quarantine watermark
//	Cluster     admission cluster population statistics
//	Backups     backups
//	JobSessions job_sessions job_sessions_read
//	WebSessions web_sessions web_sessions_own
//	Holds       holds
//
// # Locks
//
// The one rule to know is the lock order, everywhere: leases, schedules, jobs, allocations by id, maintenance by
// id, machines by id, pools, gpu_devices by machine and index, machine_caches, machine_hosts and machine_leases by
// machine id, maintenance_machines, nominations, uploads by tenant and address, secrets, tenants by id, job_sessions.
// Rows of followed_members are locked by alloc, by statements that lock nothing else; the leader, which deletes expired
// rows after it has locked its lease, skips locked ones.
// The advisory lock of a hold's scope comes after allocations and before machines: two settlements in one array take
// turns.
// Burst_policies by tenant come before launches. Launches come after allocations and before join_tokens, and both
// before machines. Last of all come spend by tenant and day, pool_spend by pool and day, pruned_spend, and
// breakers, in this order. A transaction settles only one launch, since it would lock the spend of a second
// launch after the pool_spend of the first. The advisory lock of an offering comes after launches and before
// join_tokens. The row of cluster comes after leases, and tenant_uids come after it and before tenants. After
// machines come tokens by id, and then machine_keys. A renewal locks its key alone, and touches no token that
// another transaction has locked.
//
// Of jobs, first pipelines and arrays by id, and then the other ones by id: a parent comes
// before its elements, also where its id is the higher one.
//
// Image_requests come after jobs, and their statements lock nothing after them.
//
// Loads of chunks by job, attempt, rank and hash come after jobs, the advisory locks of storage, the checkpoints and
// the machines. Chunks by tenant and hash come after them, and last of all.
//
// Rows are locked with SELECT ... ORDER BY ... FOR NO KEY UPDATE before they are written. A
// query that locks in another order raises no error by itself. It causes deadlocks, and makes
// transactions about a hundred times slower.
package db
