package dispatch

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"

	"berth"
	"berth/db"
)

func startOf(tenant berth.TenantID, job berth.JobID) start {
	return start{Dispatch: db.Dispatch{Tenant: tenant, Job: job}}
}

// A tenant with one job waits for one job of each other tenant, however many these have.
func TestTenantsStartInTurn(t *testing.T) {
	t.Parallel()
	q := newStartQueue()
	for _, s := range []start{
		startOf("big", "b1"), startOf("big", "b2"), startOf("big", "b3"), startOf("small", "s1"), startOf("other", "o1"), startOf("other", "o2"),
	} {
		if !q.push(s) {
			t.Fatalf("%s was refused", s.Job)
		}
	}
	var got []berth.JobID
	for range 6 {
		if !q.reserve(t.Context()) {
			t.Fatal("the queue ended")
		}
		got = append(got, q.take().Job)
	}
	if want := []berth.JobID{"b1", "s1", "o1", "b2", "o2", "b3"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if q.reserve(ctx) {
		t.Error("an empty queue has a job")
	}
}

// A tenant that fills its part of the queue leaves room for others.
func TestAFullTenantLeavesRoomForOthers(t *testing.T) {
	t.Parallel()
	q := newStartQueue()
	for range waitingStarts {
		q.push(startOf("big", "b"))
	}
	if q.push(startOf("big", "b")) {
		t.Error("one more job of the tenant was accepted")
	}
	if !q.push(startOf("small", "s")) {
		t.Error("another tenant's job was refused")
	}
}

// No job is lost or handed out twice among many goroutines.
func TestEachQueuedStartIsHandedOutOnce(t *testing.T) {
	t.Parallel()
	const jobs, takers = 2000, 8
	q := newStartQueue()
	ctx, stop := context.WithCancel(t.Context())
	var all, pushed sync.WaitGroup
	var mu sync.Mutex
	seen := map[berth.JobID]int{}
	pushed.Add(jobs)
	for range takers {
		all.Go(func() {
			for i := 0; ; {
				if !q.reserve(ctx) {
					return
				}
				if i++; i%3 == 0 { // now and then there is no room after all
					q.unreserve()
					continue
				}
				s := q.take()
				mu.Lock()
				seen[s.Job]++
				mu.Unlock()
				pushed.Done()
			}
		})
	}
	for i := range jobs {
		q.push(startOf(berth.TenantID("t"+string(rune('a'+i%5))), berth.JobID(strconv.Itoa(i))))
	}
	pushed.Wait()
	stop()
	all.Wait()
	if len(seen) != jobs {
		t.Errorf("%d of %d jobs were handed out", len(seen), jobs)
	}
}
