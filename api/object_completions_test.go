package api_test

import (
	"crypto/sha256"
	"net/http"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/internal/control/blob"
)

// TestCompletionsOfOneUploadAreSharedByContent completes an upload whose completion is slow. A call with another
// content for the same upload gets an answer of its own, and does not wait for the result of the first one.
func TestCompletionsOfOneUploadAreSharedByContent(t *testing.T) {
	t.Parallel()
	entered, free := make(chan struct{}, 10), make(chan struct{})
	s, _ := behind(t, func(next http.Handler, w http.ResponseWriter, r *http.Request) {
		held := r.Method == http.MethodPost && r.URL.Query().Has("uploadId") && strings.HasSuffix(r.URL.Path, "/file-000005")
		if held {
			entered <- struct{}{}
			<-free
		}
		next.ServeHTTP(w, r)
	})
	a := s.joinMachine("m1")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	const content = "weights"
	r := a.put(berth.CheckpointKey(job.Tenant, job.ID, 1, 0, 5)+"/file-000005", content)
	r.PartBytes = blob.PartBytes
	sum, wrong := sha256.Sum256([]byte(content)), sha256.Sum256([]byte("another"))
	r.SHA256 = hexSum(string(sum[:])) // of one part
	r.Upload = a.signs(r).Upload
	part := r
	part.Part, part.PartSHA256 = 1, hexSum(content)
	if status, text := a.sends("PUT", a.signs(part), content); status != http.StatusOK {
		t.Fatalf("the part: %d %s", status, text)
	}
	first, second := make(chan answer, 1), make(chan answer, 1)
	go func() { first <- a.post("object-access", r, nil) }()
	select {
	case <-entered:
	case got := <-first:
		t.Fatalf("the first completion does not reach the store: %d %s", got.status, got.body)
	}
	other := r
	other.SHA256 = hexSum(string(wrong[:]))
	go func() { second <- a.post("object-access", other, nil) }()
	select {
	case got := <-second:
		if got.status != http.StatusBadRequest {
			t.Errorf("a completion with another content: %d %s", got.status, got.body)
		}
	case <-time.After(time.Minute):
		t.Error("a completion with another content waits for the first one")
	}
	close(free)
	if got := <-first; got.status != http.StatusOK {
		t.Errorf("the first completion: %d %s", got.status, got.body)
	}
}
