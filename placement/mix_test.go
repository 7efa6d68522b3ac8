package placement

import (
	"fmt"
	"testing"

	"berth"
	"berth/placement/queue"
	"berth/spec"
)

// TestMixIsTrustedOnceItHasSeenEnough: best fit until then.
func TestMixIsTrustedOnceItHasSeenEnough(t *testing.T) {
	t.Parallel()
	const trusted = 32 // requests for GPUs
	s := NewSnapshot()
	r := spec.Request{CPUMilli: 1000, GPUs: 1, GPUMilli: 500}
	s.DefineClass("c", r)
	for i := range trusted {
		if s.state.Packer.Appraise() {
			t.Fatalf("trusted after %d requests", i)
		}
		j := queue.Job{ID: berth.JobID(fmt.Sprint(i)), Class: "c"}
		s.UpsertJob(j)
		s.UpsertJob(j) // its row has changed: no other request
	}
	if !s.state.Packer.Appraise() {
		t.Fatalf("not trusted after %d requests", trusted)
	}
}
