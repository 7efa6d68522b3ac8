package wire

import (
	"fmt"
	"strings"
	"time"

	"berth"
)

// StageName names the step of a member's preparation on its machine.
type StageName string

// The stages of a scheduled member, in order. Machines report the ones from pulling to
// creating; the server derives the others from the rows.
const (
	StageClaiming  StageName = "claiming"  // the machine has not claimed the allocation yet
	StagePreparing StageName = "preparing" // claimed; the machine has reported no further detail
	StagePulling   StageName = "pulling"   // the image
	StageFetching  StageName = "fetching"  // the code, or an input
	StageRestoring StageName = "restoring" // a checkpoint
	StageCreating  StageName = "creating"  // the container
	StageStarting  StageName = "starting"  // the container exists and waits for the order to start, or starts
)

// Reported reports whether machines report the stage.
func (n StageName) Reported() bool {
	switch n {
	case StagePulling, StageFetching, StageRestoring, StageCreating:
		return true
	case StageClaiming, StagePreparing, StageStarting:
		return false
	default:
		return false // of a newer version
	}
}

// Stage is the present step of a member that is being prepared. It is shown to users, and
// nothing is decided by it.
type Stage struct {
	Name    StageName `json:"name" doc:"claiming, preparing, pulling, fetching, restoring, creating or starting"`
	Input   *int      `json:"input,omitempty" doc:"while fetching: index of the input; absent for the code"`
	Percent *int      `json:"percent,omitempty" doc:"completed share, where it is known"`
	Try     int       `json:"try,omitempty" doc:"number of failed tries in a row; absent: the last one succeeded"`
	Problem string    `json:"problem,omitempty" doc:"error of the last try, while it is being repeated"`
}

// Alike reports whether two stages differ at most in their percentage and number of tries.
func (s Stage) Alike(o Stage) bool {
	return s.Name == o.Name && s.Problem == o.Problem && (s.Input == nil) == (o.Input == nil) &&
		(s.Input == nil || *s.Input == *o.Input)
}

// String describes the stage for users: "pulling 40 %", "fetching input 0 (try 9: no such host)".
func (s Stage) String() string {
	text := string(s.Name)
	switch {
	case s.Name == StageFetching && s.Input != nil:
		text = fmt.Sprintf("fetching input %d", *s.Input)
	case s.Name == StageFetching:
		text = "fetching the code"
	}
	if s.Percent != nil {
		text += fmt.Sprintf(" %d %%", *s.Percent)
	}
	if s.Problem != "" {
		text += fmt.Sprintf(" (try %d: %s)", s.Try, s.Problem)
	}
	return text
}

// JobStage is the stage of a scheduled job: the one of the member that is furthest behind.
type JobStage struct {
	Stage
	Since   *time.Time      `json:"since,omitempty" doc:"start of the stage, where it is known"`
	Member  int             `json:"member" doc:"the member furthest behind, whose stage this is"`
	Machine berth.MachineID `json:"machine"`
	Members int             `json:"members" doc:"members of the job"`
	Ready   int             `json:"ready" doc:"members with a container, which wait for the others"`
}

// String describes the stage for users. A gang waits for its member that is furthest behind.
func (s JobStage) String() string {
	text := s.Stage.String()
	if s.Name == StageClaiming {
		text = fmt.Sprintf("waiting for %s to claim it", s.Machine)
	}
	if s.Members <= 1 {
		return text
	}
	var b strings.Builder
	if s.Ready > 0 && s.Ready < s.Members {
		b.WriteString("waiting for the gang: ")
	}
	fmt.Fprintf(&b, "member %d on %s: %s", s.Member, s.Machine, text)
	if s.Ready > 0 {
		fmt.Fprintf(&b, " (%d of %d ready)", s.Ready, s.Members)
	}
	return b.String()
}

// StageReport carries the stages of a machine's members that have changed. A lost report
// costs only a moment of a display: the next one carries the present stage.
type StageReport struct {
	AgentBoot string `json:"agent_boot"`
	Epoch     int64  `json:"epoch"`
	// Seq rises with each report of this agent process; an older report changes nothing.
	Seq    int64         `json:"seq"`
	Stages []MemberStage `json:"stages"`
}

// MemberStage is the stage of one member.
type MemberStage struct {
	Alloc berth.AllocationID `json:"alloc"`
	Stage Stage              `json:"stage"`
}

// HostQuestion asks whether the host of a job's input exists by the name servers of the control
// plane, after the name servers of the machine have denied it.
type HostQuestion struct {
	AgentBoot string             `json:"agent_boot"`
	Epoch     int64              `json:"epoch"`
	Alloc     berth.AllocationID `json:"alloc"` // a member that this machine prepares
	Host      string             `json:"host"`
}

// HostAnswer is the answer to a HostQuestion.
type HostAnswer struct {
	// Missing reports that the name servers answered that the host does not exist, or has no
	// address. A timeout or a failure is not reported as missing.
	Missing bool `json:"missing"`
}
