package agent

import (
	"context"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"berth"
	"berth/internal/lib/failpoint"
	"berth/wire"
)

// control is the machine's session with the control plane, as members see it: calls that
// carry the session's terms, and that wait while there is no session.
type control struct {
	*client
	boot string // of this process
	seq  atomic.Int64
	seen *watermark

	mu      sync.Mutex
	cluster string // whose containers are ours
	epoch   int64
	open    chan struct{} // closed while a session is open
	over    chan struct{} // closed when the open session has ended
}

func newControl(c *client, cluster string, seen *watermark) *control {
	now := &control{
		client: c, boot: berth.NewSecret(), seen: seen, cluster: cluster,
		open: make(chan struct{}), over: make(chan struct{}),
	}
	c.mark = func() string {
		cluster := now.clusterID()
		if w := seen.of(cluster); !w.IsZero() {
			return wire.StoredWatermark{Cluster: cluster, Watermark: w}.String()
		}
		return ""
	}
	return now
}

// errRestored ends a session with a database that is older than one that this machine
// has obeyed.
var errRestored = berth.ErrStaleEpoch("the control plane's database is older " +
	"than one that this machine has heard from: was a backup restored?")

// register is the client's, with an answer that may be obeyed.
func (c *control) register(ctx context.Context, req wire.RegisterRequest) (wire.RegisterResponse, error) {
	cluster := c.clusterID()
	asked := c.seen.of(cluster)
	answer, err := c.client.register(ctx, req)
	if err == nil && answer.Cluster == cluster && !c.seen.accepts(cluster, asked, answer.Watermark) {
		return answer, errRestored
	}
	return answer, err
}

// sync is the client's, with an answer that may be obeyed.
func (c *control) sync(ctx context.Context, req wire.SyncRequest) (wire.SyncResponse, error) {
	cluster := c.clusterID()
	asked := c.seen.of(cluster)
	answer, err := c.client.sync(ctx, req)
	if err == nil && !c.seen.accepts(cluster, asked, answer.Watermark) {
		return answer, errRestored
	}
	return answer, err
}

func (c *control) clusterID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cluster
}

func (c *control) setCluster(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cluster = id
}

// begin opens a session; the channel is closed when it has ended.
func (c *control) begin(epoch int64) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch = epoch
	c.over = make(chan struct{})
	close(c.open)
	return c.over
}

// end closes the session that over belongs to: the server no longer knows it.
func (c *control) end(over <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if over != c.over {
		return
	}
	select {
	case <-c.over:
	default:
		close(c.over)
		c.open = make(chan struct{})
	}
}

// present is closed when the session is over that is open now, or was last.
func (c *control) present() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}

// endSession ends the open session, if there is one, so that the agent registers again.
func (c *control) endSession() {
	c.mu.Lock()
	over := c.over
	open := c.open
	c.mu.Unlock()
	select {
	case <-open:
		c.end(over)
	default:
	}
}

// terms waits for a session and returns it.
func (c *control) terms(ctx context.Context) (epoch int64, over <-chan struct{}, err error) {
	for {
		c.mu.Lock()
		open, epoch, over := c.open, c.epoch, c.over
		c.mu.Unlock()
		select {
		case <-open:
			return epoch, over, nil
		default:
		}
		select {
		case <-open:
		case <-ctx.Done():
			return 0, nil, context.Cause(ctx)
		}
	}
}

// withTerms runs f with the session's terms, again after each new registration.
func (c *control) withTerms(ctx context.Context, f func(epoch int64) error) error {
	for {
		epoch, over, err := c.terms(ctx)
		if err != nil {
			return err
		}
		err = f(epoch)
		if !berth.IsSlug(err, berth.SlugStaleEpoch) {
			return err
		}
		c.end(over)
	}
}

func (c *control) claimWork(ctx context.Context, req wire.RunRequest) (claim wire.Claim, err error) {
	if err := failpoint.Hit("agent.claim.before"); err != nil {
		return claim, err
	}
	err = c.withTerms(ctx, func(epoch int64) (err error) {
		claim, err = c.claim(ctx, wire.ClaimRequest{
			AgentBoot: c.boot, Epoch: epoch, Alloc: req.Alloc, Job: req.Job, Attempt: req.Attempt,
		})
		return err
	})
	if err != nil {
		return claim, err
	}
	return claim, failpoint.Hit("agent.claim.after")
}

// assignments asks for the machine's full set as it is now. Unlike the calls of
// members it waits for no session: without one it is an error.
func (c *control) assignments(ctx context.Context) ([]wire.Assignment, error) {
	c.mu.Lock()
	epoch := c.epoch
	c.mu.Unlock()
	answer, err := c.sync(ctx, wire.SyncRequest{AgentBoot: c.boot, Epoch: epoch})
	if err == nil && !answer.Changed {
		err = berth.Errorf(berth.CodeInternal, "the server left out the set of assignments")
	}
	return answer.Assignments, err
}

func (c *control) reportCheckpoint(ctx context.Context, p wire.CheckpointReport) error {
	if err := failpoint.Hit("agent.checkpoint.before"); err != nil {
		return err
	}
	err := c.withTerms(ctx, func(epoch int64) error {
		p.AgentBoot, p.Epoch = c.boot, epoch
		return c.checkpoint(ctx, p)
	})
	if err != nil {
		return err
	}
	return failpoint.Hit("agent.checkpoint.after")
}

// appendLog and putObject write within the session, as every call that writes.
func (c *control) appendLog(
	ctx context.Context, alloc berth.AllocationID, offset int64, chunk []byte,
) (end int64, err error) {
	err = c.withTerms(ctx, func(epoch int64) (err error) {
		end, err = c.client.appendLog(ctx, sessionTerms{c.boot, epoch}, alloc, offset, chunk)
		return err
	})
	return end, err
}

func (c *control) putObject(ctx context.Context, key string, body io.ReadSeeker, size int64) error {
	return c.putPart(ctx, key, body, size, size)
}

// putPart is putObject of an object of a checkpoint: rest is the size of this object and
// of all that follow.
func (c *control) putPart(ctx context.Context, key string, body io.ReadSeeker, size, rest int64) error {
	return c.withTerms(ctx, func(epoch int64) error {
		return c.client.putObject(ctx, sessionTerms{c.boot, epoch}, key, body, size, rest)
	})
}

// backoff spaces tries: doubling from min to max, each with a jitter of a half.
type backoff struct {
	min, max time.Duration
	next     time.Duration
}

func (t Timing) backoff() *backoff { return &backoff{min: t.RetryMin, max: t.RetryMax} }

// wait sleeps, or returns the cause of ctx's end.
func (b *backoff) wait(ctx context.Context) error {
	b.next = min(max(2*b.next, b.min), b.max)
	return sleep(ctx, b.next/2+time.Duration(rand.Int64N(int64(b.next/2)+1)))
}

func (b *backoff) reset() { b.next = 0 }

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
