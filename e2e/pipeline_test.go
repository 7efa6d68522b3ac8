package e2e_test

import (
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"berth"
	apiclient "berth/api/client"
	"berth/e2e/commands"
	"berth/spec"
	"berth/wire"
)

// The claims share one stack, as those about jobs do.
func TestPipelines(t *testing.T) {
	t.Parallel()
	s := start(t, quick, "m0", "m1")
	for _, claim := range []struct {
		says string
		test func(*testing.T, *stack)
	}{
		{"a graph of 200 steps starts each after its needs, whatever becomes of its coordinator", runsGraph},
		{"a step takes what another has left", handsOn},
		{"a step that says cache is not run again, and the next takes what it left", skipsUnchanged},
		{"a pipeline whose third step failed is resumed without its first two", resumesPipeline},
		{"the command resumes a failed run with a fixed file, and takes over the steps that succeeded", resumesByCommand},
		{"a nested pipeline runs after what it needs, fails its pipeline, and is resumed half done", resumesNested},
	} {
		t.Run(claim.says, func(t *testing.T) { claim.test(t, s) })
	}
}

func (s *stack) submitPipeline(t *testing.T, p spec.Pipeline) berth.JobID {
	t.Helper()
	job, _, err := s.api.SubmitPipeline(t.Context(), p, berth.NewSecret())
	if err != nil {
		t.Fatal(err)
	}
	return job.ID
}

func runsGraph(t *testing.T, s *stack) {
	const steps = 200
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	p := spec.Pipeline{Kind: "pipeline", Name: "graph", Jobs: map[string]spec.Job{}}
	for i := range steps {
		j := jobSpec("", "exit", "0")
		for range random.IntN(4) {
			if need := fmt.Sprintf("s%d", random.IntN(max(1, i))); i > 0 && !slices.Contains(j.Needs, need) {
				j.Needs = append(j.Needs, need)
			}
		}
		p.Jobs[fmt.Sprintf("s%d", i)] = j
	}
	id := s.submitPipeline(t, p)
	for _, some := range []int{20, 100} {
		until(t, fmt.Sprintf("%d steps have ended", some), func() bool { return s.job(t, id).Tally.Ended() >= some })
		if err := s.temporal.TerminateWorkflow(t.Context(), berth.JobWorkflowID(id), "", "test"); err != nil {
			t.Fatal(err)
		}
	}
	done := s.ends(t, id, berth.Succeeded)
	for _, step := range done.Steps {
		if j := s.job(t, step.Job); j.Attempt != 1 {
			t.Errorf("step %s ran %d times", step.Name, j.Attempt)
		}
	}
	s.wantAfterNeeds(t, id)
}

// wantAfterNeeds reads from the events that no step was scheduled before all it
// needs had succeeded.
func (s *stack) wantAfterNeeds(t *testing.T, pipeline berth.JobID) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var needs, early int
	err = conn.QueryRow(t.Context(), `
		SELECT count(*), count(*) FILTER (WHERE n.at IS NULL OR n.at > e.at)
		FROM jobs j
		JOIN job_events e ON e.job = j.id AND e.to_state = 'queued'
		JOIN deps d ON d.job = j.id
		LEFT JOIN job_events n ON n.job = d.needs AND n.to_state = 'succeeded'
		WHERE j.parent = $1`, pipeline).Scan(&needs, &early)
	if err != nil || needs == 0 || early != 0 {
		t.Errorf("of %d needs %d had not succeeded when the step was queued, %v", needs, early, err)
	}
}

func handsOn(t *testing.T, s *stack) {
	train, use := jobSpec("", "write-file", "/workspace/model.pt", "weights"), jobSpec("", "read-file", "/data/model.pt")
	train.Outputs = []spec.Output{{Name: "model", Path: "/workspace/model.pt"}}
	use.Inputs, use.Needs = []spec.Input{{From: "job:train/model", To: "/data"}}, []string{"train"}
	id := s.submitPipeline(t, spec.Pipeline{Kind: "pipeline", Name: "hands-on", Jobs: map[string]spec.Job{"train": train, "use": use}})
	for _, step := range s.ends(t, id, berth.Succeeded).Steps {
		var printed []string
		if err := s.api.Logs(t.Context(), step.Job, apiclient.LogsQuery{}, func(l wire.LogLine) error { printed = append(printed, l.Text); return nil }); err != nil {
			t.Fatal(err)
		}
		if step.Name == "use" && !slices.Equal(printed, []string{"weights"}) {
			t.Errorf("it prints %q", printed)
		}
	}
}

func skipsUnchanged(t *testing.T, s *stack) {
	line := func(printed string) spec.Pipeline {
		train, use := jobSpec("", "write-file", "/workspace/model.pt", "cached weights"), jobSpec("", "read-file", "/data/"+printed)
		train.Outputs = []spec.Output{{Name: "model", Path: "/workspace/model.pt"}}
		use.Inputs, use.Needs = []spec.Input{{From: "job:train/model", To: "/data"}}, []string{"train"}
		train.Cache, use.Cache = true, true
		return spec.Pipeline{Kind: "pipeline", Name: "again", Jobs: map[string]spec.Job{"train": train, "use": use}}
	}
	first := s.ends(t, s.submitPipeline(t, line("model.pt")), berth.Succeeded)
	for _, step := range s.ends(t, s.submitPipeline(t, line("model.pt")), berth.Succeeded).Steps {
		i := slices.IndexFunc(first.Steps, func(x wire.Step) bool { return x.Name == step.Name })
		if step.CachedFrom == nil || *step.CachedFrom != first.Steps[i].Job {
			t.Errorf("step %s shows as %+v", step.Name, step)
		}
		if j := s.job(t, step.Job); j.Attempt != 0 || j.CachedFrom == nil {
			t.Errorf("step %s ran %d times", step.Name, j.Attempt)
		}
		if step.Name != "train" {
			continue
		}
		list, err := s.api.Outputs(t.Context(), step.Job)
		if err != nil || len(list.Items) != 1 {
			t.Fatal(list, err)
		}
		body, err := s.api.Output(t.Context(), step.Job, list.Items[0])
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, body); err != nil || n != list.Items[0].Stored {
			t.Errorf("its output has %d bytes, want %d, %v", n, list.Items[0].Stored, err)
		}
		body.Close()
	}
	changed := s.ends(t, s.submitPipeline(t, line("./model.pt")), berth.Succeeded) // another command, the same file
	for _, step := range changed.Steps {
		if skipped := step.CachedFrom != nil; skipped != (step.Name == "train") {
			t.Errorf("step %s: skipped %t", step.Name, skipped)
		}
		var printed []string
		if err := s.api.Logs(t.Context(), step.Job, apiclient.LogsQuery{}, func(l wire.LogLine) error { printed = append(printed, l.Text); return nil }); err != nil {
			t.Fatal(err)
		}
		if step.Name == "use" && !slices.Equal(printed, []string{"cached weights"}) {
			t.Errorf("it prints %q", printed)
		}
	}
}

func resumesPipeline(t *testing.T, s *stack) {
	line := func(third string) spec.Pipeline {
		p := spec.Pipeline{Kind: "pipeline", Name: "line", Jobs: map[string]spec.Job{}}
		for i, code := range []string{"0", "0", third, "0"} {
			j := jobSpec("", "exit", code)
			if i > 0 {
				j.Needs = []string{fmt.Sprintf("s%d", i)}
			}
			p.Jobs[fmt.Sprintf("s%d", i+1)] = j
		}
		return p
	}
	id := s.submitPipeline(t, line("1"))
	failed := s.ends(t, id, berth.Failed)
	var got []string
	for _, step := range failed.Steps {
		got = append(got, step.Name+" "+string(step.Status))
	}
	if want := "[s1 succeeded s2 succeeded s3 failed s4 canceled]"; fmt.Sprint(got) != want {
		t.Errorf("steps are %v", got)
	}
	record(t, "pipeline", s.history(t, id))
	again, err := s.api.Retry(t.Context(), id, apiclient.RetryOptions{Failed: true})
	if err != nil {
		t.Fatal(err)
	}
	resumed := s.ends(t, again.ID, berth.Failed) // it fails the same way
	if len(resumed.Steps) != 2 || resumed.Steps[0].Name != "s3" || resumed.Steps[1].Name != "s4" {
		t.Errorf("resumed it has the steps %+v", resumed.Steps)
	}
	for i, name := range []string{"s1", "s2"} {
		if j := s.job(t, failed.Steps[i].Job); j.Attempt != 1 {
			t.Errorf("%s ran %d times", name, j.Attempt)
		}
	}
}

func resumesNested(t *testing.T, s *stack) {
	prep, load, fit, report := jobSpec("", "write-file", "/workspace/data", "data"), jobSpec("", "exit", "0"), jobSpec("", "exit", "1"), jobSpec("", "exit", "0")
	prep.Outputs = []spec.Output{{Name: "data", Path: "/workspace/data"}}
	fit.Inputs, fit.Needs = []spec.Input{{From: "job:prep/data", To: "/data"}}, []string{"load"}
	train := spec.Job{Needs: []string{"prep"}, Jobs: map[string]spec.Job{"load": load, "fit": fit}}
	report.Needs = []string{"train"}
	id := s.submitPipeline(t, spec.Pipeline{Kind: "pipeline", Name: "nested", Jobs: map[string]spec.Job{"prep": prep, "train": train, "report": report}})
	steps := func(id berth.JobID) (list []string, jobs map[string]berth.JobID) {
		jobs = map[string]berth.JobID{}
		for _, step := range s.job(t, id).Steps {
			list, jobs[step.Name] = append(list, step.Name+" "+string(step.Status)), step.Job
		}
		return list, jobs
	}
	s.ends(t, id, berth.Failed)
	outer, jobs := steps(id)
	inner, _ := steps(jobs["train"])
	if got, want := fmt.Sprint(outer, inner), "[prep succeeded train failed report canceled] [load succeeded fit failed]"; got != want {
		t.Errorf("steps are %s, want %s", got, want)
	}
	if j := s.job(t, jobs["train"]); j.StartedAt == nil || j.StartedAt.Before(*s.job(t, jobs["prep"]).FinishedAt) {
		t.Errorf("the nested pipeline began at %v, before what it needs had ended", j.StartedAt)
	}
	s.wantAfterNeeds(t, jobs["train"])
	again, err := s.api.Retry(t.Context(), id, apiclient.RetryOptions{Failed: true})
	if err != nil {
		t.Fatal(err)
	}
	s.ends(t, again.ID, berth.Failed) // it fails the same way
	outer, jobs = steps(again.ID)
	inner, inside := steps(jobs["train"])
	if got, want := fmt.Sprint(outer, inner), "[train failed report canceled] [fit failed]"; got != want {
		t.Errorf("resumed steps are %s, want %s", got, want)
	}
	if j := s.job(t, inside["fit"]); j.Attempt != 1 {
		t.Errorf("fit ran %d times", j.Attempt)
	}
}

// fixable is a pipeline file: prep leaves a file, fit runs a command on it, and report needs fit.
const fixable = `
kind: pipeline
name: fixable
jobs:
  prep:
    image: testprog
    command: [write-file, /workspace/data, weights]
    outputs: [{name: data, path: /workspace/data}]
  sweep:
    image: testprog
    needs: [prep]
    command: [exit, "0"]
    array: {size: 3}
  fit:
    image: testprog
    needs: [sweep]
    command: [read-file, %s]
    inputs: [{from: "job:prep/data", to: /data}]
  report:
    image: testprog
    needs: [fit]
    command: [exit, "0"]
`

func resumesByCommand(t *testing.T, s *stack) {
	dir := t.TempDir()
	if err := commands.Build(dir, commands.Shipped, "berth"); err != nil {
		t.Fatal(err)
	}
	command := func(args ...string) (stdout, stderr string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "berth"), args...)
		cmd.Env = append(os.Environ(), "BERTH_URL="+s.url, "BERTH_TOKEN="+s.token, "XDG_CONFIG_HOME="+filepath.Join(dir, "config"))
		var out, errs strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			t.Fatalf("berth %q: %v\n%s%s", args, err, out.String(), errs.String())
		}
		return strings.TrimSpace(out.String()), errs.String()
	}
	file := filepath.Join(dir, "fixable.yaml")
	write := func(path string) {
		t.Helper()
		if err := os.WriteFile(file, fmt.Appendf(nil, fixable, path), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("/data/nothing")
	first, _ := command("pipeline", "submit", file, "-o", "name")
	failed := s.ends(t, berth.JobID(first), berth.Failed)

	write("/data/data")
	second, note := command("pipeline", "submit", file, "--resume", first, "-o", "name")
	if !strings.Contains(note, "taken over: prep, sweep; to run: fit, report") {
		t.Errorf("the resume says %q", note)
	}
	resumed := s.ends(t, berth.JobID(second), berth.Succeeded)
	if resumed.RetryOf == nil || *resumed.RetryOf != failed.ID {
		t.Errorf("the resume is a retry of %v, want %s", resumed.RetryOf, failed.ID)
	}
	ran := map[string]int{}
	for _, step := range resumed.Steps {
		ran[step.Name] = s.job(t, step.Job).Attempt
		i := slices.IndexFunc(failed.Steps, func(x wire.Step) bool { return x.Name == step.Name })
		if step.Name == "prep" && (step.CachedFrom == nil || *step.CachedFrom != failed.Steps[i].Job) {
			t.Errorf("prep is taken over from %v", step.CachedFrom)
		}
	}
	if want := map[string]int{"prep": 0, "sweep": 0, "fit": 1, "report": 1}; !maps.Equal(ran, want) {
		t.Errorf("steps ran %v times, want %v", ran, want)
	}
	// The new run has its own row for the output that it took over.
	if list, _ := command("outputs", "list", second); !strings.Contains(list, "prep") || !strings.Contains(list, "data") {
		t.Errorf("the outputs of the resume are %s", list)
	}
	command("outputs", "pull", second, "data", "--dir", filepath.Join(dir, "pulled"))
	got, err := os.ReadFile(filepath.Join(dir, "pulled", "prep", "data", "data"))
	if err != nil || string(got) != "weights" {
		t.Errorf("the output that was taken over holds %q, %v", got, err)
	}
}
