package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"

	"berth"
	"berth/db"
	"berth/wire"
)

// TransferLimits bound the calls that last: followed logs and histories, downloads, and
// uploads. A field of 0 has its default.
type TransferLimits struct {
	FollowsPerToken    int // 200
	FollowsPerTenant   int // 500
	Follows            int // of this process: 2000
	DownloadsPerToken  int // outputs and whole logs: 16
	DownloadsPerTenant int // 48
	Downloads          int // of this process: 192
	UploadsPerToken    int // 4
	UploadsPerTenant   int // 4
	Uploads            int // of this process; each takes part of a core: 16
	SessionsPerToken   int // in running containers: 100
	SessionsPerTenant  int // of this process: 200; db has a cap for all replicas
	Sessions           int // of this process: 1000

	// Stall (10 s) is the time in which a reader must take 64 KiB. AgentStall (10 s) is the time in which a new
	// machine must take one part of its agent.
	Stall, AgentStall time.Duration

	// An upload must send UploadRate bytes a second (4096) on average over each UploadWindow (15 s).
	UploadRate   int64
	UploadWindow time.Duration

	// Recheck is the time between two look-ups of a token that has transfers open: 2 s. A
	// revoked token's transfers end within Recheck + authMemory.
	Recheck time.Duration
}

// orDefaults fills in the defaults of unset fields.
func (l TransferLimits) orDefaults() TransferLimits {
	return TransferLimits{
		FollowsPerToken: cmp.Or(l.FollowsPerToken, 200), FollowsPerTenant: cmp.Or(l.FollowsPerTenant, 500),
		Follows:           cmp.Or(l.Follows, 2000),
		DownloadsPerToken: cmp.Or(l.DownloadsPerToken, 16), DownloadsPerTenant: cmp.Or(l.DownloadsPerTenant, 48),
		Downloads:       cmp.Or(l.Downloads, 192),
		UploadsPerToken: cmp.Or(l.UploadsPerToken, 4), UploadsPerTenant: cmp.Or(l.UploadsPerTenant, 4),
		Uploads:          cmp.Or(l.Uploads, 16),
		SessionsPerToken: cmp.Or(l.SessionsPerToken, 100), SessionsPerTenant: cmp.Or(l.SessionsPerTenant, 200),
		Sessions: cmp.Or(l.Sessions, 1000), Recheck: cmp.Or(l.Recheck, 2*time.Second),
		Stall: cmp.Or(l.Stall, 10*time.Second), AgentStall: cmp.Or(l.AgentStall, downloadStall),
		UploadRate: cmp.Or(l.UploadRate, 4096), UploadWindow: cmp.Or(l.UploadWindow, 15*time.Second),
	}
}

// transferKind is a group of calls that share one cap.
type transferKind int

const (
	followTransfer transferKind = iota
	downloadTransfer
	uploadTransfer
	sessionTransfer // of users in containers; its connection is a websocket, which writes by itself
	machineTransfer // of agents: not capped, since the cluster's own work needs them
	transferKinds
)

// String completes "3 ... open".
func (k transferKind) String() string {
	switch k {
	case followTransfer:
		return "followed logs and histories"
	case downloadTransfer:
		return "downloads"
	case uploadTransfer:
		return "uploads"
	case sessionTransfer:
		return "sessions"
	case machineTransfer, transferKinds:
	}
	panic(fmt.Sprintf("no cap on transfers of kind %d", int(k)))
}

// transfers are the open transfers of one process, by token.
type transfers struct {
	limits TransferLimits
	lookUp func(ctx context.Context, token string) error

	mu      sync.Mutex
	tokens  map[string]*tokenTransfers
	tenants map[berth.TenantID]*[transferKinds]int
	all     [transferKinds]int
}

// tokenTransfers are the open transfers of one token. One goroutine looks the token up
// for all these transfers.
type tokenTransfers struct {
	count [transferKinds]int
	open  map[*transfer]struct{}
	stop  context.CancelFunc
	done  chan struct{} // closed when the goroutine has returned
}

func newTransfers(l TransferLimits, lookUp func(ctx context.Context, token string) error) *transfers {
	return &transfers{limits: l, lookUp: lookUp, tokens: map[string]*tokenTransfers{},
		tenants: map[berth.TenantID]*[transferKinds]int{}}
}

// transfer is one open call that lasts. It writes to the caller with a deadline for each
// piece; its context ends when its token is revoked.
type transfer struct {
	of      *transfers
	kind    transferKind
	caller  db.Principal
	ctx     context.Context
	cancel  context.CancelCauseFunc
	to      http.ResponseWriter
	control *http.ResponseController
	reads   atomic.Bool // the transfer reads a body
	failed  bool        // a write has failed; owned by the goroutine that writes
}

// begin opens a transfer for the call, or refuses the call with 429 at the cap of its
// kind. From then on the call's context is the transfer's, which callLimit no longer
// ends; the call returns its slot, if it has one, and its answer is written to the
// connection at once. The caller must call end.
func (s *streams) begin(c echo.Context, kind transferKind) (*transfer, error) {
	r := c.Request()
	t := &transfer{of: s.transfers, kind: kind, caller: caller(r.Context()), to: c.Response(),
		control: http.NewResponseController(c.Response())}
	call, _ := c.Get(openCallKey).(*openCall)
	ctx := r.Context()
	if call != nil {
		ctx = call.ctx
	}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	if err := s.transfers.add(t, s.transfers.holds(r)); err != nil {
		t.cancel(err)
		return nil, err
	}
	if call != nil {
		call.leave()
	}
	c.SetRequest(r.WithContext(t.ctx))
	if kind == uploadTransfer {
		t.awaitBody()
	}
	return t, nil
}

// holds returns the function that looks up the token of a call again: by the token's text, or by
// its id for a call of this process, which carries no text.
func (x *transfers) holds(r *http.Request) func(ctx context.Context) error {
	if v, ok := visitorOf(r.Context()); ok {
		return v.holds
	}
	token, _ := bearer(r)
	return func(ctx context.Context) error { return x.lookUp(ctx, token) }
}

// holds returns an error unless a token was valid within the last authMemory.
func (a *authenticator) holds(ctx context.Context, token string) error {
	_, err := a.within(ctx, token, false, authMemory)
	return err
}

// add counts a transfer, or returns an error at a cap. The first transfer of a token
// starts the goroutine that watches the token.
func (x *transfers) add(t *transfer, holds func(ctx context.Context) error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	k, p := t.kind, t.caller
	if err := x.full(k, p); err != nil {
		return err
	}
	of, tenant := x.tokens[p.TokenID], x.tenants[p.Tenant]
	if tenant == nil {
		tenant = &[transferKinds]int{}
	}
	if of == nil {
		of = &tokenTransfers{open: map[*transfer]struct{}{}}
	}
	x.tokens[p.TokenID], x.tenants[p.Tenant] = of, tenant
	of.count[k]++
	tenant[k]++
	x.all[k]++
	of.open[t] = struct{}{}
	if len(of.open) == 1 {
		var ctx context.Context
		ctx, of.stop = context.WithCancel(context.WithoutCancel(t.ctx))
		of.done = make(chan struct{})
		go x.watch(ctx, of, holds) // remove waits for it
	}
	return nil
}

// full returns an error while a cap on transfers of a kind is reached. The caller holds
// x.mu.
func (x *transfers) full(k transferKind, p db.Principal) error {
	if k == machineTransfer {
		return nil
	}
	l := x.limits
	caps := [...][3]int{
		followTransfer:   {l.FollowsPerToken, l.FollowsPerTenant, l.Follows},
		downloadTransfer: {l.DownloadsPerToken, l.DownloadsPerTenant, l.Downloads},
		uploadTransfer:   {l.UploadsPerToken, l.UploadsPerTenant, l.Uploads},
		sessionTransfer:  {l.SessionsPerToken, l.SessionsPerTenant, l.Sessions},
	}[k]
	if of := x.tokens[p.TokenID]; of != nil && of.count[k] >= caps[0] {
		return tooMany("token "+p.Name, of.count[k], k, caps[0])
	}
	if tenant := x.tenants[p.Tenant]; tenant != nil && tenant[k] >= caps[1] {
		return tooMany("tenant "+string(p.Tenant), tenant[k], k, caps[1])
	}
	if x.all[k] >= caps[2] {
		return tooMany("this server", x.all[k], k, caps[2])
	}
	return nil
}

// refuses returns an error if the request asks to follow a log or a history and its
// caller has reached the cap on followed logs and histories. A call that will be refused
// then costs no queries. The method add still checks each transfer.
func (x *transfers) refuses(r *http.Request, p db.Principal) error {
	if !asksToFollow(r) {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.full(followTransfer, p)
}

// tooMany is the refusal of a transfer at a cap of a token, a tenant or the server.
func tooMany(who string, n int, k transferKind, most int) error {
	return &berth.Error{Code: berth.CodeCapacity, Slug: slugTooManyTransfers,
		Message: fmt.Sprintf("%s has %d %s open; at most %d are allowed at once. Close some, or try again later",
			who, n, k, most)}
}

// end closes the transfer. It is idempotent.
func (t *transfer) end() {
	t.cancel(context.Canceled)
	t.of.remove(t)
}

// remove ends the count of a transfer. The last transfer of a token also stops the
// goroutine, and waits for its end without the lock, which the goroutine needs to cut
// transfers.
func (x *transfers) remove(t *transfer) {
	x.mu.Lock()
	of, tenant, k := x.tokens[t.caller.TokenID], x.tenants[t.caller.Tenant], t.kind
	if of == nil {
		x.mu.Unlock()
		return
	}
	if _, open := of.open[t]; !open {
		x.mu.Unlock()
		return
	}
	delete(of.open, t)
	// The server still writes the end of the answer, or the answer that names the reason
	// of a cut, and reads the rest of the body.
	_ = t.control.SetWriteDeadline(time.Now().Add(x.limits.Stall))
	if t.reads.Load() {
		_ = t.control.SetReadDeadline(time.Now().Add(x.limits.Stall))
	}
	of.count[k]--
	tenant[k]--
	x.all[k]--
	if *tenant == ([transferKinds]int{}) {
		delete(x.tenants, t.caller.Tenant)
	}
	last := len(of.open) == 0
	if last {
		delete(x.tokens, t.caller.TokenID)
	}
	x.mu.Unlock()
	if last {
		of.stop()
		<-of.done
	}
}

// watch looks a token up as long as transfers of the token are open, and cuts all these
// transfers once the token is revoked or expired. Transfers of a machine outlive the end of its
// credential, but not its revocation. While the database does not answer they
// go on.
func (x *transfers) watch(ctx context.Context, of *tokenTransfers, holds func(ctx context.Context) error) {
	defer close(of.done)
	tick := time.NewTicker(x.limits.Recheck)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		look, cancel := context.WithTimeout(ctx, x.limits.Recheck)
		err := holds(look)
		cancel()
		if berth.IsSlug(err, wire.SlugCredentialEnded) {
			continue // the machine has a later credential, and its key is not revoked
		}
		if code := berth.CodeOf(err); code == berth.CodeUnauthorized || code == berth.CodeForbidden {
			x.mu.Lock()
			for t := range of.open {
				t.cut(err)
			}
			x.mu.Unlock()
		}
	}
}

// cut ends a transfer from outside, also in the middle of a read or write. Only an open
// transfer may be cut: afterwards its connection carries other calls.
func (t *transfer) cut(why error) {
	t.cancel(why)
	if t.kind == sessionTransfer {
		return // the relay closes the websocket, with the reason
	}
	_ = t.control.SetWriteDeadline(longAgo) // not every transport has deadlines
	if t.reads.Load() {
		_ = t.control.SetReadDeadline(longAgo)
	}
}

// broken returns the reason of a cut. It is nil while the transfer is open, and after its
// caller or the server has ended it.
func (t *transfer) broken() error {
	if err := context.Cause(t.ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// transferBlock is the number of bytes of a transfer that are held, and written, at once.
const transferBlock = 64 << 10

// Write sends b in pieces of at most 64 KiB, each of which the reader must take within
// Stall.
func (t *transfer) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		if err := t.extend(); err != nil {
			return n, err
		}
		m, err := t.to.Write(b[:min(len(b), transferBlock)])
		t.lift()
		n, b = n+m, b[m:]
		if err != nil {
			t.failed = true
			return n, err
		}
	}
	return n, nil
}

// Flush sends the data that the server still buffers.
func (t *transfer) Flush() error {
	if err := t.extend(); err != nil {
		return err
	}
	defer t.lift()
	err := t.control.Flush()
	t.failed = t.failed || err != nil
	return err
}

// extend gives the reader time for a piece. The context is checked after the deadline was
// set: cut cancels first and sets its own deadline second, so either extend sees the end
// or the write runs into that deadline.
func (t *transfer) extend() error {
	_ = t.control.SetWriteDeadline(time.Now().Add(t.of.limits.Stall))
	return context.Cause(t.ctx)
}

// lift lifts the write deadline once the reader has taken a piece. A deadline in force
// while no byte is written would end the call all the same: HTTP/2 resets the stream when
// the deadline passes. cut cancels the context first and sets its own deadlines second,
// so either cut's deadlines come last, or lift sees the end here and puts the write
// deadline back.
func (t *transfer) lift() {
	_ = t.control.SetWriteDeadline(time.Time{})
	if t.ctx.Err() != nil {
		_ = t.control.SetWriteDeadline(longAgo)
	}
}

// liftRead is lift for the read deadline. HTTP/1 reads on in the background once the body
// has ended, and cancels the call's context when that read fails.
func (t *transfer) liftRead() {
	_ = t.control.SetReadDeadline(time.Time{})
	if t.ctx.Err() != nil {
		_ = t.control.SetReadDeadline(longAgo)
	}
}

// longAgo is a deadline that ends reads and writes under way.
var longAgo = time.Unix(1, 0)

// blocks are buffers of transfers. A waiting transfer holds none.
var blocks = sync.Pool{New: func() any { return new([transferBlock]byte) }}

// copyFrom sends all of r. The wrappers hide ReadFrom and WriteTo of both ends: each
// piece must go through Write, which sets the deadlines.
func (t *transfer) copyFrom(r io.Reader) error {
	block := blocks.Get().(*[transferBlock]byte)
	defer blocks.Put(block)
	_, err := io.CopyBuffer(struct{ io.Writer }{t}, struct{ io.Reader }{r}, block[:])
	return err
}

// body is the body of a user's call, which must keep coming: at least UploadRate bytes a
// second on average over each UploadWindow.
func (t *transfer) body(r io.Reader) *pacedBody {
	l := t.of.limits
	t.awaitBody()
	return &pacedBody{t: t, r: r, window: l.UploadWindow,
		least: max(1, int64(float64(l.UploadRate)*l.UploadWindow.Seconds()))}
}

// awaitBody notes that the transfer has a body. No deadline applies while the body is not
// read: each read sets its own.
func (t *transfer) awaitBody() {
	if !t.reads.Swap(true) {
		t.liftRead()
	}
}

// machineSilence is the longest pause in the body of a machine's call. Machines need no
// minimum rate: an object that broke off would be sent again whole.
const machineSilence = time.Minute

// machineBody is the body of a machine's call, which must not pause for machineSilence.
func (t *transfer) machineBody(r io.Reader) *pacedBody {
	t.awaitBody()
	return &pacedBody{t: t, r: r, window: machineSilence, least: 1}
}
