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
	"berth/wire"
)

// wantNoOldCopies retries and fires a pipeline with a final step while replicas of both versions
// run. The old one, which does not know final steps, must answer the retry with an error that names
// the remedy; each submitted copy must have its final step.
func (u *upgrade) wantNoOldCopies() {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.t.Context(), patience)
	defer cancel()
	clean := u.job("clean", "exit", "0")
	clean.Final = true
	file := spec.Pipeline{Kind: string(berth.KindPipeline), Name: "final", Jobs: map[string]spec.Job{"work": u.job("work", "exit", "0"), "clean": clean}}
	newer := u.r.all[1].api
	first, _, err := newer.SubmitPipeline(ctx, file, berth.NewSecret())
	if err != nil {
		u.t.Fatal(err)
	}
	u.wantFinalLast(first.ID)
	status, text := u.post(u.r.all[0], "/v1/jobs/"+string(first.ID)+"/retry")
	fmt.Printf("a retry at the old replica: %d %s\n", status, text)
	if status != http.StatusServiceUnavailable || !strings.Contains(text, "upgrade this berthd") {
		u.t.Errorf("the old replica answered the retry with %d %s", status, text)
	}
	again, err := newer.Retry(ctx, first.ID, client.RetryOptions{})
	if err != nil {
		u.t.Fatal(err)
	}
	u.wantFinalLast(again.ID)
	soon := spec.Instant{Time: time.Now().UTC().Add(2 * time.Second).Truncate(time.Second)}
	if _, _, err := newer.CreateSchedule(ctx, spec.Schedule{Name: "final", At: &soon, Pipeline: &file}); err != nil {
		u.t.Fatal(err)
	}
	var fired berth.JobID
	until(u.t, "a new replica fires the schedule", func(ctx context.Context) error {
		s, err := newer.Schedule(ctx, "final", 1)
		if err != nil || len(s.Fires) != 1 || s.Fires[0].Job == nil {
			return fmt.Errorf("%+v, %w", s.Fires, err)
		}
		fired = *s.Fires[0].Job
		return nil
	})
	u.wantFinalLast(fired)
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

// wantFinalLast waits for the success of a pipeline, and checks that its final step started last.
func (u *upgrade) wantFinalLast(id berth.JobID) {
	u.t.Helper()
	u.becomes(id, berth.Succeeded)
	job, err := u.r.all[1].api.Job(u.t.Context(), id) // an old replica does not show conditions
	if err != nil {
		u.t.Fatal(err)
	}
	steps := map[string]wire.Step{}
	for _, s := range job.Steps {
		steps[s.Name] = s
		u.done = append(u.done, s.Job)
	}
	work, clean := steps["work"], steps["clean"]
	if !clean.Final || work.FinishedAt == nil || clean.StartedAt == nil || clean.StartedAt.Before(*work.FinishedAt) {
		u.t.Errorf("pipeline %s has the steps %+v", id, job.Steps)
	}
}
