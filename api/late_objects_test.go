package api_test

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/spec"
	"berth/wire"
)

// lateBody is a body that the server reads before the function is over, which runs at the first read.
type lateBody struct {
	io.Reader
	once  sync.Once
	first func()
}

func (b *lateBody) Read(p []byte) (int, error) {
	b.once.Do(b.first)
	return b.Reader.Read(p)
}

// A PUT began before the part of a checkpoint was registered, and its content arrives afterwards: from an earlier
// process of the agent, through a slow proxy. The registered objects stay.
func TestALateObjectReplacesNothingOfARegisteredPart(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.joinMachine("m1")
	job := s.submit("alice", func(j *spec.Job) { j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint"} })
	a.take(job.ID)
	key := berth.CheckpointKey(job.Tenant, job.ID, 1, 0, 5) + "/" + berth.ManifestName
	// The client sends the body once the server begins to read it, which is after the first look for a registration.
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ExpectContinueTimeout = time.Hour
	t.Cleanup(transport.CloseIdleConnections)
	body := &lateBody{Reader: strings.NewReader("{}"), first: func() { a.save(job, 5, "weights", "ok") }}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, s.url+"/agent/v1/objects/"+key, body)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = 2
	req.Header.Set("Expect", "100-continue")
	req.Header.Set("Authorization", "Bearer "+s.tokens[string(a.machine)])
	req.Header.Set(wire.HeaderAgentBoot, a.boot)
	req.Header.Set(wire.HeaderEpoch, strconv.FormatInt(a.epoch, 10))
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusNoContent {
		t.Errorf("the late manifest: %s", res.Status)
	}
	files, err := s.as("alice").CheckpointFiles(t.Context(), job.ID, 5, 0)
	if err != nil || len(files.Files) != 2 {
		t.Errorf("the registered part is %+v, %v", files, err)
	}
}
