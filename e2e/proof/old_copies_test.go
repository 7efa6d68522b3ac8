package proof_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"berth"
	"berth/api/client"
	"berth/spec"
)

// wantNoOldCopies retries and fires a job with alternatives while replicas of both versions run. The old one, which
// does not know alternatives, must answer the retry with an error that names the remedy; each submitted copy must have
// its alternatives.
func (u *upgrade) wantNoOldCopies() {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.t.Context(), patience)
	defer cancel()
	file := u.job("chooses", "exit", "0")
	file.Alternatives = []spec.Alternative{{After: spec.Duration(time.Hour), Memory: new(spec.MiB(64))}}
	newer := u.r.all[1].api
	first, _, err := newer.Submit(ctx, file, berth.NewSecret())
	if err != nil {
		u.t.Fatal(err)
	}
	u.wantAlternatives(first.ID)
	status, text := u.post(u.r.all[0], "/v1/jobs/"+string(first.ID)+"/retry")
	fmt.Printf("a retry at the old replica: %d %s\n", status, text)
	if status != http.StatusServiceUnavailable || !strings.Contains(text, "upgrade this berthd") {
		u.t.Errorf("the old replica answered the retry with %d %s", status, text)
	}
	again, err := newer.Retry(ctx, first.ID, client.RetryOptions{})
	if err != nil {
		u.t.Fatal(err)
	}
	u.wantAlternatives(again.ID)
	soon := spec.Instant{Time: time.Now().UTC().Add(2 * time.Second).Truncate(time.Second)}
	if _, _, err := newer.CreateSchedule(ctx, spec.Schedule{Name: "chooses", At: &soon, Job: &file}); err != nil {
		u.t.Fatal(err)
	}
	var fired berth.JobID
	until(u.t, "a new replica fires the schedule", func(ctx context.Context) error {
		s, err := newer.Schedule(ctx, "chooses", 1)
		if err != nil || len(s.Fires) != 1 || s.Fires[0].Job == nil {
			return fmt.Errorf("%+v, %w", s.Fires, err)
		}
		fired = *s.Fires[0].Job
		return nil
	})
	u.wantAlternatives(fired)
}

// post calls a replica once, without the repeats of the client.
func (u *upgrade) post(p *replica, path string) (status int, text string) {
	u.t.Helper()
	r, err := http.NewRequestWithContext(u.t.Context(), http.MethodPost, "http://"+p.listen+path, nil)
	if err != nil {
		u.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+p.token)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		u.t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		u.t.Fatal(err)
	}
	return res.StatusCode, string(raw)
}

// wantAlternatives waits for the success of a job, and checks that it has its alternatives.
func (u *upgrade) wantAlternatives(id berth.JobID) {
	u.t.Helper()
	u.becomes(id, berth.Succeeded)
	u.done = append(u.done, id)
	job, err := u.r.all[1].api.Job(u.t.Context(), id) // an old replica does not show them
	if err != nil {
		u.t.Fatal(err)
	}
	if job.Spec == nil || len(job.Spec.Alternatives) != 1 {
		u.t.Errorf("job %s has the file %+v, want one alternative", id, job.Spec)
	}
}
