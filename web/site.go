package web

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"berth"
	"berth/db"
	"berth/internal/lib/overload"
)

// API makes calls of the public API inside this process. *api.Server implements it.
type API interface {
	// RoundTripper returns a transport for the calls of a principal on behalf of a request. With
	// nil the calls authenticate themselves.
	RoundTripper(behalf *http.Request, p *db.Principal) http.RoundTripper
}

// Options are the dependencies of a Site. API, Sessions and Logger are required.
type Options struct {
	API      API
	Sessions *db.WebSessions
	Logger   *slog.Logger
	Version  string

	// Proxies are the networks of proxies whose X-Forwarded-Proto is believed; nil: none.
	Proxies []netip.Prefix

	// Closing ends the streams of events when it is closed; nil: they end with their calls.
	Closing <-chan struct{}
}

// Site is the dashboard of one process. It may be used concurrently.
type Site struct {
	Options
	mux      *http.ServeMux
	live     *http.ServeMux // the pages with live rows alone, which a stream may read
	guarded  http.Handler
	sessions *sessions
	boards   *boards
}

// New returns a dashboard. It starts nothing.
func New(o Options) (*Site, error) {
	if o.API == nil || o.Sessions == nil || o.Logger == nil {
		return nil, errors.New("web: API, Sessions and Logger are required")
	}
	s := &Site{Options: o, mux: http.NewServeMux(), live: http.NewServeMux(),
		sessions: newSessions(o.Sessions)}
	s.boards = newBoards(s)
	for _, r := range s.routes() {
		h := s.serve(r)
		s.mux.Handle(r.pattern, h)
		if r.live {
			s.live.Handle(r.pattern, h)
		}
	}
	// State changes by POST only, so this refuses each change that another site starts.
	cross := http.NewCrossOriginProtection()
	cross.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.showError(w, r, page{}, berth.Errorf(berth.CodeForbidden,
			"a page of another site sent this request; open the dashboard itself and try again"))
	}))
	s.guarded = cross.Handler(s.mux)
	return s, nil
}

// policy is the content security policy of all pages: nothing from other hosts, no inline script
// or style, no frames.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; " +
	"trusted-types berth"

// writeTime is how long a browser may take to read a piece of a page.
const writeTime = 15 * time.Second

// ServeHTTP serves a page.
func (s *Site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Referrer-Policy", "same-origin") // forms of this site send Origin
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cache-Control", "no-store")
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTime))
	// The session is read on the connections for users' reads.
	s.guarded.ServeHTTP(w, r.WithContext(overload.As(r.Context(), overload.Read)))
}

// Routes lists the routes of all pages, see api.Pages.
func (s *Site) Routes() []string {
	var patterns []string
	for _, r := range s.routes() {
		patterns = append(patterns, r.pattern)
	}
	return patterns
}

// serve returns the handler of a route. It finds the reader, calls the page, and renders its
// result or its error.
func (s *Site) serve(of route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		}
		v := &visit{site: s, w: w, r: r, page: s.pageOf(r, of.section)}
		v.page.Live = of.live
		v.reading = r.Context().Value(readingKey{}) != nil
		if !of.open {
			p, err := s.reader(r, !of.script && !v.reading)
			if berth.CodeOf(err) == berth.CodeUnauthorized {
				s.askToSignIn(v)
				return
			} else if err != nil {
				s.showError(w, r, v.page, err)
				return
			}
			v.admit(p)
		}
		ctx, cancel := v.limited(of.stream)
		defer cancel()
		result, err := of.serve(ctx, v)
		switch {
		case errors.Is(err, errWritten):
		case berth.CodeOf(err) == berth.CodeUnauthorized && !of.open:
			s.askToSignIn(v) // the token was revoked between two look-ups
		case err != nil:
			s.showError(w, r, v.page, err)
		case result.redirect != "":
			http.Redirect(w, r, result.redirect, http.StatusSeeOther)
		default:
			s.show(w, r, v.page, result)
		}
	})
}

// errWritten reports that a page has written its answer itself.
var errWritten = errors.New("the answer is written")

// maxForm is the longest form in bytes: a job file, encoded.
const maxForm = 3 << 20

// incident returns a new id, by which an error page and the log can be matched.
func incident() string {
	var b [6]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
