package api

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humaecho"
	"github.com/labstack/echo/v4"

	"berth"
	"berth/db"
	"berth/internal/lib/background"
	"berth/internal/lib/framed"
	"berth/spec"
	"berth/wire"
)

// SessionDeps are the dependencies of sessions in running containers.
type SessionDeps struct {
	// Peer returns the address by which other replicas reach this one, and the SHA-256 of
	// its TLS certificate in hex, "" for plain HTTP. nil: they do not reach it.
	Peer func() (url, cert string)

	Beats   framed.Beats  // of the websockets; zero: the defaults
	Longest time.Duration // life of a session; 0: 12 h
	Renew   time.Duration // of the row of an open session; 0: db.SessionRenew
	Dial    time.Duration // in which the agent must connect; 0: db.SessionDial
}

func (d SessionDeps) orDefaults() SessionDeps {
	if d.Peer == nil {
		d.Peer = func() (string, string) { return "", "" }
	}
	if d.Longest == 0 {
		d.Longest = 12 * time.Hour
	}
	if d.Renew == 0 {
		d.Renew = db.SessionRenew
	}
	if d.Dial == 0 {
		d.Dial = db.SessionDial
	}
	return d
}

// sessionHandlers serve sessions in running containers. A session is a pair of websockets. The
// user's comes first, and its replica waits. The machine, which only dials out, gets an order by
// its sync and connects as well: to this replica, or to another one, which forwards the
// connection here. This replica then copies messages from one to the other (relay).
type sessionHandlers struct {
	jobReader
	store   *db.JobSessions
	joins   sessionJoins // the same
	streams *streams
	deps    SessionDeps
	id      string // random, of this process
	owner   *background.Group
	log     *slog.Logger

	mu      sync.Mutex
	waiting map[string]*meeting // by session
}

// meeting is a session whose user is connected here, and whose agent has yet to connect.
type meeting struct {
	agent chan *websocket.Conn // takes one
	over  chan struct{}        // closed at the end of the session
	cause wire.SessionCause    // of that end; written before over is closed
}

func newSessionHandlers(
	reader jobReader, d *db.DB, s *streams, deps SessionDeps, owner *background.Group, log *slog.Logger,
) *sessionHandlers {
	return &sessionHandlers{
		jobReader: reader, store: d.JobSessions, joins: withFailpoints(writes{joins: d.JobSessions}).joins,
		streams: s, deps: deps.orDefaults(), id: berth.NewSecret()[:16],
		owner: owner, log: log, waiting: map[string]*meeting{},
	}
}

func (h *sessionHandlers) mount(r *router) {
	const tag = "jobs"
	ask := r.operation("open-session", http.MethodPost, "/v1/jobs/{id}/sessions", tag,
		"Request a session in a running member")
	ask.Description = "The session waits for one connection to `/v1/sessions/{id}` for half a minute. A session of " +
		"kind `exec` runs a command, `files` copies files, and " +
		"`forward` carries connections to ports of the container."
	ask.DefaultStatus = http.StatusCreated
	registerWithBody[spec.NewSession](r, ask, h.ask)
	list := r.operation("list-sessions", http.MethodGet, "/v1/jobs/{id}/sessions", tag,
		"List the sessions in a job's containers, newest first")
	list.Description = "Each session has its user, command, times and end. All who may read the job may read the " +
		"list. Records are deleted after a time that the operator sets. An array or a pipeline has no sessions of " +
		"its own."
	register(r, list, h.list)
	connect := r.operation("connect-session", http.MethodGet, "/v1/sessions/{id}", tag,
		"Connect to a session by websocket, once")
	connect.Description = "The subprotocol is `" + wire.SessionProtocol + "`. Each message is a frame of the " +
		"session. Only a status frame proves the end of a command; a connection that ends without one was cut."
	connect.Responses["101"] = &huma.Response{Description: "The websocket of the session"}
	register(r, connect, h.connect)
	r.agents.GET("/sessions/:id", h.agentConnect)
}

// askInput is the path and body of a request for a session.
type askInput struct {
	JobInput
	Request
}

type sessionOutput struct {
	Body wire.JobSession
}

// ask records the request. The role check of every POST keeps viewers out.
func (h *sessionHandlers) ask(ctx context.Context, in *askInput) (*sessionOutput, error) {
	req, err := readValid(in.Request, func(n *spec.NewSession) { *n = n.WithDefaults() })
	if err != nil {
		return nil, err
	}
	id, err := h.job(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	s, err := h.store.Ask(ctx, scope(ctx), id, db.Asker{Actor: actor(ctx), Token: caller(ctx).TokenID}, req)
	if err != nil {
		return nil, err
	}
	h.log.Info("session requested", "session", s.ID, "kind", s.Kind, "job_id", s.Job, "member", s.Member,
		"machine_id", s.Machine, "actor", actor(ctx))
	return &sessionOutput{s}, nil
}

// sessionsInput selects a page of the sessions of a job.
type sessionsInput struct {
	JobInput
	Open bool `query:"open" doc:"only sessions that have not ended"`
	Paging
}

type sessionsOutput struct {
	Body wire.Page[wire.SessionRecord]
}

// list returns the sessions of a job to all who may read the job: its history shows the same users and
// commands.
func (h *sessionHandlers) list(ctx context.Context, in *sessionsInput) (*sessionsOutput, error) {
	id, err := h.job(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	list, next, err := h.store.List(ctx, scope(ctx), id, db.SessionFilter{
		Open: in.Open, Paging: db.Paging{Limit: in.Limit, Cursor: in.Cursor},
	})
	if err != nil {
		return nil, err
	}
	return &sessionsOutput{page(list, next)}, nil
}

// sessionInput names a session.
type sessionInput struct {
	ID string `path:"id" doc:"id that open-session returned"`
}

// connect hands the call over to serveUser, which needs its connection.
func (h *sessionHandlers) connect(_ context.Context, in *sessionInput) (*huma.StreamResponse, error) {
	return &huma.StreamResponse{Body: func(out huma.Context) {
		c := humaecho.UnwrapV4(out)
		if err := h.serveUser(c, in.ID); err != nil {
			h.streams.router.renderError(err, c)
		}
	}}, nil
}

// errNoUpgrade refuses a plain GET before it uses up the session.
var errNoUpgrade = berth.Errorf(berth.CodeInvalid, "this route takes websockets only")

// serveUser serves the user's connection until the session ends. It refuses invalid calls before
// the upgrade, with an HTTP error.
func (h *sessionHandlers) serveUser(c echo.Context, id string) error {
	if !upgrades(c.Request()) {
		return errNoUpgrade
	}
	t, err := h.streams.begin(c, sessionTransfer)
	if err != nil {
		return err
	}
	defer t.end()
	m := &meeting{agent: make(chan *websocket.Conn, 1), over: make(chan struct{}), cause: wire.CauseClientGone}
	if !h.enter(id, m) {
		return berth.Errorf(berth.CodeConflict, "session %s has a connection already", id)
	}
	defer h.leave(id, m)
	peer, cert := h.deps.Peer()
	at := db.SessionReplica{ID: h.id, URL: peer, Cert: cert}
	s, err := h.store.Await(t.ctx, id, t.caller.TokenID, at)
	if err != nil {
		return err
	}
	ws, err := accept(c)
	if err != nil {
		h.end(s, db.SessionEnd{Cause: wire.CauseClientGone})
		return nil // answered by accept
	}
	done := make(chan struct{})
	if !h.owner.Go(func(context.Context) {
		defer close(done)
		h.run(t, ws, s, m)
	}) {
		framed.Close(ws, wire.CauseServerStops, "this server stops")
		h.end(s, db.SessionEnd{Cause: wire.CauseServerStops})
		return nil
	}
	<-done
	return nil
}

// upgrades reports whether a request asks for a websocket.
func upgrades(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
}

// accept upgrades a call to a websocket. It answers the call itself if it fails.
func accept(c echo.Context) (*websocket.Conn, error) {
	ws, err := websocket.Accept(c.Response(), c.Request(), &websocket.AcceptOptions{
		Subprotocols: []string{wire.SessionProtocol}, CompressionMode: websocket.CompressionDisabled,
	})
	if err != nil {
		return nil, err
	}
	ws.SetReadLimit(framed.MaxFrame)
	return ws, nil
}

// enter registers a meeting, unless the session has one here.
func (h *sessionHandlers) enter(id string, m *meeting) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting[id] != nil {
		return false
	}
	h.waiting[id] = m
	return true
}

// leave ends a meeting, and closes the agent's connection if the relay did not take it.
func (h *sessionHandlers) leave(id string, m *meeting) {
	h.mu.Lock()
	delete(h.waiting, id)
	h.mu.Unlock()
	close(m.over)
	m.dismiss()
}

// dismiss closes an agent's connection that came after the end of the session.
func (m *meeting) dismiss() {
	select {
	case ws := <-m.agent:
		framed.Close(ws, m.cause, "the session ended before the machine was connected")
	default:
	}
}

// run waits for the agent and relays until the session ends, which it records.
func (h *sessionHandlers) run(t *transfer, user *websocket.Conn, s wire.JobSession, m *meeting) {
	r := &relay{
		user: user, deps: h.deps, session: s, store: h.store, revoked: t.ctx, closing: h.streams.closing, log: h.log,
	}
	end := r.run(m.agent)
	m.cause = end.Cause
	h.end(s, end)
}

// recordLimit bounds the record of a session's end.
const recordLimit = 10 * time.Second

// end records the end of a session. If the database does not answer, the row expires, and the
// leader records the end.
func (h *sessionHandlers) end(s wire.JobSession, end db.SessionEnd) {
	ctx, cancel := context.WithTimeout(context.Background(), recordLimit)
	defer cancel()
	if err := h.store.End(ctx, s.ID, end); err != nil {
		h.log.Warn("end of a session not recorded, the leader will", "session", s.ID, "err", err)
	}
	h.log.Info("session ended", "session", s.ID, "kind", s.Kind, "job_id", s.Job, "member", s.Member,
		"machine_id", s.Machine, "cause", end.Cause, "bytes_in", end.BytesIn, "bytes_out", end.BytesOut)
}

// agentConnect takes the agent's end of a session, or forwards the connection to the replica that
// holds the user's end.
func (h *sessionHandlers) agentConnect(c echo.Context) error {
	if !upgrades(c.Request()) {
		return errNoUpgrade
	}
	ctx, id := c.Request().Context(), c.Param("id")
	at, err := h.store.Holder(ctx, id, machineOf(c))
	if err != nil {
		return err
	}
	if at.ID != h.id {
		return h.forward(c, at)
	}
	h.mu.Lock()
	m := h.waiting[id]
	h.mu.Unlock()
	if m == nil {
		return berth.Errorf(berth.CodeNotFound, "the user of session %s has disconnected", id)
	}
	if err := h.joins.Join(ctx, id, machineOf(c), c.Request().Header.Get(wire.HeaderSessionNonce), h.id); err != nil {
		return err
	}
	ws, err := accept(c)
	if err != nil {
		return nil // answered by accept; the user's end notices that no agent comes
	}
	m.agent <- ws // Join succeeds once, so there is room
	select {
	case <-m.over: // leave may have passed before the send
		m.dismiss()
	default:
		<-m.over
	}
	return nil
}

// forward passes an agent's connection on to another replica, byte by byte. That replica checks
// the machine's token, the order and the epoch; this one needs no right of its own.
func (h *sessionHandlers) forward(c echo.Context, at db.SessionReplica) error {
	r := c.Request()
	if r.Header.Get(wire.HeaderSessionHop) != "" {
		return berth.Errorf(berth.CodeUnavailable, "session %s is held by another process of berthd "+
			"than the one at the recorded address", c.Param("id"))
	}
	target, err := url.Parse(at.URL)
	if err != nil || at.URL == "" {
		return berth.Errorf(berth.CodeUnavailable, "the replica of berthd that holds session %s has no address for "+
			"other replicas: set --peer-url there", c.Param("id"))
	}
	transport := &http.Transport{ResponseHeaderTimeout: db.SessionDial}
	if at.Cert != "" {
		transport.TLSClientConfig = pinned(at.Cert)
	}
	defer transport.CloseIdleConnections()
	var failed error
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(target)
			p.Out.Header.Set(wire.HeaderSessionHop, h.id)
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { failed = err },
		ErrorLog:     slog.NewLogLogger(slog.DiscardHandler, slog.LevelWarn),
	}
	proxy.ServeHTTP(c.Response(), r)
	if failed != nil && !errors.Is(failed, context.Canceled) && !c.Response().Committed {
		h.log.Warn("replica that holds a session is unreachable", "url", at.URL, "err", failed)
		return berth.Errorf(berth.CodeUnavailable, "the replica of berthd that holds session %s does not answer",
			c.Param("id"))
	}
	return nil
}

// pinned returns the TLS settings for a replica: its certificate must be the one in the row of
// the session. The addresses of replicas are seldom in certificates.
func pinned(cert string) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection checks the certificate itself
		VerifyConnection: func(s tls.ConnectionState) error {
			sum := sha256.Sum256(s.PeerCertificates[0].Raw)
			if hex.EncodeToString(sum[:]) != cert {
				return errors.New("the replica has another certificate than it recorded")
			}
			return nil
		},
	}
}
