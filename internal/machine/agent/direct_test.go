package agent_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"gocloud.dev/blob/s3blob"

	"berth"
	"berth/internal/control/blob"
	"berth/internal/machine/fetch/s3test"
	"berth/spec"
	"berth/wire"
)

// bucket is a real server of S3 behind a proxy that counts, and that a test can disturb.
type bucket struct {
	next         http.Handler
	puts, gets   atomic.Int64 // by signed addresses
	disturb      atomic.Pointer[func(next http.Handler, w http.ResponseWriter, r *http.Request)]
	throughPut   atomic.Int64 // bytes of objects that machines send to the control plane
	throughGet   atomic.Int64 // bytes of objects that machines read from the control plane
	fellBack     atomic.Int64 // calls with wire.HeaderFallback
	addressFault atomic.Pointer[func(a *wire.ObjectAddress)]

	proof  sync.Mutex
	proven bool
}

func (b *bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// The control plane's own requests, and its proof that the store keeps the conditions of signed addresses.
	if !r.URL.Query().Has("X-Amz-Signature") || strings.Contains(r.URL.Path, "/signing/") {
		b.next.ServeHTTP(w, r)
		return
	}
	if r.Method == http.MethodPut {
		b.puts.Add(1)
	} else {
		b.gets.Add(1)
	}
	if f := b.disturb.Load(); f != nil {
		(*f)(b.next, w, r)
		return
	}
	b.next.ServeHTTP(w, r)
}

// around sees the calls of machines at the control plane.
func (b *bucket) around(next http.Handler, w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasPrefix(r.URL.Path, "/agent/v1/objects/"):
		if r.Header.Get(wire.HeaderFallback) != "" {
			b.fellBack.Add(1)
		}
		r.Body = &countedBody{r.Body, &b.throughPut}
		next.ServeHTTP(&countedWriter{w, &b.throughGet}, r)
	case r.URL.Path == "/agent/v1/object-access" && r.Method == http.MethodPost && b.addressFault.Load() != nil:
		answer := httptest.NewRecorder()
		next.ServeHTTP(answer, r)
		var a wire.ObjectAddress
		if answer.Code == http.StatusOK && json.Unmarshal(answer.Body.Bytes(), &a) == nil && a.URL != "" {
			(*b.addressFault.Load())(&a)
			_ = json.NewEncoder(w).Encode(a)
			return
		}
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	case r.URL.Path == "/agent/v1/sync":
		b.prove(next, r)
		next.ServeHTTP(w, r)
	default:
		next.ServeHTTP(w, r)
	}
}

// prove lets the control plane prove the store before a machine has work. On a busy host the proof takes longer than an
// agent waits for an answer, and an agent without an answer sends the object through the control plane. call is one
// of the machine, whose credential the question needs.
func (b *bucket) prove(next http.Handler, call *http.Request) {
	b.proof.Lock()
	defer b.proof.Unlock()
	if b.proven {
		return
	}
	ask := call.Clone(context.WithoutCancel(call.Context()))
	ask.Method, ask.URL.Path, ask.Body, ask.ContentLength = http.MethodGet, "/agent/v1/object-access", http.NoBody, 0
	answer := httptest.NewRecorder()
	next.ServeHTTP(answer, ask)
	b.proven = answer.Code == http.StatusOK
}

type countedBody struct {
	io.ReadCloser
	n *atomic.Int64
}

func (c *countedBody) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n.Add(int64(n))
	return n, err
}

type countedWriter struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c *countedWriter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.n.Add(int64(n))
	return n, err
}

func (c *countedWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// newBucketSite is a site whose store is a bucket with signed addresses.
func newBucketSite(t *testing.T) (*site, *bucket) {
	t.Helper()
	server := s3test.Start(t)
	target, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	b := &bucket{next: &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // which is signed
	}}}
	front := httptest.NewServer(b)
	t.Cleanup(front.Close)
	s := newSite(t)
	if s.blobs, err = blob.NewS3(t.Context(), s3test.ClientAt(front.URL), server.Bucket, s3blob.Options{}); err != nil {
		t.Fatal(err)
	}
	s.direct = true
	s.serves()
	around := b.around
	s.gate.around.Store(&around)
	return s, b
}

// large is content that no archive makes smaller, and that is worth a signed address.
func large(t *testing.T) []byte {
	t.Helper()
	b := make([]byte, 3<<20)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return b
}

func (m *machine) folder(id berth.JobID, attempt int, path string) string {
	return filepath.Join(m.cfg.StateDir, "ranks", berth.ContainerName(id, 0, attempt), path)
}

// saves writes a complete step with one file into a member's folder, as its program would.
func (m *machine) saves(id berth.JobID, attempt int, step int64, content []byte) {
	m.s.t.Helper()
	dir := m.folder(id, attempt, fmt.Sprintf("checkpoint/step-%d", step))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		m.s.t.Fatal(err)
	}
	for _, f := range []struct {
		name    string
		content []byte
	}{{"weights", content}, {"DONE", nil}} {
		if err := os.WriteFile(filepath.Join(dir, f.name), f.content, 0o644); err != nil {
			m.s.t.Fatal(err)
		}
	}
}

// saved waits until a step is verified.
func (m *machine) saved(id berth.JobID, step int64) {
	m.s.t.Helper()
	m.until(fmt.Sprintf("step %d is verified", step), func() bool {
		for _, got := range m.s.verified(id) {
			if got == step {
				return true
			}
		}
		return false
	})
}

// trains submits a job with checkpoints and an output, and waits until it runs.
func (m *machine) trains() (berth.JobID, *waiter) {
	m.s.t.Helper()
	id := m.s.submit(func(j *spec.Job) {
		checkpointed(3)(j)
		leaving("/workspace/model")(j)
	}, "sleep", "1h")
	req, w := m.run(id)
	m.running(req)
	return id, w
}

// restores ends the present attempt, runs the next one, and returns the restored file.
func (m *machine) restores(id berth.JobID, w *waiter, step int64) []byte {
	m.s.t.Helper()
	m.runtime.Exit(berth.ContainerName(id, 0, 1), 1)
	w.exit()
	if j := m.s.settle(id); j.Status != berth.Retrying {
		m.s.t.Fatalf("job is %s, %+v", j.Status, j.Reason)
	}
	req, _ := m.run(id)
	m.running(req)
	b, err := os.ReadFile(m.folder(id, 2, fmt.Sprintf("checkpoint/step-%d/weights", step)))
	if err != nil {
		m.s.t.Fatal(err)
	}
	return b
}

// keepsSecrets fails if a signed address, or a part of one, is in the agent's log or the job's events.
func (m *machine) keepsSecrets(id berth.JobID) {
	m.s.t.Helper()
	text := m.logs.text() + fmt.Sprintf("%+v", m.s.events(id))
	for _, part := range []string{"X-Amz-", "Signature", "Credential="} {
		if strings.Contains(text, part) {
			m.s.t.Errorf("%s is in the log or the events:\n%s", part, text)
		}
	}
}

func TestLargeFilesNeverPassTheControlPlane(t *testing.T) {
	t.Parallel()
	s, b := newBucketSite(t)
	m := s.machine("m1")
	id, w := m.trains()
	content, model := large(t), large(t)
	m.saves(id, 1, 5, content)
	m.saved(id, 5)
	if got := m.restores(id, w, 5); !bytes.Equal(got, content) {
		t.Error("the restored file is not the saved one")
	}
	if err := os.WriteFile(m.folder(id, 2, "workspace/model"), model, 0o644); err != nil {
		t.Fatal(err)
	}
	m.runtime.Exit(berth.ContainerName(id, 0, 2), 0)
	m.until("the output is registered", func() bool {
		var n int
		if err := s.db.Pool().QueryRow(t.Context(), `SELECT count(*) FROM outputs WHERE job = $1`, id).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 1
	})
	_, dir := s.output(id, "model")
	if got, err := os.ReadFile(filepath.Join(dir, "model")); err != nil || !bytes.Equal(got, model) {
		t.Errorf("the output is not the written one: %v", err)
	}
	if puts, gets := b.puts.Load(), b.gets.Load(); puts != 2 || gets != 1 {
		t.Errorf("%d objects were stored and %d read by signed addresses, want 2 and 1", puts, gets)
	}
	if put, get := b.throughPut.Load(), b.throughGet.Load(); put+get > 64<<10 || put == 0 {
		t.Errorf("%d and %d bytes passed the control plane, want the manifest alone", put, get)
	}
	m.keepsSecrets(id)
}

// TestAStoreThatAMachineCannotUseIsUsedThroughTheServer disturbs the addresses, or the store's answers to them.
func TestAStoreThatAMachineCannotUseIsUsedThroughTheServer(t *testing.T) {
	t.Parallel()
	var led atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { led.Add(1) }))
	t.Cleanup(elsewhere.Close)
	to := func(address string) func(b *bucket) {
		return func(b *bucket) {
			f := func(a *wire.ObjectAddress) {
				u, err := url.Parse(string(a.URL))
				if err != nil {
					t.Error(err)
					return
				}
				a.URL = spec.Sensitive(address + u.RequestURI())
			}
			b.addressFault.Store(&f)
		}
	}
	answers := func(status int, header, value string) func(b *bucket) {
		return func(b *bucket) {
			f := func(_ http.Handler, w http.ResponseWriter, r *http.Request) {
				// An early answer might be lost to the reset of the connection.
				_, _ = io.Copy(io.Discard, r.Body)
				if header != "" {
					w.Header().Set(header, value)
				}
				w.WriteHeader(status)
				_, _ = io.WriteString(w, "<Error><Code>Refused</Code><StringToSign>"+r.URL.RawQuery+"</StringToSign></Error>")
			}
			b.disturb.Store(&f)
		}
	}
	for name, c := range map[string]struct {
		disturb func(b *bucket)
		says    string
		signed  int64 // requests that reach the store
	}{
		"nothing listens":       {to("http://127.0.0.1:1"), "connection refused", 0},
		"without TLS":           {to("http://192.0.2.1:9000"), "has no TLS", 0},
		"no URL":                {to("gopher://x"), "not an http or https URL", 0},
		"a refusal":             {answers(http.StatusForbidden, "", ""), "403 (Refused)", 1},
		"a redirect":            {answers(http.StatusTemporaryRedirect, "Location", elsewhere.URL), "307 (Refused)", 1},
		"faults one by another": {answers(http.StatusServiceUnavailable, "", ""), "503 (Refused)", 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, b := newBucketSite(t)
			c.disturb(b)
			m := s.machine("m1")
			id, w := m.trains()
			content := large(t)
			m.saves(id, 1, 5, content)
			m.saved(id, 5)
			if got := m.restores(id, w, 5); !bytes.Equal(got, content) {
				t.Error("the restored file is not the saved one")
			}
			if n := b.fellBack.Load(); n != 2 {
				t.Errorf("%d calls are marked as fallback, want 2", n)
			}
			if n := b.puts.Load() + b.gets.Load(); n != c.signed {
				t.Errorf("%d requests reached the store, want %d", n, c.signed)
			}
			if text := m.logs.text(); !strings.Contains(text, "object store not usable from this machine") || !strings.Contains(text, c.says) {
				t.Errorf("no warning with %q", c.says)
			}
			m.keepsSecrets(id)
		})
	}
	t.Cleanup(func() {
		if n := led.Load(); n != 0 {
			t.Errorf("%d requests followed the redirect", n)
		}
	})
}

// once runs f for the first signed request, and the store for all later ones.
func (b *bucket) once(f func(next http.Handler, w http.ResponseWriter, r *http.Request)) {
	var used atomic.Bool
	g := func(next http.Handler, w http.ResponseWriter, r *http.Request) {
		if used.CompareAndSwap(false, true) {
			f(next, w, r)
			return
		}
		next.ServeHTTP(w, r)
	}
	b.disturb.Store(&g)
}

func TestALostAnswerOfTheStoreIsASuccess(t *testing.T) {
	t.Parallel()
	s, b := newBucketSite(t)
	var stored atomic.Bool
	b.once(func(next http.Handler, _ http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(httptest.NewRecorder(), r)
		stored.Store(true)
		panic(http.ErrAbortHandler)
	})
	m := s.machine("m1")
	id, w := m.trains()
	content := large(t)
	m.saves(id, 1, 5, content)
	m.saved(id, 5)
	if puts, through := b.puts.Load(), b.throughPut.Load(); puts != 1 || through > 64<<10 || !stored.Load() {
		t.Errorf("%d requests, and %d bytes through the control plane; want 1, and the manifest", puts, through)
	}
	if got := m.restores(id, w, 5); !bytes.Equal(got, content) {
		t.Error("the restored file is not the saved one")
	}
}

// TestAnotherObjectOfTheKeyIsReplaced stores an object first, as an earlier process of the agent might have: the same
// one counts as stored, another one is replaced.
func TestAnotherObjectOfTheKeyIsReplaced(t *testing.T) {
	t.Parallel()
	for name, same := range map[string]bool{"the same": true, "another": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, b := newBucketSite(t)
			m := s.machine("m1")
			id, w := m.trains()
			content := large(t)
			first := content
			if !same {
				first = large(t)
			}
			key := berth.CheckpointKey("default", id, 1, 0, 5) + "/file-000000"
			a, err := s.blobs.SignPut(t.Context(), key, int64(len(first)), sha256.Sum256(first), blob.AddressLife)
			if err != nil {
				t.Fatal(err)
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, string(a.URL), bytes.NewReader(first))
			if err != nil {
				t.Fatal(err)
			}
			req.Header = a.Header
			r, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = r.Body.Close()
			m.saves(id, 1, 5, content)
			m.saved(id, 5)
			if through := b.throughPut.Load(); (through < int64(len(content))) != same {
				t.Errorf("%d bytes passed the control plane", through)
			}
			if got := m.restores(id, w, 5); !bytes.Equal(got, content) {
				t.Error("the restored file is not the saved one")
			}
		})
	}
}

func TestAByteDamagedOnItsWayToTheStoreIsSentAgain(t *testing.T) {
	t.Parallel()
	s, b := newBucketSite(t)
	b.once(func(next http.Handler, w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		body[len(body)/2] ^= 1
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
	m := s.machine("m1")
	id, w := m.trains()
	content := large(t)
	m.saves(id, 1, 5, content)
	m.saved(id, 5)
	if puts, through := b.puts.Load(), b.throughPut.Load(); puts != 2 || through > 64<<10 {
		t.Errorf("%d requests, and %d bytes through the control plane; want 2, and the manifest", puts, through)
	}
	if got := m.restores(id, w, 5); !bytes.Equal(got, content) {
		t.Error("the restored file is not the saved one")
	}
}

// TestAByteDamagedOnItsWayFromTheStoreIsNoDamageOfTheCheckpoint checks that the server's copy decides.
func TestAByteDamagedOnItsWayFromTheStoreIsNoDamageOfTheCheckpoint(t *testing.T) {
	t.Parallel()
	s, b := newBucketSite(t)
	m := s.machine("m1")
	id, w := m.trains()
	content := large(t)
	m.saves(id, 1, 5, content)
	m.saved(id, 5)
	b.once(func(next http.Handler, w http.ResponseWriter, r *http.Request) {
		answer := httptest.NewRecorder()
		next.ServeHTTP(answer, r)
		body := answer.Body.Bytes()
		body[len(body)/2] ^= 1
		w.Header().Set("Content-Length", fmt.Sprint(len(body)))
		_, _ = w.Write(body)
	})
	if got := m.restores(id, w, 5); !bytes.Equal(got, content) {
		t.Error("the restored file is not the saved one")
	}
	if got := s.verified(id); len(got) != 1 {
		t.Errorf("verified checkpoints are %v", got)
	}
	if b.throughGet.Load() < int64(len(content)) {
		t.Error("the file was not read through the control plane")
	}
}

// TestACheckpointDamagedInTheStoreIsPassedOver changes a byte of the object itself.
func TestACheckpointDamagedInTheStoreIsPassedOver(t *testing.T) {
	t.Parallel()
	s, _ := newBucketSite(t)
	m := s.machine("m1")
	id, w := m.trains()
	older, newer := large(t), large(t)
	m.saves(id, 1, 5, older)
	m.saved(id, 5)
	m.saves(id, 1, 6, newer)
	m.saved(id, 6)
	newer[1000] ^= 1
	key := berth.CheckpointKey("default", id, 1, 0, 6) + "/file-000000"
	if _, err := s.blobs.Put(t.Context(), key, bytes.NewReader(newer), int64(len(newer))); err != nil {
		t.Fatal(err)
	}
	if got := m.restores(id, w, 5); !bytes.Equal(got, older) {
		t.Error("the restored file is not that of the older step")
	}
	if !s.hasEvent(id, wire.EventCheckpointRejected, "sha256") {
		t.Errorf("events: %+v", s.events(id))
	}
}

// TestAServerWithoutSignedAddressesGetsTheFiles plays a server of an earlier version, which answers 404.
func TestAServerWithoutSignedAddressesGetsTheFiles(t *testing.T) {
	t.Parallel()
	s, b := newBucketSite(t)
	var asked atomic.Int64
	around := func(next http.Handler, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/agent/v1/object-access" {
			asked.Add(1)
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"code":"not_found","detail":"there is no such page","status":404}`)
			return
		}
		b.around(next, w, r)
	}
	s.gate.around.Store(&around)
	m := s.machine("m1")
	id, w := m.trains()
	content := large(t)
	m.saves(id, 1, 5, content)
	m.saved(id, 5)
	if got := m.restores(id, w, 5); !bytes.Equal(got, content) {
		t.Error("the restored file is not the saved one")
	}
	if n := b.puts.Load() + b.gets.Load() + b.fellBack.Load(); n != 0 {
		t.Errorf("%d requests by signed addresses or marked as fallback, want none", n)
	}
	if asked.Load() == 0 {
		t.Error("the agent has not asked for signed addresses")
	}
}
