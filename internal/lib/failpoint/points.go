package failpoint

// Process is the process with the failpoint. Each role of the control plane counts as a
// process of its own, even if one berthd runs several.
type Process string

// The processes that have failpoints.
const (
	API    Process = "api"
	Leader Process = "leader"
	Worker Process = "worker" // of workflows and their steps
	Agent  Process = "agent"
)

// Point is one failpoint.
type Point struct {
	Name    string
	Process Process
	Step    string // L1 to L9, the steps of a job's life
	Stands  string // the place: before or after an act
}

// Points lists all failpoints, in the order of a job's life.
var Points = []Point{
	{"api.submit.before", API, "L1", "before the job's row is committed"},
	{"api.submit.after", API, "L1", "after the job's row is committed, before the reply"},
	{"api.cancel.before", API, "L1", "before a cancel is committed"},
	{"api.cancel.after", API, "L1", "after a cancel is committed, before its poke and the reply"},
	{"leader.clock.before", Leader, "L1", "before Temporal is told when a schedule fires, or to forget it"},
	{"leader.clock.after", Leader, "L1", "after Temporal was told when a schedule fires, before the row says so"},
	{"worker.fire.before", Worker, "L1", "before a time of a schedule is decided"},
	{"worker.fire.after", Worker, "L1",
		"after a time of a schedule was decided, its job's row committed, before Temporal knows"},
	{"leader.fire.after", Leader, "L1", "after one of the times that no clock tells of was decided, before the next"},
	{"api.fire.between", API, "L1", "after a fire by hand is due, before it is decided"},
	{"dispatch.start.before", API, "L2", "before a workflow is started"},
	{"dispatch.start.after", API, "L2", "after a workflow was started"},
	{"worker.reserve.before", Worker, "L2", "before the row becomes queued"},
	{"worker.reserve.after", Worker, "L2", "after the row became queued or was read again, before the workflow knows"},
	{"worker.tend.before", Worker, "L2", "before a look at a parent, and what follows from its children, is committed"},
	{"worker.tend.after", Worker, "L2",
		"after what follows from a parent's children was committed, before the workflow knows"},
	{"worker.expand.before", Worker, "L2", "before elements of an array are committed, in the transaction"},
	{"worker.expand.after", Worker, "L2", "after elements of an array are committed, before anybody is told"},
	{"leader.list.before", Leader, "L2", "after the list of an array is read, before its elements are committed"},
	{"leader.list.after", Leader, "L2", "after the list of an array is committed, before the next one is read"},
	{"leader.commit.before", Leader, "L3", "before a batch of placements is committed"},
	{"leader.commit.after", Leader, "L3", "after a batch of placements is committed, before anybody is told"},
	{"leader.repair.before", Leader, "L3", "before a batch that begins a gang anew is committed, in its transaction"},
	{"leader.repair.after", Leader, "L3",
		"after a batch that begins a gang anew is committed, before the steps' parents are told"},
	{"leader.yield.after", Leader, "L3",
		"after room that was kept for the repair of a gang is given up, before another one is placed there"},
	{"leader.poke.after", Leader, "L4", "after everybody concerned by a batch was told"},
	{"dispatch.poke.before", Leader, "L4", "before a poke is signalled to its workflow"},
	{"dispatch.poke.after", Leader, "L4", "after a poke was signalled to its workflow"},
	{"api.register.before", API, "L4", "before a machine's registration is committed"},
	{"api.register.after", API, "L4", "after a machine's registration is committed, before the reply"},
	{"worker.wait.after", Worker, "L4", "after the token of a waiter is noted, before the activity has returned"},
	{"agent.claim.before", Agent, "L4", "before work is claimed"},
	{"api.claim.before", API, "L4", "before a claim is committed"},
	{"api.claim.after", API, "L4", "after a claim is committed, before the reply"},
	{"agent.claim.after", Agent, "L4", "after work was claimed, before anything is made for it"},
	{"agent.pull.before", Agent, "L5", "before the image is made ready"},
	{"agent.pull.after", Agent, "L5", "after the image was made ready"},
	{"agent.input.before", Agent, "L5", "before an input is fetched"},
	{"agent.input.after", Agent, "L5", "after an input was put in place"},
	{"agent.restore.before", Agent, "L5", "before the files of a checkpoint are fetched"},
	{"agent.restore.fetched", Agent, "L5",
		"after the files of a checkpoint were fetched, before they are put in place"},
	{"agent.restore.placed", Agent, "L5", "after a checkpoint was put in place, before that is noted"},
	{"agent.restore.after", Agent, "L5", "after it was noted which checkpoint is in place"},
	{"agent.create.before", Agent, "L6", "before the container is created"},
	{"agent.create.after", Agent, "L6", "after the container was created, before the rank is prepared"},
	{"agent.give.before", Agent, "L6",
		"before folders of outputs in a created container are given to its user"},
	{"agent.give.after", Agent, "L6",
		"after folders of outputs were given to the container's user, before the rank is prepared"},
	{"agent.start.before", Agent, "L6", "before the container is started"},
	{"agent.start.after", Agent, "L6", "after the container was started, before anybody is told"},
	{"agent.report.before", Agent, "L6", "before a call that reports is sent"},
	{"api.report.before", API, "L6", "before reports of a machine are committed"},
	{"api.report.after", API, "L6", "after reports of a machine are committed, before the reply"},
	{"api.gang.before", API, "L6",
		"before the start of a gang is committed, its last rank prepared, in the transaction"},
	{"api.gang.after", API, "L6", "after the start of a gang is committed, before any machine is told"},
	{"agent.report.after", Agent, "L6", "after a call that reports was answered, before the answer is taken in"},
	{"agent.file.before", Agent, "L7", "before a file of a checkpoint is stored"},
	{"agent.file.after", Agent, "L7", "after a file of a checkpoint was stored"},
	{"agent.manifest.before", Agent, "L7", "before the manifest of a checkpoint is stored"},
	{"agent.manifest.after", Agent, "L7", "after the manifest of a checkpoint was stored"},
	{"agent.checkpoint.before", Agent, "L7", "before a checkpoint is registered"},
	{"api.checkpoint.before", API, "L7", "before a checkpoint's row is committed"},
	{"api.checkpoint.after", API, "L7",
		"after a checkpoint's row is committed, before older ones are deleted and the reply"},
	{"agent.checkpoint.after", Agent, "L7", "after a checkpoint was registered"},
	{"agent.log.before", Agent, "L7", "before a piece of a log is sent"},
	{"api.log.before", API, "L7", "before a piece of a log is stored"},
	{"api.log.between", API, "L7", "after the object of a piece of a log is stored, before its row"},
	{"api.log.after", API, "L7", "after a piece of a log and its row are stored, before the reply"},
	{"agent.log.after", Agent, "L7", "after a piece of a log was stored, before that is noted"},
	{"agent.stop.before", Agent, "L7", "before a container is signalled to stop, its intent noted"},
	{"agent.stop.after", Agent, "L7", "after a container was signalled to stop"},
	{"api.join.before", API, "L7", "before the agent's connection to a session of a user is recorded"},
	{"api.join.after", API, "L7", "after the agent's connection to a session of a user is recorded, before the reply"},
	{"agent.exec.before", Agent, "L7", "before the command of a session is started"},
	{"agent.exec.after", Agent, "L7", "after the command of a session was started and noted"},
	{"leader.hang.before", Leader, "L7", "before the order to stop a hung gang is committed, in the transaction"},
	{"leader.hang.after", Leader, "L7", "after hung gangs were ordered to stop, before that is logged"},
	{"agent.evidence.before", Agent, "L7", "before the evidence of a hung member is sent"},
	{"agent.evidence.after", Agent, "L7", "after the evidence of a hung member is stored"},
	{"worker.cancel.before", Worker, "L7", "before a cancel from Temporal's side is committed"},
	{"worker.cancel.after", Worker, "L7", "after a cancel from Temporal's side is committed"},
	{"worker.stop.before", Worker, "L7", "before the rest of a gang is ordered to stop"},
	{"worker.stop.after", Worker, "L7", "after the rest of a gang was ordered to stop, before the workflow knows"},
	{"worker.escalate.before", Worker, "L7", "before the kill of what did not stop in time is ordered"},
	{"worker.escalate.after", Worker, "L7",
		"after the kill of what did not stop in time was ordered, before the workflow knows"},
	{"leader.lost.before", Leader, "L7", "before the ranks of a silent machine are orphaned"},
	{"leader.lost.after", Leader, "L7",
		"after the ranks of a silent machine were orphaned, before their jobs are poked"},
	{"agent.exit.before", Agent, "L8", "after a container's end was seen, before it is told or sealed"},
	{"agent.seal.before", Agent, "L8", "after a rank's logs and checkpoints are stored, before its seal is told"},
	{"agent.seal.after", Agent, "L8", "after the server has a rank's seal on record"},
	{"worker.end.before", Worker, "L8", "before the activity that waited for a member is completed with its end"},
	{"agent.output.before", Agent, "L8", "before an output is stored"},
	{"agent.output.stored", Agent, "L8", "after an output was stored, before it is registered"},
	{"api.output.before", API, "L8", "before an output's row is committed"},
	{"api.output.after", API, "L8", "after an output's row is committed, before the reply"},
	{"agent.output.after", Agent, "L8", "after an output was registered"},
	{"worker.settle.before", Worker, "L9", "before a verdict is committed"},
	{"worker.settle.after", Worker, "L9", "after a verdict is committed, before the workflow knows"},
	{"worker.tell.before", Worker, "L9", "after the end of a job is committed, before its parent is told"},
	{"worker.judge.before", Worker, "L9",
		"after the end of a needed job is committed, before its dependents are judged"},
	{"worker.judge.after", Worker, "L9", "after the dependents of an ended job were judged, before the workflow knows"},
	{"worker.keep.before", Worker, "L9",
		"before the end of a gang's attempt is committed, and what is kept for its repair, in the transaction"},
	{"worker.keep.after", Worker, "L9",
		"after the end of a gang's attempt is committed, and what is kept for its repair, before anybody is told"},
	{"agent.remove.before", Agent, "L9", "before a container and its folder are removed"},
	{"agent.remove.after", Agent, "L9", "after a container and its folder were removed, before that is told"},
}

// CloudPoints lists the failpoints in the life of a machine of a cloud, which no job hits.
var CloudPoints = []Point{
	{"worker.launch.before", Worker, "L1", "before the send of a launch is committed"},
	{"worker.launch.committed", Worker, "L1", "after the send of a launch is committed, before the call to the cloud"},
	{"worker.launch.created", Worker, "L1", "after the cloud answered a create, before the answer is committed"},
	{"worker.launch.changed", Worker, "L1", "after a change of a launch is committed, before the workflow knows"},
	{"worker.terminate.after", Worker, "L9", "after the cloud answered a terminate, before that is committed"},
}

// ScalerPoints lists the failpoints of the leader's scaler. They are hit by jobs that wait for machines of clouds.
var ScalerPoints = []Point{
	{"leader.launch.before", Leader, "L3", "before the launches of a request of the scaler are committed"},
	{"leader.launch.after", Leader, "L3", "after the launches of a request are committed, before the scaler knows"},
}
