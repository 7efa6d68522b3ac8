package api_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// picky asks for 8 H100, and for 2 GPUs of a model after a wait.
func picky(after time.Duration, gpus int, model string) func(*spec.Job) {
	return func(j *spec.Job) {
		j.Resources = spec.Resources{GPUs: 8000, GPUType: spec.StringList{"H100"}}
		j.Alternatives = []spec.Alternative{{After: spec.Duration(after), GPUs: new(spec.MilliGPU(1000 * gpus)), GPUType: &spec.StringList{model}}}
	}
}

func pickyJob(after time.Duration, gpus int, model string) spec.Job {
	j := spec.Job{Name: "train", Image: "y"}
	picky(after, gpus, model)(&j)
	return j
}

// codesOf lists the codes of the blockers of each hardware.
func codesOf(list []wire.HardwareFit) (codes []string) {
	for _, a := range list {
		var each []string
		for _, b := range a.Blockers {
			each = append(each, b.Code)
		}
		codes = append(codes, strings.Join(each, " "))
	}
	return codes
}

func TestAPlanComparesEachAlternative(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 16, 65536, 2) // A100
	p, err := s.as("alice").Plan(t.Context(), pickyJob(time.Hour, 2, "A100"))
	if err != nil {
		t.Fatal(err)
	}
	if got := codesOf(p.Alternatives); !slices.Equal(got, []string{"unsatisfiable", ""}) {
		t.Errorf("the alternatives are blocked by %q", got)
	}
	wait := time.Hour
	if p.StartsNow || len(p.Fit.Lacking) > 0 || p.EstimatedStart == nil || time.Until(*p.EstimatedStart) > wait ||
		time.Until(*p.EstimatedStart) < wait-30*time.Minute || p.Blockers[0].Code != "no_room" {
		t.Errorf("after an hour it may start: %+v", p)
	}
	if a := p.Alternatives[1]; a.Number != 1 || a.After.Std() != wait || a.Resources.GPUType[0] != "A100" || !strings.Contains(a.Room, "room now") {
		t.Errorf("the alternative is %+v", a)
	}
	if p, err = s.as("alice").Plan(t.Context(), pickyJob(0, 2, "A100")); err != nil || !p.StartsNow || len(p.Blockers) > 0 || p.EstimatedStart == nil {
		t.Errorf("without a wait: %+v, %v", p, err)
	}
	if p, err = s.as("alice").Plan(t.Context(), pickyJob(0, 2, "L40S")); err != nil || p.StartsNow || len(p.Fit.Lacking) == 0 {
		t.Errorf("no machine has any: %+v, %v", p, err)
	}
	if p, err = s.as("alice").Plan(t.Context(), spec.Job{Name: "x", Image: "y"}); err != nil || p.Alternatives != nil {
		t.Errorf("a job without alternatives: %+v, %v", p.Alternatives, err)
	}
}

func TestASubmitIsRefusedIfNoAlternativeCouldStart(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 16, 65536, 2)
	body := func(gpus, model string) string {
		return `{"name": "x", "image": "y", "resources": {"gpus": 8, "gpu_type": "H100"}, "alternatives": [{"gpus": ` + gpus + `, "gpu_type": "` + model + `"}]}`
	}
	a := s.call("alice", "POST", "/v1/jobs", body("4", "A100"))
	if a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, "resources.gpu_type") || !strings.Contains(a.body, "alternatives[0].gpus") ||
		!strings.Contains(a.body, "nor does an alternative fit") {
		t.Errorf("got %d %s", a.status, a.body)
	}
	if a := s.call("alice", "POST", "/v1/jobs", body("2", "A100")); a.status != http.StatusCreated || !strings.Contains(a.body, `"alternative":0`) {
		t.Errorf("got %d %s", a.status, a.body)
	}
	if a := s.call("alice", "POST", "/v1/jobs", body("1.5", "A100")); a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, "alternatives[0].gpus") {
		t.Errorf("got %d %s", a.status, a.body)
	}
	// A quota below the first choice leaves the other.
	s.exec(`UPDATE tenants SET limit_gpu_milli = 2000 WHERE id = 'a'`)
	if a := s.call("alice", "POST", "/v1/jobs", body("2", "A100")); a.status != http.StatusCreated {
		t.Errorf("got %d %s", a.status, a.body)
	}
}

func TestExplainComparesEachAlternative(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 16, 65536, 2)
	job := s.submit("alice", picky(time.Hour, 2, "A100"))
	s.exec(`UPDATE jobs SET state = 'queued', version = version + 1, actor = 'workflow' WHERE id = $1`, job.ID)
	e, err := s.as("alice").Explain(t.Context(), job.ID)
	if err != nil {
		t.Fatal(err)
	}
	if got := codesOf(e.Alternatives); !slices.Equal(got, []string{"unsatisfiable", ""}) || blocked(e, "unsatisfiable") || !blocked(e, "no_room") {
		t.Errorf("blocked by %+v, the alternatives by %q", e.Blockers, got)
	}
	first, second := e.Alternatives[0], e.Alternatives[1]
	if !first.InForce || first.OpensAt != nil || first.Resources.GPUs != 8000 || *first.Resources.CPUs != 1000 {
		t.Errorf("resources: %+v", first)
	}
	if second.InForce || second.OpensAt == nil || e.EstimatedStart == nil || !e.EstimatedStart.Equal(*second.OpensAt) {
		t.Errorf("the alternative: %+v, and the job starts at %v", second, e.EstimatedStart)
	}
	s.exec(`UPDATE jobs SET alternatives_from = alternatives_from - interval '1 hour' WHERE id = $1`, job.ID)
	e, err = s.as("alice").Explain(t.Context(), job.ID)
	if err != nil || e.Alternatives[1].OpensAt != nil || len(e.Blockers) != 0 {
		t.Errorf("after an hour: %+v, %v", e, err)
	}
	list, err := s.as("alice").Jobs(t.Context(), client.JobsQuery{})
	if err != nil || len(list.Items) != 1 || list.Items[0].Alternative == nil || *list.Items[0].Alternative != 0 {
		t.Errorf("the list has %+v, %v", list.Items, err)
	}
	s.exec(`UPDATE jobs SET state = 'scheduled', version = version + 1, attempt = 1, alternative = 1, class = alternatives[2] WHERE id = $1`, job.ID)
	s.exec(`INSERT INTO attempts (job, attempt, leader_epoch, alternative) VALUES ($1, 1, 1, 1)`, job.ID)
	s.exec(`INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli) VALUES ($1, 1, 0, 'm1', 1, 1000, 2048, 0, 2000)`, job.ID)
	e, err = s.as("alice").Explain(t.Context(), job.ID)
	if err != nil || e.Status != berth.Scheduled || !strings.Contains(e.Summary, "with alternative 1 of its file") || e.Alternatives != nil {
		t.Errorf("of a placed job: %+v, %v", e, err)
	}
}
