// Package agent runs on every machine. It keeps the machine's session with the
// control plane, owns the containers of the members placed there, and stores their
// results: exits, logs, checkpoints and outputs.
//
// It decides nothing about placement, links no database driver, and holds no
// credential but the machine's own token, and the key that renews it (credentials). It touches
// only containers that carry its cluster's and its machine's labels, so several agents may share one engine.
//
// The one rule to know: only an order, a limit of the job itself or a verdict of
// the control plane stops a container. An unreachable control plane and an agent
// that stops leave containers alone; the next agent process adopts them.
//
// Each sync carries the machine's whole set: reservations to claim, and orders. The
// Supervisor starts a member for each allocation of the set and for each container of
// an earlier process, and passes orders on. A member is one goroutine that goes
// through the phases below. Each phase is a type in a file of its own, and returns the
// phase that follows:
//
//	phase       ends with   stage     does                                                   next
//	----------- ----------- --------- ------------------------------------------------------ -------------------------
//	claim       member                asks the server to confirm the allocation              locate, fence, forget
//	locate      member                opens the folder; finds an earlier process's container pull, give, watch, fence
//	pull        preparation pulling   makes the image usable                                 workdir, fence
//	workdir     preparation fetching  copies the job's code into its folder                  inputs, fence
//	inputs      preparation fetching  puts the job's inputs into their folders               restore, fence
//	restore     preparation restoring puts the newest sound checkpoint in place              create, fence
//	create      preparation creating  creates the network of the job and the container       give, fence
//	give        preparation creating  gives the folders of outputs to the container's user   check, fence
//	check       preparation creating  runs the operator's check; proves that the GPUs are free ready, fence
//	ready       member                waits for the order to start, if one is needed         start, fence
//	start       member                starts the container                                   watch, fence
//	watch       member                carries out orders and limits until the container ends acknowledge
//	acknowledge member                waits until the server knows that the member ran       fence
//	fence       member                ends stray processes of at_most_one work               seal
//	seal        member                reports the exit; stores log, checkpoints and outputs  record
//	record      member                waits until the server has the seal on record          forget
//	forget      member                waits for the order to forget the member
//	remove      machine               removes the container, its folder and its network      gone
//
// The stage is shown to users while the job is scheduled. Phases without one are either short,
// or have a status of their own; stageBoard sends the stages.
//
// gone ends a member that has left nothing here: the Supervisor reports that to the
// server. left ends the goroutine alone: the container stays. A phase that determines
// the member's exit without a run goes to fence, so that every exit is sealed and
// recorded in the same way.
//
// An event from outside ends the context of a phase. The second column names that
// context, and with it the events:
//
//	event                            member       preparation   machine
//	-------------------------------  -----------  ------------  ---------
//	abandoned: order to forget,      remove       remove        goes on
//	  or another machine's work
//	disowned: the server does not    left         left          goes on
//	  know the allocation
//	the agent stops                  left         left          left
//	order to stop or to kill         by phase     fence         goes on
//	preparation takes too long       goes on      fence         goes on
//
// In detail:
//
//	a debug job                            locate takes over the folder of the failed member that it
//	                                       holds, see keptFolders; workdir, inputs and restore have
//	                                       nothing to copy
//	an order to stop before the claim      claim goes to fence: there is no container
//	an order to stop in ready or start     fence, once the container surely does not run
//	an order to stop in watch              signals until the container ends; see stopPlan
//	a container of an earlier process      claim, locate, then give or watch, with the
//	                                       stopping cause that the earlier process noted
//	an end on record, container still here claim, forget, remove
//	a container that has vanished          locate or watch determine the exit
//	an engine that does not answer         each phase repeats its call; pull, create and
//	                                       start give up after a patience, watch never
//	an engine without an answer for one    the others go on; its member stays in locate with
//	  container, at the agent's start      a warning, and reports no end
//	the fence of at_most_one work          start waits for a fresh lease; fence kills the
//	                                       processes left, and notes an end by the deadman
//	a server that does not answer          claim, seal and record wait; watch goes on
//
// Three helpers run concurrently with the phases, from watch until seal has taken their last
// result: logShipper, checkpointUploader and usageSampler. Of a job with spec.stall, hangWatch sends
// reports and evidence next to them. The member's pending report
// is in reporter, its standing orders in orders. The outbox sends the reports of all
// members, one call at a time.
//
// A notice of the cloud that it ends this machine reaches the members first and the server second; see
// noticeBoard. Such a notice signals containers to save, and stops none: the drain that follows does.
//
// Failpoints around a call of the runtime lie in a decorator, in failpoints.go. Most lie in the
// phases. Their moments are changes of the member's own state: before the lease is checked for a
// start, after the folder is removed as well as the container, between the files of a checkpoint
// and its manifest. Around single calls they would be hit at other moments, and once for each try.
package agent
