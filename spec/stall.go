package spec

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// StallPolicy defines when a running job counts as hung: no member has shown one of Signs for
// After. It replaces StallTimeout, which judges each member alone and counts all signs.
type StallPolicy struct {
	After      Duration    `json:"after" doc:"longest time in which no member shows a sign of life"`
	StartLimit Duration    `json:"start_limit,omitempty" doc:"longest time to the first sign; default 3 times after"`
	Signs      []StallSign `json:"signs,omitempty" doc:"progress, checkpoint, log, cpu, gpu; default: the first three"`
}

// startFactor is the default of StartLimit in multiples of After: a program loads its code, its data
// and its model before it shows the first sign.
const startFactor = 3

// Limit returns the longest time without a sign of life. shown states whether the member has shown
// a sign yet: After applies if so, and StartLimit otherwise.
func (p StallPolicy) Limit(shown bool) Duration {
	switch {
	case shown:
		return p.After
	case p.StartLimit > 0:
		return p.StartLimit
	}
	return startFactor * p.After
}

// StallSign is a sign of life of a member.
type StallSign string

// The signs of life.
const (
	SignProgress   StallSign = "progress"   // the progress file has changed
	SignCheckpoint StallSign = "checkpoint" // a further step is complete in the checkpoint folder
	SignLog        StallSign = "log"        // the container has printed a line
	SignCPU        StallSign = "cpu"        // the container uses more than a hundredth of a core
	SignGPU        StallSign = "gpu"        // a GPU works: see GPUUse.Works in package wire
)

// stallSigns lists all signs in the order of messages.
var stallSigns = []StallSign{SignProgress, SignCheckpoint, SignLog, SignCPU, SignGPU}

// Counts reports whether a sign is one of the policy's.
func (p StallPolicy) Counts(s StallSign) bool { return slices.Contains(p.Signs, s) }

// SignsText lists the signs for a message: "progress, checkpoint or log".
func (p StallPolicy) SignsText() string {
	words := make([]string, len(p.Signs))
	for i, s := range p.Signs {
		words[i] = string(s)
	}
	if n := len(words); n > 1 {
		return strings.Join(words[:n-1], ", ") + " or " + words[n-1]
	}
	return strings.Join(words, "")
}

// withDefaults returns a copy with signs. The default are the signs that a program gives itself:
// progress, log and, for a job with checkpoints, checkpoint. CPU and GPU use are not among them,
// since a hung collective operation keeps both busy.
func (p *StallPolicy) withDefaults(checkpoints bool) *StallPolicy {
	if p == nil {
		return nil
	}
	filled := *p
	if p.Signs == nil {
		filled.Signs = []StallSign{SignProgress, SignLog}
		if checkpoints {
			filled.Signs = []StallSign{SignProgress, SignCheckpoint, SignLog}
		}
	}
	return &filled
}

// validate checks the policy of job s after WithDefaults.
func (p *StallPolicy) validate(v *validation, s Job) {
	const least, leastGPU, most = 10 * time.Second, 30 * time.Second, 8760 * time.Hour
	if p == nil {
		return
	}
	v.require(s.StallTimeout == 0, "stall", "is set, and stall_timeout as well",
		"one of both: stall judges all members together, stall_timeout each one by itself")
	after := fmt.Sprintf("%s is out of range", p.After)
	if p.After == 0 {
		after = "required"
	}
	v.require(p.After.Std() >= least && p.After.Std() <= most, "stall.after", after,
		fmt.Sprintf("%s to %s", Duration(least), Duration(most)))
	v.require(!p.Counts(SignGPU) || p.After.Std() >= leastGPU || p.After.Std() < least, "stall.after",
		fmt.Sprintf("%s is too short for the sign gpu, which is measured every 10s", p.After),
		fmt.Sprintf("%s to %s", Duration(leastGPU), Duration(most)))
	v.require(p.StartLimit == 0 || p.StartLimit >= p.After && p.StartLimit.Std() <= most, "stall.start_limit",
		fmt.Sprintf("%s is out of range", p.StartLimit), fmt.Sprintf("stall.after to %s", Duration(most)))
	v.require(len(p.Signs) > 0, "stall.signs", "is empty", "one or more signs, or leave it out")
	known := make([]string, len(stallSigns))
	for i, sign := range stallSigns {
		known[i] = string(sign)
	}
	for i, sign := range p.Signs {
		field := fmt.Sprintf("stall.signs[%d]", i)
		if !slices.Contains(stallSigns, sign) {
			v.require(false, field, fmt.Sprintf("%.40q is not known", sign), strings.Join(known, ", "))
			continue
		}
		v.require(!slices.Contains(p.Signs[:i], sign), field, fmt.Sprintf("%s is listed twice", sign), "each sign once")
	}
	v.require(s.Resources.GPUs > 0 || len(s.Groups) > 0 || !p.Counts(SignGPU), "stall.signs",
		"lists gpu, but resources.gpus is not set", "set resources.gpus, or leave gpu out")
	for i := range s.Alternatives {
		v.require(s.ResourcesOf(i+1).GPUs > 0 || s.Resources.GPUs == 0 || !p.Counts(SignGPU), "stall.signs",
			fmt.Sprintf("lists gpu, but alternatives[%d] has no GPUs", i), "GPUs in each alternative, or leave gpu out")
	}
	v.require(s.Checkpoint != nil || !p.Counts(SignCheckpoint), "stall.signs",
		"lists checkpoint, but checkpoint is not set", "set checkpoint, or leave it out")
}
