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

// control is the machine's session with the control plane, for use by members: its calls carry
// the session's terms and wait while no session is open. All methods may be called concurrently.
type control struct {
	*client
	boot string // of this process
	seq  atomic.Int64
	seen *watermark

	direct *directStore // nil: all objects go through the server

	mu      sync.Mutex
	cluster string // whose containers are ours
	epoch   int64
	open    chan struct{} // closed while a session is open
	over    chan struct{} // closed when the open session has ended
}

// newControl returns a control without a session; begin opens one. Each process has a boot id of
// its own, by which the server recognizes calls of an earlier process.
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

// register is client.register. It fails with errRestored if the answer comes from a restored
// database, whose orders must not be obeyed.
func (c *control) register(ctx context.Context, req wire.RegisterRequest) (wire.RegisterResponse, error) {
	cluster := c.clusterID()
	asked := c.seen.of(cluster)
	answer, err := c.client.register(ctx, req)
	if err == nil && answer.Cluster == cluster && !c.seen.accepts(cluster, asked, answer.Watermark) {
		return answer, errRestored
	}
	return answer, err
}

// sync is client.sync. It fails with errRestored like register.
func (c *control) sync(ctx context.Context, req wire.SyncRequest) (wire.SyncResponse, error) {
	cluster := c.clusterID()
	asked := c.seen.of(cluster)
	answer, err := c.client.sync(ctx, req)
	if err == nil && !c.seen.accepts(cluster, asked, answer.Watermark) {
		return answer, errRestored
	}
	return answer, err
}

// clusterID returns the id of the cluster that this machine belongs to.
func (c *control) clusterID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cluster
}

// setCluster sets the id of the cluster, which a machine learns when it joins.
func (c *control) setCluster(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cluster = id
}

// begin opens a session. The returned channel is closed when the session has ended.
func (c *control) begin(epoch int64) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch = epoch
	c.over = make(chan struct{})
	close(c.open)
	return c.over
}

// end closes the session that over belongs to, after the server has forgotten the session. A
// later session stays open.
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

// present returns a channel that is closed at the end of the open session, or of the last one.
func (c *control) present() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}

// endSession ends the open session, if any, so that the agent registers again.
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

// terms waits for a session and returns its epoch, and the channel that its end closes.
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

// claimWork claims an allocation under the terms of the present session.
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

// fixImage asks for the digest of a member's image under the terms of the present session.
func (c *control) fixImage(ctx context.Context, r wire.ImageReport) (fixed wire.FixedImage, err error) {
	err = c.withTerms(ctx, func(epoch int64) error {
		r.AgentBoot, r.Epoch = c.boot, epoch
		return c.call(ctx, callTimeout, "image", r, &fixed)
	})
	return fixed, err
}

// assignments asks for the machine's full set as of now. Unlike the calls of members this call
// does not wait for a session: without one it fails.
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

// reportCheckpoint registers a checkpoint under the terms of the present session.
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

// appendLog appends to a log under the terms of the present session, as every call that writes.
func (c *control) appendLog(
	ctx context.Context, alloc berth.AllocationID, offset int64, chunk []byte,
) (end int64, err error) {
	err = c.withTerms(ctx, func(epoch int64) (err error) {
		end, err = c.client.appendLog(ctx, sessionTerms{c.boot, epoch}, alloc, offset, chunk)
		return err
	})
	return end, err
}

// putObject uploads one object that no further object belongs to.
func (c *control) putObject(ctx context.Context, key string, body io.ReadSeeker, size int64) error {
	return c.putPart(ctx, key, body, size, size)
}

// putPart uploads one object of several. rest is the size of this object and of all objects that
// follow. A file goes straight to the object store where that is possible.
func (c *control) putPart(ctx context.Context, key string, body io.ReadSeeker, size, rest int64) error {
	if file, ok := body.(*hashed); ok {
		if done, err := c.direct.put(ctx, key, file, rest); done || err != nil {
			if err == nil {
				c.metrics.stored(wayDirect, size)
			}
			return err
		}
	}
	err := c.withTerms(ctx, func(epoch int64) error {
		return c.client.putObject(ctx, sessionTerms{c.boot, epoch}, key, body, size, rest, c.direct.avoided(key, size))
	})
	if err == nil {
		c.direct.settled(key)
	}
	return err
}

// openObject returns an object's content and length, straight from the object store where that is possible. bytes is
// the recorded length. The caller closes the content.
func (c *control) openObject(
	ctx context.Context, key string, bytes int64,
) (in io.ReadCloser, size int64, direct bool, err error) {
	in, size, err = c.direct.get(ctx, key, bytes)
	if err != nil {
		return nil, 0, true, err
	}
	if in != nil {
		return c.metrics.reading(wayDirect, in), size, true, nil
	}
	in, size, err = c.client.getObject(ctx, key, c.direct.avoided(key, bytes))
	return in, size, false, err
}

// backoff spaces tries: doubling from min to max, each with a jitter of a half.
type backoff struct {
	min, max time.Duration
	next     time.Duration
	held     time.Duration // longest pause after a call that the server has held, see waitSince; at least min
}

// backoff returns a new backoff between RetryMin and RetryMax.
func (t Timing) backoff() *backoff { return &backoff{min: t.RetryMin, max: t.RetryMax} }

// heldReportPause is the longest pause after a report that the server has held and then failed. With it the reports of
// many machines leave connections to the database for other calls. Polls renew leases and do without such a pause.
const heldReportPause = 2 * time.Second

// reportBackoff returns a new backoff for reports.
func (t Timing) reportBackoff() *backoff {
	b := t.backoff()
	b.held = heldReportPause
	return b
}

// rerun returns a new backoff for tries to serve after an error.
func (t Timing) rerun() *backoff { return &backoff{min: t.RerunMin, max: t.RerunMax} }

// wait sleeps, or returns the cause of ctx's end.
func (b *backoff) wait(ctx context.Context) error {
	b.next = min(max(2*b.next, b.min), b.max)
	return sleep(ctx, jitter(b.next))
}

// waitSince is wait for tries whose starts are spaced, instead of the pauses between them: a call that the
// server has held for seconds and then failed is repeated after b.held at most. began is the start of the try.
func (b *backoff) waitSince(ctx context.Context, began time.Time) error {
	b.next = min(max(2*b.next, b.min), b.max)
	return sleep(ctx, max(jitter(b.next)-time.Since(began), jitter(min(b.next, max(b.held, b.min)))))
}

// jitter returns a random duration from half of d to d.
func jitter(d time.Duration) time.Duration { return d/2 + time.Duration(rand.Int64N(int64(d/2)+1)) }

// reset makes the next wait short again, after a success.
func (b *backoff) reset() { b.next = 0 }

// sleep waits for d. It returns the cause of the context's end if the context ends first.
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
