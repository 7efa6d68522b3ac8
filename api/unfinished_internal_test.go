package api

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"berth"
	"berth/db"
	"berth/wire"
)

// countedLines counts its reads. It shows "bar" while active.
type countedLines struct {
	renewals, reads int
	active          bool
}

func (c *countedLines) FollowUnfinished(context.Context, berth.JobID, int) (wire.LogLine, bool, error) {
	c.renewals++
	return wire.LogLine{Text: "bar", Attempt: 1}, c.active, nil
}

func (c *countedLines) Unfinished(context.Context, berth.JobID, int) (wire.LogLine, bool, error) {
	c.reads++
	return wire.LogLine{Text: "bar", Attempt: 1}, c.active, nil
}

func TestHintsCauseFewReads(t *testing.T) {
	t.Parallel()
	for _, active := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			store := &countedLines{active: active}
			x := &unfinishedLines{store: store, members: map[memberOf]*unfinishedMember{}}
			m := &unfinishedMember{done: make(chan struct{})}
			hub := &db.Hub{}
			go x.run(ctx, m, hub.Subscribe(db.TopicUnfinished, "j/0"), hub.Subscribe(db.TopicJob, "j"))
			const seconds = 60
			for range seconds * 100 {
				hub.Publish(db.TopicUnfinished, "j/0")
				hub.Publish(db.TopicJob, "j")
				time.Sleep(10 * time.Millisecond)
			}
			cancel()
			<-m.done
			// One after each pause, and the renewals.
			most := int(seconds*time.Second/linePause) + int(seconds*time.Second/db.FollowRenew)
			if got := store.reads + store.renewals; got > most+1 || got < most/2 {
				t.Errorf("active %v: %d reads in %d s of constant hints, want at most %d", active, got, seconds, most)
			}
			if active && store.renewals > 1+int(seconds*time.Second/db.FollowRenew) {
				t.Errorf("%d renewals by hints", store.renewals)
			}
		})
	}
}
