package api

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"

	"berth"
	"berth/db"
	"berth/internal/lib/background"
	"berth/internal/lib/overload"
)

// callLimit bounds the duration of a user's call; a later one is answered that the server
// is unavailable. No call takes a tenth of it while the database is well. maxCalls bounds
// the user calls that hold or await a slot. turnsPerConn is the number of slots per
// connection: a call asks the database several times, and if all calls took turns with
// each other, all would be too late. waitsOfTenant bounds the calls of one tenant that
// may wait for a slot.
const (
	callLimit     = 15 * time.Second
	maxCalls      = 512
	turnsPerConn  = 2
	waitsOfTenant = 128
)

// Questions about the queue (explain, plan) go one after the other through the process's
// one copy of the queue, and may wait for the copy: they hold no slots of other calls.
// connsPerQuestion is the number of connections per question under way.
const (
	connsPerQuestion = 4
	questionsWaiting = 32 // of one tenant
)

// Calls that cost much CPU have slots by the process's cores: a page of more than
// bulkPage entries, and the beginning of a followed log or history, of which a client may
// open hundreds at once. The calls of one tenant fill half of the cores at most, so that
// other tenants' calls find a free one. bulksWaiting is the number of calls that may
// wait.
const (
	bulkPage     = 200
	bulksWaiting = 256 // of one tenant; more than one token may follow
)

// callSlots are the slots of users' calls, by the connections that the calls use.
type callSlots struct {
	reads     *slots // of calls that read, on connections for reads
	bulks     *slots // of expensive reads, on the same connections
	questions *slots // of explain and plan, on the same connections
	writes    *slots // of all other calls, on connections for users' changes
}

// newCallSlots derives the slots from the pool's shares. A call waits for one connection
// at a time, so a tenant whose calls all hang, on a lock for example, keeps as many
// connections as it has slots. A quarter of each share is left to other tenants: of the
// connections for reads in reads, bulks and questions together, and of the connections for
// users' changes.
func newCallSlots(of db.Shares, cores int) callSlots {
	spare := max(1, of.Reads/4)
	bulks := max(1, min(cores/2, of.Reads/4))
	questions := max(1, min(2, of.Reads/2), of.Reads/4) // two share one reading of the queue
	conns := of.Reads + of.Writes + of.Lookups + of.Work
	return callSlots{
		reads:     newSlots(turnsPerConn*of.Reads, of.Reads-questions-bulks-spare, waitsOfTenant),
		bulks:     newSlots(max(4, 2*cores), bulks, bulksWaiting),
		questions: newSlots(max(2, conns/connsPerQuestion), questions, questionsWaiting),
		writes:    newSlots(turnsPerConn*of.Writes, of.Writes*3/4, waitsOfTenant),
	}
}

// openCalls bound the concurrent calls of users and the unread bytes of their answers.
type openCalls struct {
	calls     atomic.Int64 // users' calls that hold or await a slot
	slots     callSlots    // of users' calls
	unread    *unread      // answers to users
	refusals  *refusals    // of users' calls
	arriving  *slots       // of bodies of users' calls
	transfers *transfers
	closing   <-chan struct{}
	owner     *background.Group // of goroutines that watch unread answers
}

// shed bounds the cost of users' calls while the database is slow: calls that take too
// long end, and calls beyond the slots do not begin. Agents are exempt, since their
// leases must be renewed, and uploads, which have separate caps. A stream or download
// holds a slot until its transfer begins, see streams.begin.
//
// The answer is kept in memory until the call has returned its slot: a client that does
// not read occupies no slot.
func (o *openCalls) shed(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		r := c.Request()
		if !strings.HasPrefix(r.URL.Path, "/v1/") || carriesData(c) {
			return next(c)
		}
		tenant := caller(r.Context()).Tenant
		if err := o.transfers.refuses(r, caller(r.Context())); err != nil {
			return o.refusals.delay(r, tenant, o.closing, err)
		}
		if err := o.unread.refuses(tenant); err != nil {
			return o.refusals.delay(r, tenant, o.closing, err)
		}
		if o.calls.Add(1) > maxCalls {
			o.calls.Add(-1)
			return berth.Errorf(berth.CodeUnavailable, "the server has too many calls under way; try again")
		}
		under, outer := o.slots.writes, r.Context()
		switch {
		case asksQueue(c):
			under = o.slots.questions
		case readsMuch(r):
			under = o.slots.bulks
		case classOf(c) == overload.Read:
			under = o.slots.reads
		}
		ctx, cancel := context.WithTimeout(outer, callLimit)
		defer cancel()
		if err := under.take(ctx, tenant); err != nil {
			o.calls.Add(-1)
			return err
		}
		call := &openCall{of: o, slots: under, tenant: tenant, c: c, ctx: outer}
		call.answer.ResponseWriter = c.Response().Writer
		c.Response().Writer = &call.answer
		c.Set(openCallKey, call)
		c.SetRequest(r.WithContext(ctx))
		defer call.leave() // also if the handler panics; idempotent
		err := next(c)
		call.leave()
		return call.finish(err)
	}
}

// openCallKey is the key of a call's openCall in its echo.Context.
const openCallKey = "berth.call"

// openCall is a user's call that holds a slot.
type openCall struct {
	of     *openCalls
	slots  *slots
	tenant berth.TenantID
	c      echo.Context
	ctx    context.Context // of the call, without callLimit
	answer heldAnswer
	left   bool
}

// leave returns the slot. Afterwards the response writes to the connection. It is
// idempotent.
func (o *openCall) leave() {
	if o.left {
		return
	}
	o.left = true
	o.slots.give(o.tenant)
	o.of.calls.Add(-1)
	w := o.c.Response()
	w.Writer = o.answer.ResponseWriter
	w.Committed, w.Size = false, 0 // no byte was sent so far
}

// finish sends the answer that the handler has written to memory. Without one, the
// handler returned an error, or its transfer has written to the connection itself.
func (o *openCall) finish(err error) error {
	a, w := &o.answer, o.c.Response()
	if a.status == 0 {
		return err
	}
	if a.tooLong {
		return berth.Errorf(berth.CodeInvalid,
			"the answer is longer than %s; ask for less at once, with limit for lists", berth.BytesText(maxAnswer))
	}
	w.Committed, w.Status, w.Size = true, a.status, int64(a.body.Len())
	taken := o.of.unread.add(o.tenant, a.body.Len())
	if a.send(o.of.transfers.limits.Stall) != nil { // the client is gone: its answer is not unread
		taken()
		return err
	}
	r := o.c.Request()
	clientConnOf(r).sent(taken, r.Close || !r.ProtoAtLeast(1, 1), o.of.closing)
	return err
}

// asksQueue reports whether the call is a question about the queue.
func asksQueue(c echo.Context) bool {
	return c.Path() == "/v1/plans" || c.Path() == "/v1/jobs/:id/explain"
}

// readsMuch reports whether the call reads a long page, or begins to follow a log or a
// history.
func readsMuch(r *http.Request) bool {
	if r.Method != http.MethodGet {
		return false
	}
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	return err == nil && limit > bulkPage || asksToFollow(r)
}

// asksToFollow reports whether the call wants a log or a history as a stream.
func asksToFollow(r *http.Request) bool {
	return r.Method == http.MethodGet && (wantsStream(r.Header.Get("Accept")) || r.URL.Query().Get("follow") == "true")
}

// carriesData reports whether a user's call carries an archive: uploads have separate
// limits, and may take longer than callLimit.
func carriesData(c echo.Context) bool {
	return c.Request().Method == http.MethodPost && c.Path() == uploadsPath
}
