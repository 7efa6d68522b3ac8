package agent

import (
	"context"
	"time"

	"berth/failure"
	"berth/wire"
)

// phase is a station in a member's life on this machine. The table below is the
// whole life; doc.go draws it.
type phase string

const (
	phaseClaim       phase = "claim"
	phaseLocate      phase = "locate"
	phasePull        phase = "pull"
	phaseWorkdir     phase = "workdir"
	phaseInputs      phase = "inputs"
	phaseRestore     phase = "restore"
	phaseCreate      phase = "create"
	phaseGive        phase = "give"
	phaseCheck       phase = "check"
	phaseReady       phase = "ready"
	phaseStart       phase = "start"
	phaseWatch       phase = "watch"
	phaseAcknowledge phase = "acknowledge"
	phaseFence       phase = "fence"
	phaseSeal        phase = "seal"
	phaseRecord      phase = "record"
	phaseForget      phase = "forget"
	phaseRemove      phase = "remove"

	phaseGone phase = "gone" // nothing of the member is left on this machine
	phaseLeft phase = "left" // this process ends its work; the container stays
)

// ends reports whether no phase follows.
func (p phase) ends() bool { return p == phaseGone || p == phaseLeft }

// worker does the work of one phase. Do returns the phase that follows, which the
// table must list. An error interrupts the member: its context has ended, or the
// work cannot go on.
type worker interface {
	Do(ctx context.Context) (next phase, err error)
}

// scope names the context of a phase, and thereby the events that interrupt the phase.
type scope string

const (
	// underMember ends when the member is abandoned or disowned, or the agent stops.
	// Orders to stop are the phase's own affair.
	underMember scope = "member"
	// underPreparation also ends at an order to stop, and after Timing.PreparePatience.
	underPreparation scope = "preparation"
	// underMachine ends only when the agent stops: the removal of leftovers has no time limit.
	underMachine scope = "machine"
)

// phaseRow is one row of the table.
type phaseRow struct {
	phase phase
	scope scope
	stage wire.StageName // shown to users during the phase; "": none
	does  string
	next  []phase
}

// phases is the life of a member, in the order of a member without trouble.
var phases = []phaseRow{
	{phaseClaim, underMember, "", "asks the server to confirm the allocation",
		[]phase{phaseLocate, phaseFence, phaseForget}},
	{phaseLocate, underMember, "", "opens the folder; finds an earlier process's container",
		[]phase{phasePull, phaseGive, phaseWatch, phaseFence}},
	{phasePull, underPreparation, wire.StagePulling, "makes the image usable",
		[]phase{phaseWorkdir, phaseFence}},
	{phaseWorkdir, underPreparation, wire.StageFetching, "copies the job's code into its folder",
		[]phase{phaseInputs, phaseFence}},
	{phaseInputs, underPreparation, wire.StageFetching, "puts the job's inputs into their folders",
		[]phase{phaseRestore, phaseFence}},
	{phaseRestore, underPreparation, wire.StageRestoring, "puts the newest sound checkpoint in place",
		[]phase{phaseCreate, phaseFence}},
	{phaseCreate, underPreparation, wire.StageCreating, "creates the network of the job and the container",
		[]phase{phaseGive, phaseFence}},
	{phaseGive, underPreparation, wire.StageCreating, "gives the folders of outputs to the container's user",
		[]phase{phaseCheck, phaseFence}},
	{phaseCheck, underPreparation, wire.StageCreating, "runs the operator's check; proves that the GPUs are free",
		[]phase{phaseReady, phaseFence}},
	{phaseReady, underMember, "", "waits for the order to start, if one is needed",
		[]phase{phaseStart, phaseFence}},
	{phaseStart, underMember, "", "starts the container",
		[]phase{phaseWatch, phaseFence}},
	{phaseWatch, underMember, "", "carries out orders and limits until the container ends",
		[]phase{phaseAcknowledge}},
	{phaseAcknowledge, underMember, "", "waits until the server knows that the member ran",
		[]phase{phaseFence}},
	{phaseFence, underMember, "", "ends stray processes of at_most_one work",
		[]phase{phaseSeal}},
	{phaseSeal, underMember, "", "reports the exit; stores log, checkpoints and outputs",
		[]phase{phaseRecord}},
	{phaseRecord, underMember, "", "waits until the server has the seal on record",
		[]phase{phaseForget}},
	{phaseForget, underMember, "", "waits for the order to forget the member", nil},
	{phaseRemove, underMachine, "", "removes the container, its folder and its network",
		[]phase{phaseGone}},
}

// row returns a phase's row of the table.
func (p phase) row() phaseRow {
	for _, r := range phases {
		if r.phase == p {
			return r
		}
	}
	return phaseRow{phase: p}
}

// result carries the member's exit from the phase that determines the exit to the phases that
// report it.
type result struct {
	exit      failure.Exit
	imageRoot bool // see failure.Exit; unknown for a container that this process did not create
}

// end determines the exit, and returns the phase that follows any exit.
func (r *result) end(x failure.Exit) (phase, error) {
	r.exit = x
	return phaseFence, nil
}

// notStarted determines the exit of a member whose process never ran.
func (r *result) notStarted(cause failure.ExitCause, message string) (phase, error) {
	return r.end(notStarted(cause, message))
}

// notStarted returns the exit of a member whose container never ran.
func notStarted(cause failure.ExitCause, message string) failure.Exit {
	return failure.Exit{Cause: cause, Message: message, FinishedAt: time.Now().UTC()}
}
