package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"berth"
	"berth/db"
	"berth/internal/lib/framed"
	"berth/spec"
	"berth/wire"
)

// relay copies the messages of one session between its two ends. It keeps no message: a slow
// reader slows the sender down by TCP.
//
// The relay ends with the first of these, and closes both ends with its cause:
//
//	an end's connection ends     exited after a status frame, else client_gone or machine_gone
//	the token is revoked         token_revoked
//	the member no longer runs    job_ended, found with each renewal of the row
//	Longest has passed           too_long
//	this server stops            server_stops
type relay struct {
	user, agent *websocket.Conn
	deps        SessionDeps
	session     wire.JobSession
	store       *db.JobSessions
	revoked     context.Context // ends with the reason once the user's token no longer holds
	closing     <-chan struct{}
	log         *slog.Logger

	in, out atomic.Int64
	status  atomic.Pointer[wire.SessionStatus]
}

// ending is the reason for the end of a relay.
type ending struct {
	cause   wire.SessionCause
	message string
}

// run waits for the agent, relays, and returns the end once both connections are closed.
func (r *relay) run(agents <-chan *websocket.Conn) db.SessionEnd {
	ended := make(chan ending, 8) // one place for each goroutine
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	came := make(chan struct{})
	all.Go(func() { ended <- r.watch(ctx, came) })
	// The user's end is read from the start: a user who leaves early is noticed. Messages wait
	// in the connection until the agent has come.
	all.Go(func() { ended <- r.fromUser(ctx, came) })
	all.Go(func() { ended <- ending{wire.CauseClientGone, describe(framed.Keep(ctx, r.user, r.deps.Beats))} })
	why, ok := r.meet(agents, ended)
	if ok {
		close(came)
		all.Go(func() { ended <- r.fromAgent(ctx) })
		all.Go(func() { ended <- ending{wire.CauseMachineGone, describe(framed.Keep(ctx, r.agent, r.deps.Beats))} })
		why = <-ended
	}
	end := db.SessionEnd{Cause: why.cause, BytesIn: r.in.Load(), BytesOut: r.out.Load()}
	if s := r.status.Load(); s != nil {
		end.Cause, end.Exit = s.Cause, s.Exit
		why = ending{cause: s.Cause, message: s.Message}
	}
	var closes sync.WaitGroup
	for _, ws := range []*websocket.Conn{r.user, r.agent} {
		if ws != nil {
			closes.Go(func() { framed.Close(ws, why.cause, why.message) })
		}
	}
	closes.Wait()
	cancel()
	all.Wait()
	return end
}

// meet waits for the agent's connection.
func (r *relay) meet(agents <-chan *websocket.Conn, ended <-chan ending) (ending, bool) {
	patience := time.NewTimer(r.deps.Dial)
	defer patience.Stop()
	select {
	case r.agent = <-agents:
		return ending{}, true
	case why := <-ended:
		return why, false
	case <-patience.C:
		return ending{wire.CauseNoAgent, fmt.Sprintf("the agent of machine %s did not connect within %s; is it older "+
			"than the server?", r.session.Machine, r.deps.Dial)}, false
	}
}

// watch ends the session for reasons outside of its connections. The row has a lease to renew once
// the agent has come.
func (r *relay) watch(ctx context.Context, came <-chan struct{}) ending {
	longest := time.NewTimer(r.deps.Longest)
	defer longest.Stop()
	renew := time.NewTicker(r.deps.Renew)
	defer renew.Stop()
	for {
		select {
		case <-ctx.Done():
			return ending{}
		case <-r.revoked.Done():
			return ending{wire.CauseRevoked, describe(context.Cause(r.revoked))}
		case <-r.closing:
			return ending{wire.CauseServerStops, "this server stops; the job continues"}
		case <-longest.C:
			return ending{wire.CauseTooLong, fmt.Sprintf("a session lasts %s at most", r.deps.Longest)}
		case <-renew.C:
		}
		select {
		case <-came:
		default:
			continue
		}
		if why := r.renew(ctx); why.cause != "" {
			return why
		}
	}
}

// renew extends the lease of the row, and reports a member that no longer runs. A database that
// does not answer is asked again later.
func (r *relay) renew(ctx context.Context) ending {
	asking, cancel := context.WithTimeout(ctx, r.deps.Renew)
	defer cancel()
	runs, err := r.store.Renew(asking, r.session.ID)
	switch {
	case err != nil:
		if ctx.Err() == nil {
			r.log.Warn("session not renewed, will retry", "session", r.session.ID, "err", err)
		}
	case !runs && r.status.Load() == nil:
		return ending{wire.CauseJobEnded, fmt.Sprintf("member %d of job %s no longer runs", r.session.Member,
			r.session.Job)}
	}
	return ending{}
}

// fromUser copies the user's messages to the agent, once it has come.
func (r *relay) fromUser(ctx context.Context, came <-chan struct{}) ending {
	for {
		kind, message, err := r.user.Read(ctx)
		if err != nil {
			return ending{wire.CauseClientGone, ""}
		}
		select {
		case <-came:
		case <-ctx.Done():
			return ending{}
		}
		r.in.Add(r.data(message))
		if err := r.agent.Write(ctx, kind, message); err != nil {
			return r.machineGone(err)
		}
	}
}

// fromAgent copies the agent's messages to the user.
func (r *relay) fromAgent(ctx context.Context) ending {
	for {
		kind, message, err := r.agent.Read(ctx)
		if err != nil {
			return r.machineGone(err)
		}
		r.out.Add(r.data(message))
		if status := r.statusOf(message); status != nil {
			r.status.Store(status) // before the user has it, and closes the connection
		}
		if err := r.user.Write(ctx, kind, message); err != nil {
			return ending{wire.CauseClientGone, ""}
		}
	}
}

// machineGone returns the reason for the end of the agent's connection.
func (r *relay) machineGone(err error) ending {
	if cause, message, ok := framed.Closed(err); ok && cause != wire.CauseExited {
		return ending{cause, message}
	}
	return ending{wire.CauseMachineGone, fmt.Sprintf("the connection to machine %s was cut", r.session.Machine)}
}

// framed reports whether the messages of the session are frames, and not the bytes of a forward.
func (r *relay) framed() bool { return r.session.Kind != spec.SessionForward }

// data returns the number of bytes of a message that count as data of the session.
func (r *relay) data(message []byte) int64 {
	if !r.framed() {
		return int64(len(message))
	}
	if len(message) > 0 && framed.Channel(message[0]) <= framed.Stderr {
		return int64(len(message) - 1)
	}
	return 0
}

// statusOf returns the status in a message of the agent, or nil.
func (r *relay) statusOf(message []byte) *wire.SessionStatus {
	if !r.framed() {
		return nil
	}
	return framed.StatusOf(message)
}

// describe returns the text of an error for a close frame.
func describe(err error) string {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*berth.Error](err); ok {
		return e.Message
	}
	return err.Error()
}
