package attacks_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
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

// The tenants of the attacks: attacker tries to read and change the jobs of victim.
const (
	victim   berth.TenantID = "victim"
	attacker berth.TenantID = "attacker"
)

// field is a running stack with the two tenants.
type field struct {
	*rig.Stack
	t     *testing.T
	image string // reference of the test program's image in the host's own engine

	victim, attacker, viewer string       // tokens; viewer's tenant is attacker
	plaintext                net.Listener // of the registry that the control plane may call without TLS

	secret string // value of the victim's secret "hers"
}

// newField starts a stack with two machines on the host's own engine, each with declared GPUs.
func newField(t *testing.T) *field {
	t.Helper()
	f := &field{t: t, image: runtimetest.Image(t, ""), secret: "canary-" + berth.NewSecret()[:24]}
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("0badc0de", 8)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if f.plaintext, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.plaintext.Close() }) // the registry may have closed it
	s, err := rig.Start(t.Context(), rig.Options{
		Workshop: workshop, Berthd: []string{"--secret-key-file=" + key, "--resolve-images",
			"--registry-allow=127.0.0.0/8", "--registry-plaintext=" + f.plaintext.Addr().String()},
	})
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

// declaredGPUs is the inventory of GPUs of each machine. No program can use these GPUs.
const declaredGPUs = "- {model: H100, memory: 80GiB, count: 2}\n"

// close stops the stack and removes the containers that its agents left on the host.
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

// on returns a copy of the field that reports failures to t, the test of one attack.
func (f *field) on(t *testing.T) *field {
	part := *f
	part.t = t
	return &part
}

// token creates a token for a tenant and returns its secret.
func (f *field) token(tenant berth.TenantID, role spec.Role) string {
	f.t.Helper()
	made, err := f.API.CreateToken(f.t.Context(), spec.NewToken{
		Name: "of-" + string(tenant), Tenant: tenant, Role: role,
	})
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

// call calls the API, again while the control plane answers 503: it is slow, and has not refused the call. header
// alternates names and values.
func (f *field) call(token, method, path, body string, header ...string) answer {
	f.t.Helper()
	return f.callFrom("", token, method, path, body, header...)
}

// callFrom is call from a loopback address. The control plane limits each address that sends wrong tokens, so an
// attack with wrong tokens calls from an address of its own.
func (f *field) callFrom(from, token, method, path, body string, header ...string) (a answer) {
	f.t.Helper()
	_ = rig.Await(f.t.Context(), rig.Patience, func(context.Context) error { // after the limit, the last answer counts
		if a = f.once(from, token, method, path, body, header...); a.Status == http.StatusServiceUnavailable {
			return fmt.Errorf("%d %s", a.Status, a.clipped())
		}
		return nil
	})
	return a
}

// once is callFrom without a repetition.
func (f *field) once(from, token, method, path, body string, header ...string) answer {
	f.t.Helper()
	h := http.Header{}
	for i := 0; i+1 < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	c := rig.NewCaller(f.URL, token, from)
	defer c.Close()
	return answer{c.Call(f.t.Context(), method, path, h, []byte(body))}
}

// must makes a call that must succeed, and returns the body. It repeats the call while the control plane answers 429.
func (f *field) must(token, method, path, body string, header ...string) []byte {
	f.t.Helper()
	var a answer
	err := rig.Await(f.t.Context(), rig.Patience, func(context.Context) error {
		a = f.call(token, method, path, body, header...)
		if a.Status == http.StatusTooManyRequests {
			return fmt.Errorf("%d %s", a.Status, a.clipped())
		}
		return nil
	})
	if err != nil || !a.Good() {
		f.t.Fatalf("%s %s: %d %s %v", method, path, a.Status, a.clipped(), err)
	}
	return a.Body
}

// job returns a job file that runs a command of the test program. The fields of more are added or replace others.
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

// ended waits for the end of a job and returns the job.
func (f *field) ended(id berth.JobID) wire.Job {
	f.t.Helper()
	return f.await(id, func(j wire.Job) bool { return j.Status.Terminal() })
}

// running waits until a job runs or has ended, and returns the job.
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

// log returns the log that a job has so far.
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
			f.t.Fatalf("job %s, which is to print %q, is %s (%+v) and has printed %q",
				id, text, j.Status, j.Reason, log)
		}
		return fmt.Errorf("job %s has printed %q", id, log)
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

// jobs counts all jobs of a tenant, ended jobs included.
func (f *field) jobs(tenant berth.TenantID) (n int) {
	f.t.Helper()
	if err := f.DB.QueryRow(f.t.Context(), `SELECT count(*) FROM jobs WHERE tenant = $1`, tenant).Scan(&n); err != nil {
		f.t.Fatal(err)
	}
	return n
}

// scan returns the files below the stack's folder that contain a text. It skips the files of PostgreSQL, which also
// stores Temporal's data.
func (f *field) scan(text string) (found []string) {
	f.t.Helper()
	err := filepath.WalkDir(f.Dir, func(path string, d os.DirEntry, err error) error {
		if d != nil && d.IsDir() && d.Name() == "postgres" {
			return filepath.SkipDir
		}
		if err != nil || !d.Type().IsRegular() {
			return nil // a folder, or a file that a machine removed meanwhile
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

// soon is the limit for an effect that is due within 5 seconds. The limit is longer in make test, which runs on
// machines that are many times slower.
func soon() time.Duration {
	if *all {
		return 5 * time.Second
	}
	return time.Minute
}

// atMost is the limit for an effect that has no limit of its own. The limit is longer in make test, which runs on
// machines that are many times slower.
func atMost(limit time.Duration) time.Duration {
	if *all {
		return limit
	}
	return rig.Patience
}

// within records a breach unless a condition is met before the limit. It returns the time taken.
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
