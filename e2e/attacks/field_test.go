package attacks_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/activities/node/runtimetest"
	"berth/e2e/rig"
	"berth/spec"
	"berth/wire"
)

// The tenants of the attacks: attacker tries to get at the jobs of victim.
const (
	victim   berth.TenantID = "victim"
	attacker berth.TenantID = "attacker"
)

// field is a running stack with the two tenants.
type field struct {
	*rig.Stack
	t     *testing.T
	image string // of the test program, in the host's own engine

	victim, attacker, viewer string // tokens; the viewer's is of the attacker's tenant
	secret                   string // value of the victim's secret "hers"
}

// newField starts a stack with two machines on the host's own engine, each with declared GPUs.
func newField(t *testing.T) *field {
	t.Helper()
	f := &field{t: t, image: runtimetest.Image(t, ""), secret: "canary-" + berth.NewSecret()[:24]}
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("0badc0de", 8)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := rig.Start(t.Context(), rig.Options{Workshop: workshop, Berthd: []string{"--secret-key-file=" + key}})
	if s != nil {
		t.Cleanup(func() { f.close(s) })
	}
	if err != nil {
		t.Fatal(err)
	}
	f.Stack = s
	gpus := filepath.Join(t.TempDir(), "gpus.yaml")
	if err := os.WriteFile(gpus, []byte(declaredGPUs), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.JoinWith(t.Context(), 2, "--docker-host", runtimetest.DefaultHost, "--fake-gpus", gpus,
		"--trusted-images", "docker.io/library/berth-testprog", "--region", "eu"); err != nil {
		t.Fatal(err)
	}
	f.victim, f.attacker = f.token(victim, spec.RoleUser), f.token(attacker, spec.RoleUser)
	f.viewer = f.token(attacker, spec.RoleViewer)
	f.must(f.victim, "POST", "/v1/secrets", fmt.Sprintf(`{"name": "hers", "value": %q}`, f.secret))
	key64 := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("k"), 32))
	f.must(f.attacker, "POST", "/v1/secrets", fmt.Sprintf(`{"name": "WEBHOOK_SECRET", "value": "whsec_%s"}`, key64))
	return f
}

// declaredGPUs is the inventory of each machine. No program can use them.
const declaredGPUs = "- {model: H100, memory: 80GiB, count: 2}\n"

// close ends the stack and removes the containers that its agents left on the host.
func (f *field) close(s *rig.Stack) {
	if f.t.Failed() {
		logs, _ := filepath.Glob(filepath.Join(s.Dir, "*.log")) // the pattern is well-formed
		for _, path := range logs {
			f.t.Logf("%s:\n%s", path, rig.Tail(path))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), rig.Patience)
	defer cancel()
	if err := errors.Join(s.Close(), s.RemoveContainers(ctx)); err != nil {
		f.t.Errorf("clean up: %v", err)
	}
}

// on returns the field for a part of the test.
func (f *field) on(t *testing.T) *field {
	part := *f
	part.t = t
	return &part
}

// token makes a token.
func (f *field) token(tenant berth.TenantID, role spec.Role) string {
	f.t.Helper()
	made, err := f.API.CreateToken(f.t.Context(), spec.NewToken{Name: "of-" + string(tenant), Tenant: tenant, Role: role})
	if err != nil {
		f.t.Fatal(err)
	}
	return made.Secret
}

// answer is the outcome of a call.
type answer struct{ rig.Answer }

// clipped returns the beginning of the body, for messages.
func (a answer) clipped() string {
	if a.Err != nil {
		return a.Err.Error()
	}
	return string(a.Body[:min(len(a.Body), 300)])
}

// call makes one call of the API. header has names and values by turns.
func (f *field) call(token, method, path, body string, header ...string) answer {
	f.t.Helper()
	return f.callFrom("", token, method, path, body, header...)
}

// callFrom is call from a loopback address, so that one attack does not use up the patience that the
// control plane has with the address of another one.
func (f *field) callFrom(from, token, method, path, body string, header ...string) answer {
	f.t.Helper()
	h := http.Header{}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	c := rig.NewCaller(f.URL, token, from)
	defer c.Close()
	return answer{c.Call(f.t.Context(), method, path, h, []byte(body))}
}

// must makes a call that has to succeed, and returns the body. It repeats the call while the control plane is too
// busy to answer.
func (f *field) must(token, method, path, body string, header ...string) []byte {
	f.t.Helper()
	var a answer
	err := rig.Await(f.t.Context(), rig.Patience, func(context.Context) error {
		a = f.call(token, method, path, body, header...)
		if a.Status == http.StatusServiceUnavailable || a.Status == http.StatusTooManyRequests {
			return fmt.Errorf("%d %s", a.Status, a.clipped())
		}
		return nil
	})
	if err != nil || !a.Good() {
		f.t.Fatalf("%s %s: %d %s %v", method, path, a.Status, a.clipped(), err)
	}
	return a.Body
}

// job returns a job file that runs commands of the test program. more is added to it.
func (f *field) job(more map[string]any, command ...string) string {
	f.t.Helper()
	j := map[string]any{"name": "attack", "image": f.image, "command": command,
		"resources": map[string]any{"cpus": 0.1, "memory": "64MiB"}}
	for k, v := range more {
		j[k] = v
	}
	b, err := json.Marshal(j)
	if err != nil {
		f.t.Fatal(err)
	}
	return string(b)
}

// submit submits a job and returns its id.
func (f *field) submit(token string, more map[string]any, command ...string) berth.JobID {
	f.t.Helper()
	var j wire.Job
	if err := json.Unmarshal(f.must(token, "POST", "/v1/jobs", f.job(more, command...)), &j); err != nil {
		f.t.Fatal(err)
	}
	return j.ID
}

// show returns a job.
func (f *field) show(id berth.JobID) wire.Job {
	f.t.Helper()
	j, err := f.API.Job(f.t.Context(), id)
	if err != nil {
		f.t.Fatal(err)
	}
	return j
}

// ended waits for the end of a job and returns it.
func (f *field) ended(id berth.JobID) wire.Job {
	f.t.Helper()
	return f.await(id, func(j wire.Job) bool { return j.Status.Terminal() })
}

// running waits until a job runs.
func (f *field) running(id berth.JobID) wire.Job {
	f.t.Helper()
	return f.await(id, func(j wire.Job) bool { return j.Status == berth.Running || j.Status.Terminal() })
}

func (f *field) await(id berth.JobID, until func(wire.Job) bool) wire.Job {
	f.t.Helper()
	var j wire.Job
	err := rig.Await(f.t.Context(), rig.Patience, func(context.Context) (err error) {
		if j, err = f.API.Job(f.t.Context(), id); err == nil && !until(j) {
			err = fmt.Errorf("job %s is %s: %s", id, j.Status, j.Reason)
		}
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return j
}

// output runs a job to its end and returns the job and its log.
func (f *field) output(token string, more map[string]any, command ...string) (wire.Job, string) {
	f.t.Helper()
	id := f.submit(token, more, command...)
	j := f.ended(id)
	return j, f.log(token, id)
}

// log returns the whole log of a job that has ended.
func (f *field) log(token string, id berth.JobID) string {
	f.t.Helper()
	return string(f.must(token, "GET", "/v1/jobs/"+string(id)+"/logs", ""))
}

// awaitLog waits until a job has printed a text.
func (f *field) awaitLog(token string, id berth.JobID, text string) {
	f.t.Helper()
	err := rig.Await(f.t.Context(), rig.Patience, func(context.Context) error {
		log := f.log(token, id)
		if strings.Contains(log, text) {
			return nil
		}
		if j := f.show(id); j.Status.Terminal() && !strings.Contains(f.log(token, id), text) {
			f.t.Fatalf("job %s, which is to print %q, is %s (%+v) and has printed %q", id, text, j.Status, j.Reason, log)
		}
		return fmt.Errorf("job %s has printed %q", id, log)
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

// jobs counts the jobs of a tenant, at any time.
func (f *field) jobs(tenant berth.TenantID) (n int) {
	f.t.Helper()
	if err := f.DB.QueryRow(f.t.Context(), `SELECT count(*) FROM jobs WHERE tenant = $1`, tenant).Scan(&n); err != nil {
		f.t.Fatal(err)
	}
	return n
}

// scan returns the files below the stack's folder, of programs and stores, that have a text in them.
// The files of PostgreSQL, which serves Temporal too, are left out.
func (f *field) scan(text string) (found []string) {
	f.t.Helper()
	err := filepath.WalkDir(f.Dir, func(path string, d os.DirEntry, err error) error {
		if d != nil && d.IsDir() && d.Name() == "postgres" {
			return filepath.SkipDir
		}
		if err != nil || !d.Type().IsRegular() {
			return nil // a file of a machine that was removed meanwhile
		}
		b, err := os.ReadFile(path)
		if err == nil && bytes.Contains(b, []byte(text)) {
			found = append(found, strings.TrimPrefix(path, f.Dir+"/"))
		}
		return nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return found
}

// soon is the time within which an effect of at most 5 seconds must be there. make test runs on machines that are
// many times slower.
func soon() time.Duration {
	if *all {
		return 5 * time.Second
	}
	return time.Minute
}

// within fails the attack unless a condition is met in this time.
func (a *attempt) within(limit time.Duration, what string, met func() bool) time.Duration {
	a.t.Helper()
	began := time.Now()
	for !met() {
		if time.Since(began) > limit {
			a.breach("%s: not within %s", what, limit)
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	return time.Since(began)
}
