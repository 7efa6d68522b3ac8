package spec

import "berth"

// JobPatch changes a live job. A nil field stays as it is.
type JobPatch struct {
	Priority  *Priority          `json:"priority,omitempty"`
	Labels    map[string]*string `json:"labels,omitempty" doc:"merged into the job's labels; null removes one"`
	TimeLimit *Duration          `json:"time_limit,omitempty" doc:"per attempt, from the next order on; 0s is none"`
}

// Validate returns all faults of the request at once, or nil.
func (p JobPatch) Validate() []berth.FieldError {
	v := &validation{}
	v.require(p.Priority != nil || p.Labels != nil || p.TimeLimit != nil, "", "the patch changes nothing",
		"priority, labels, time_limit")
	v.require(len(p.Labels) <= MaxLabels, "labels", "too many labels", "at most 64")
	for _, k := range sortedKeys(p.Labels) {
		if value := p.Labels[k]; value != nil { // a removal accepts any key, also a malformed one
			v.label(k, *value)
		}
	}
	return v.faults
}
