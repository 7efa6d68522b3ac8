package wire

import (
	"strings"

	"berth"
)

// Search attributes for operators who look for jobs in Temporal, in addition to
// berth.AttributeTenant and berth.AttributeKind. AttributeOutcome is set when a workflow ends,
// the others when it starts.
const (
	AttributeJobName = "JobName"
	AttributeUser    = "User"    // submitter, such as alice or schedule:nightly
	AttributeOutcome = "Outcome" // final status of the job: succeeded, failed or canceled
)

// Described is the part of a job that a workflow's memo shows in Temporal's UI.
type Described struct {
	Job    berth.JobID
	Name   string
	Image  string // "": a pipeline
	Tenant berth.TenantID
	API    string // address of the API; "": the memo has no link
}

// Memo returns the memo: name, image, tenant, and the address of the job in the API as link.
// Fields without a value are left out.
func (d Described) Memo() map[string]any {
	memo := map[string]any{}
	link := ""
	if d.API != "" {
		link = strings.TrimSuffix(d.API, "/") + "/v1/jobs/" + string(d.Job)
	}
	for field, value := range map[string]string{
		"name": d.Name, "image": d.Image, "tenant": string(d.Tenant), "link": link,
	} {
		if value != "" {
			memo[field] = value
		}
	}
	return memo
}
