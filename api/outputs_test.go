package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"berth"
	"berth/spec"
	"berth/wire"
)

// store puts an output of the rank that the agent holds, and registers it.
func (a *agent) store(job wire.Job, name, content string) (put, registered answer) {
	a.t.Helper()
	key := berth.OutputKey(job.Tenant, job.ID, a.run.Attempt, 0, name)
	put = a.call(string(a.machine), "PUT", "/agent/v1/objects/"+key, content)
	address, _ := archived(a.t, content)
	registered = a.post("outputs", wire.OutputReport{
		AgentBoot: a.boot, Epoch: a.epoch, Alloc: a.run.Alloc, Job: job.ID, Attempt: a.run.Attempt,
		Output: wire.StoredOutput{Name: name, Address: address, Files: 1, Bytes: 5, Stored: int64(len(content)), SHA256: strings.Repeat("0", 64)},
	}, nil)
	return put, registered
}

func TestOutputsAreListedAndDownloadedByTheirOwner(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.joinMachine("m1")
	job := s.submit("alice", func(j *spec.Job) { j.Outputs = []spec.Output{{Name: "model", Path: "/out"}} })
	a.take(job.ID)
	for range 2 { // an answer that is lost is asked for again
		if put, registered := a.store(job, "model", "weights"); put.status >= 300 || registered.status >= 300 {
			t.Fatalf("%d %s, %d %s", put.status, put.body, registered.status, registered.body)
		}
	}
	if _, got := a.store(job, "other", "x"); got.status != http.StatusBadRequest {
		t.Errorf("an output that the job does not declare: %d %s", got.status, got.body)
	}
	path := "/v1/jobs/" + string(job.ID) + "/outputs"
	var list wire.Page[wire.StoredOutput]
	if got := s.call("alice", "GET", path, ""); json.Unmarshal([]byte(got.body), &list) != nil || len(list.Items) != 1 || list.Items[0].Name != "model" || list.Items[0].Stored != 7 {
		t.Errorf("listed %s", got.body)
	}
	if got := s.call("alice", "GET", path+"/model", ""); got.body != "weights" || got.header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("downloaded %q, %v", got.body, got.header)
	}
	for who, at := range map[string]string{"bob": path + "/model", "alice": path + "/none", "viewer": path + "/model?attempt=2", "admin": path + "/model?member=1"} {
		if got := s.call(who, "GET", at, ""); got.status != http.StatusNotFound {
			t.Errorf("%s gets %s: %d %s", who, at, got.status, got.body)
		}
	}
	// A superseded attempt may still send, and changes nothing.
	s.exec(`UPDATE allocations SET state = 'released' WHERE id = $1`, int64(a.run.Alloc))
	s.exec(`UPDATE jobs SET attempt = 2, version = version + 1 WHERE id = $1`, job.ID)
	put, registered := a.store(job, "model", "late")
	if put.status != http.StatusNotFound || registered.status != http.StatusConflict {
		t.Errorf("late: %d %s, %d %s", put.status, put.body, registered.status, registered.body)
	}
	if got := s.call("alice", "GET", path+"/model", ""); got.body != "weights" {
		t.Errorf("afterwards %q", got.body)
	}
}

func TestOutputsThatCannotBeAreRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	for outputs, field := range map[string]string{
		`[{"name":"../x","path":"/out"}]`:                     "outputs[0].name",
		`[{"name":"a","path":"out"}]`:                         "outputs[0].path",
		`[{"name":"a","path":"/"}]`:                           "outputs[0].path",
		`[{"name":"a","path":"/out/../etc"}]`:                 "outputs[0].path",
		`[{"name":"a","path":"/proc/self"}]`:                  "outputs[0].path",
		`[{"name":"a","path":"/run/secrets/TOKEN"}]`:          "outputs[0].path",
		`[{"name":"a","path":"/x"},{"name":"a","path":"/y"}]`: "outputs[1].name",
		`[{"name":"a","path":"/x","to":"/y"}]`:                "outputs[0].to",
	} {
		got := s.call("alice", "POST", "/v1/jobs", fmt.Sprintf(`{"name":"a","image":"b","outputs":%s}`, outputs))
		if got.status != 422 || len(got.problem.Errors) == 0 || got.problem.Errors[0].Field != field {
			t.Errorf("%s: %d %s", outputs, got.status, got.body)
		}
	}
}
