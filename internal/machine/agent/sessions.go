package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"berth/internal/lib/background"
	"berth/internal/lib/framed"
	"berth/spec"
	"berth/wire"
)

// sessions serves the sessions of users in this machine's containers. An order comes with the set
// of assignments. The agent dials the control plane for each session, and never listens. All
// methods may be called concurrently.
type sessions struct {
	sup   *Supervisor
	log   *slog.Logger
	group *background.Group // one goroutine for each session

	mu   sync.Mutex
	seen map[string]time.Time // orders already taken, which each answer repeats until the agent has dialled
}

// orderMemory is how long an order may repeat; the server drops it after db.SessionDial.
const orderMemory = 10 * time.Minute

// dialPatience bounds the attempts to connect to a session, since the user waits.
const dialPatience = 10 * time.Second

func newSessions(sup *Supervisor, log *slog.Logger) *sessions {
	return &sessions{sup: sup, log: log, group: background.New(), seen: map[string]time.Time{}}
}

// take begins each session that is ordered for the first time. An order of another epoch is for an
// earlier registration, and the server would refuse the connection.
func (s *sessions) take(orders []wire.SessionOrder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, at := range s.seen {
		if time.Since(at) > orderMemory {
			delete(s.seen, id)
		}
	}
	for _, o := range orders {
		if _, again := s.seen[o.ID]; again {
			continue
		}
		s.seen[o.ID] = time.Now()
		if epoch := s.sup.control.currentEpoch(); o.Epoch != epoch {
			s.log.Warn("session ordered in another epoch, not connecting", "session", o.ID, "epoch", o.Epoch,
				"now", epoch)
			continue
		}
		s.group.Go(func(ctx context.Context) { s.serve(ctx, o) })
	}
}

// close ends all sessions and waits for them. The contexts of their members have ended before.
func (s *sessions) close() { s.group.Close() }

// serve connects to a session and serves it until its end. A session that cannot be served is
// answered with the reason.
func (s *sessions) serve(ctx context.Context, o wire.SessionOrder) {
	log := s.log.With("session", o.ID, "job_id", o.Job, "alloc", o.Alloc, "kind", o.Request.Kind)
	ws, err := s.dial(ctx, o)
	if err != nil {
		log.Warn("cannot connect to a session", "err", err)
		return
	}
	defer ws.CloseNow()
	m := s.sup.member(o)
	var inside context.Context
	ok := m != nil
	if ok {
		inside, ok = m.door.enter()
	}
	if !ok {
		refuse(ctx, ws, o, fmt.Sprintf("no container of member %d runs on machine %s", o.Request.Member,
			s.sup.cfg.Machine))
		return
	}
	defer s.sup.cfg.Metrics.visited()()
	log.Info("session began")
	defer log.Info("session ended")
	v := &visit{
		core: m.core, scratch: m.scratch, order: o, ws: ws, inside: inside, log: log, beats: s.sup.cfg.Timing.Beats,
	}
	switch o.Request.Kind {
	case spec.SessionExec:
		v.exec()
	case spec.SessionForward:
		v.forward()
	case spec.SessionFiles:
		v.files()
	default:
		refuse(ctx, ws, o, fmt.Sprintf("this agent (version %s) serves no sessions of kind %s", s.sup.cfg.Version,
			o.Request.Kind))
	}
}

// member returns the member that an order names, or nil.
func (s *Supervisor) member(o wire.SessionOrder) *member {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.members[o.Alloc]
	if m == nil || m.job != o.Job || m.attempt != o.Attempt {
		return nil
	}
	return m
}

// dial connects to a session. A refusal is final; a server that does not answer, or a replica
// that another one cannot reach, is tried again while the user waits.
func (s *sessions) dial(ctx context.Context, o wire.SessionOrder) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	c := s.sup.control.client
	header := http.Header{}
	header.Set(wire.HeaderSessionNonce, o.Nonce)
	for wait := s.sup.cfg.Timing.backoff(); ; {
		header.Set("Authorization", "Bearer "+c.token()) // may have been renewed since the last try
		ws, res, err := websocket.Dial(ctx, c.base+"/agent/v1/sessions/"+o.ID, &websocket.DialOptions{
			HTTPClient: c.http, HTTPHeader: header, Subprotocols: []string{wire.SessionProtocol},
		})
		if err == nil {
			ws.SetReadLimit(framed.MaxFrame)
			return ws, nil
		}
		if res != nil {
			if err = problem(res, http.MethodGet, "sessions/"+o.ID); refused(err) {
				return nil, err
			}
		}
		if wait.wait(ctx) != nil {
			return nil, err
		}
	}
}

// refuse ends a session with the reason why it cannot be served.
func refuse(ctx context.Context, ws *websocket.Conn, o wire.SessionOrder, why string) {
	if o.Request.Kind == spec.SessionForward {
		framed.Close(ws, wire.CauseRefused, why)
		return
	}
	c := framed.New(ws, nil, nil, framed.Beats{}, func(framed.Channel, []byte) {})
	_ = c.SendStatus(wire.SessionStatus{Cause: wire.CauseRefused, Message: why})
	leave(ctx, ws, c)
}

// leaveLimit is how long the agent waits for the other end to close after the last frame.
const leaveLimit = 5 * time.Second

// leave serves a connection until the other end has closed it, which proves that the last frame
// has arrived.
func leave(ctx context.Context, ws *websocket.Conn, c *framed.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveLimit)
	defer cancel()
	_ = c.Serve(ctx)
	_ = ws.CloseNow()
}

// visit is one session in a running container.
type visit struct {
	*core
	scratch *scratch
	order   wire.SessionOrder
	ws      *websocket.Conn
	inside  context.Context // ends with the container, the member or the agent
	log     *slog.Logger
	beats   framed.Beats
	all     sync.WaitGroup // goroutines of the session
}

// over returns the status of a session that ends because the container, the member or the agent
// did.
func (v *visit) over() wire.SessionStatus {
	switch why := context.Cause(v.inside); {
	case errors.Is(why, errAgentStops):
		return wire.SessionStatus{Cause: wire.CauseAgentStops,
			Message: fmt.Sprintf("the agent of machine %s stops; the job continues, connect again", v.machine)}
	case errors.Is(why, errContainerOver):
		return wire.SessionStatus{Cause: wire.CauseJobEnded, Message: "the container of the job has ended"}
	default:
		return wire.SessionStatus{Cause: wire.CauseJobEnded, Message: "the member is stopped: " + why.Error()}
	}
}

// currentEpoch returns the epoch of the latest session with the control plane.
func (c *control) currentEpoch() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.epoch
}
