package agent_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"berth"
	"berth/api"
	"berth/internal/control/blob"
)

// huge is content of three parts.
func huge(t *testing.T) []byte {
	t.Helper()
	b := make([]byte, 2*blob.LeastPart+4321)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return b
}

// newPartsSite is a site whose machines store objects of more than 5 MiB by parts.
func newPartsSite(t *testing.T) (*site, *bucket) {
	t.Helper()
	s, b := newBucketSite(t)
	s.parts = api.PartSizes{Above: blob.LeastPart, Bytes: blob.LeastPart}
	s.serves()
	return s, b
}

// partNumbers are the parts that a store has seen, by the number of times.
type partNumbers struct {
	mu   sync.Mutex
	seen map[string]int
}

func (p *partNumbers) add(r *http.Request) (times int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := r.URL.Query().Get("partNumber")
	p.seen[n]++
	return p.seen[n]
}

func (p *partNumbers) of(n string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[n]
}

// counts lets a test disturb each part, by its number and the number of times that it came.
func (b *bucket) counts(
	f func(next http.Handler, w http.ResponseWriter, r *http.Request, n string, times int),
) *partNumbers {
	p := &partNumbers{seen: map[string]int{}}
	g := func(next http.Handler, w http.ResponseWriter, r *http.Request) {
		times := p.add(r)
		if f == nil || r.Method != http.MethodPut {
			next.ServeHTTP(w, r)
			return
		}
		f(next, w, r, r.URL.Query().Get("partNumber"), times)
	}
	b.disturb.Store(&g)
	return p
}

func TestLargeFilesGoByParts(t *testing.T) {
	t.Parallel()
	s, b := newPartsSite(t)
	seen := b.counts(nil)
	m := s.machine("m1")
	id, w := m.trains()
	content := huge(t)
	m.saves(id, 1, 5, content)
	m.saved(id, 5)
	for _, n := range []string{"1", "2", "3"} {
		if got := seen.of(n); got != 1 {
			t.Errorf("part %s was stored %d times", n, got)
		}
	}
	if got := m.restores(id, w, 5); !bytes.Equal(got, content) {
		t.Error("the restored file is not the saved one")
	}
	if put, get := b.throughPut.Load(), b.throughGet.Load(); put+get > 64<<10 || seen.of("") != 1 {
		t.Errorf("%d and %d bytes passed the control plane, and %d reads the store; want the manifest alone, and one",
			put, get, seen.of(""))
	}
	m.keepsSecrets(id)
}

// TestPartsThatBreakAreSentAgain loses an answer, damages a byte, and refuses once.
func TestPartsThatBreakAreSentAgain(t *testing.T) {
	t.Parallel()
	s, b := newPartsSite(t)
	seen := b.counts(func(next http.Handler, w http.ResponseWriter, r *http.Request, n string, times int) {
		switch {
		case times > 1:
			next.ServeHTTP(w, r)
		case n == "1": // the answer is lost
			next.ServeHTTP(&nowhere{}, r)
			panic(http.ErrAbortHandler)
		case n == "2": // a byte is damaged
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			body[len(body)/2] ^= 1
			r.Body = io.NopCloser(bytes.NewReader(body))
			next.ServeHTTP(w, r)
		default:
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	m := s.machine("m1")
	id, w := m.trains()
	content := huge(t)
	m.saves(id, 1, 5, content)
	m.saved(id, 5)
	for _, n := range []string{"1", "2", "3"} {
		if got := seen.of(n); got != 2 {
			t.Errorf("part %s was sent %d times, want 2", n, got)
		}
	}
	if through := b.throughPut.Load(); through > 64<<10 {
		t.Errorf("%d bytes passed the control plane, want the manifest alone", through)
	}
	if got := m.restores(id, w, 5); !bytes.Equal(got, content) {
		t.Error("the restored file is not the saved one")
	}
}

// aborts removes the uploads of parts from the store, as a lifecycle rule does.
func (s *site) aborts() {
	err := s.blobs.Uploads(s.t.Context(), "tenants", func(u blob.Upload) error {
		return s.blobs.AbortUpload(s.t.Context(), u)
	})
	if err != nil {
		s.t.Error(err)
	}
}

// loses removes the first uploads when their second part comes, and answers their parts as a store does that has no
// such upload: a real one may break the connection of a part that is on its way.
func (s *site) loses(b *bucket, uploads int) *partNumbers {
	var mu sync.Mutex
	lost := map[string]chan struct{}{}
	return b.counts(func(next http.Handler, w http.ResponseWriter, r *http.Request, n string, _ int) {
		id := r.URL.Query().Get("uploadId")
		mu.Lock()
		gone, ok := lost[id]
		if !ok && len(lost) < uploads {
			gone, ok = make(chan struct{}), true
			lost[id] = gone
		}
		mu.Unlock()
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		if n == "2" {
			s.aborts()
			close(gone)
		}
		select {
		case <-gone:
		case <-r.Context().Done():
		}
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, "<Error><Code>NoSuchUpload</Code></Error>")
	})
}

// keepsAfterLosses saves a step and compares it, with the number of times that its second part was sent, and with the way
// of its bytes.
func (m *machine) keepsAfterLosses(b *bucket, seen *partNumbers, times int, direct bool) {
	m.s.t.Helper()
	id, w := m.trains()
	content := huge(m.s.t)
	m.saves(id, 1, 5, content)
	m.saved(id, 5)
	if got := seen.of("2"); got != times {
		m.s.t.Errorf("part 2 was sent %d times, want %d", got, times)
	}
	if through := b.throughPut.Load(); direct && through > 64<<10 || !direct && through < int64(len(content)) {
		m.s.t.Errorf("%d bytes passed the control plane", through)
	}
	if got := m.restores(id, w, 5); !bytes.Equal(got, content) {
		m.s.t.Error("the restored file is not the saved one")
	}
}

// TestAnUploadThatTheStoreRemovesBeginsAgain removes the upload when a part comes: the object still goes straight to the
// store.
func TestAnUploadThatTheStoreRemovesBeginsAgain(t *testing.T) {
	t.Parallel()
	s, b := newPartsSite(t)
	seen := s.loses(b, 1)
	s.machine("m1").keepsAfterLosses(b, seen, 2, true)
}

// TestAnUploadThatTheStoreRemovesBeforeItsCompletionBeginsAgain removes the upload after its last part.
func TestAnUploadThatTheStoreRemovesBeforeItsCompletionBeginsAgain(t *testing.T) {
	t.Parallel()
	s, b := newPartsSite(t)
	var stored atomic.Int64
	seen := b.counts(func(next http.Handler, w http.ResponseWriter, r *http.Request, _ string, _ int) {
		next.ServeHTTP(w, r)
		if stored.Add(1) == 3 {
			s.aborts()
		}
	})
	s.machine("m1").keepsAfterLosses(b, seen, 2, true)
}

// TestAnUploadThatTheStoreLosesEachTimeGoesThroughTheServer removes each upload: three tries begin two uploads each.
func TestAnUploadThatTheStoreLosesEachTimeGoesThroughTheServer(t *testing.T) {
	t.Parallel()
	s, b := newPartsSite(t)
	seen := s.loses(b, 100)
	s.machine("m1").keepsAfterLosses(b, seen, 6, false)
}

// nowhere is the answer that does not arrive.
type nowhere struct{ header http.Header }

func (n *nowhere) Header() http.Header {
	if n.header == nil {
		n.header = http.Header{}
	}
	return n.header
}
func (*nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (*nowhere) WriteHeader(int)             {}

// TestAnUploadOfPartsGoesOnAfterARestart holds the last part until the agent has restarted, and a server that knows
// nothing of the upload has replaced the other one. Parts that are stored are not sent again.
func TestAnUploadOfPartsGoesOnAfterARestart(t *testing.T) {
	t.Parallel()
	s, b := newPartsSite(t)
	held := make(chan struct{})
	seen := b.counts(func(next http.Handler, w http.ResponseWriter, r *http.Request, n string, times int) {
		if n != "3" || times > 1 {
			next.ServeHTTP(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body) // else the server does not see the end of the connection
		close(held)
		<-r.Context().Done()
	})
	m := s.machine("m1")
	id, w := m.trains()
	content := huge(t)
	m.saves(id, 1, 5, content)
	<-held
	key := berth.CheckpointKey("default", id, 1, 0, 5) + "/file-000000"
	upload, resumed, err := s.blobs.InParts().Begin(t.Context(), key)
	if err != nil || !resumed {
		t.Fatalf("there is no upload of %s: %v", key, err)
	}
	m.until("the other parts are stored", func() bool {
		for n := range 2 {
			part := content[n*blob.LeastPart : (n+1)*blob.LeastPart]
			has, err := s.blobs.InParts().Has(t.Context(), key, upload, n+1, blob.LeastPart, sha256.Sum256(part))
			if err != nil {
				t.Fatal(err)
			}
			if !has {
				return false
			}
		}
		return true
	})
	s.serves()
	m.restart()
	m.saved(id, 5)
	for n, want := range map[string]int{"1": 1, "2": 1, "3": 2} {
		if got := seen.of(n); got != want {
			t.Errorf("part %s was sent %d times, want %d", n, got, want)
		}
	}
	if got := m.restores(id, w, 5); !bytes.Equal(got, content) {
		t.Error("the restored file is not the saved one")
	}
	if err := s.blobs.Uploads(t.Context(), "tenants", func(u blob.Upload) error {
		t.Errorf("an upload of %s is left", u.Key)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
