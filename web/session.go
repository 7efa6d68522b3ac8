package web

import (
	"context"
	"crypto/sha256"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"berth"
	"berth/db"
)

// sessionMemory is how long a look-up of a session is used again, so that a page with its picture
// and its stream costs one query. A revoked token's session ends within it.
const sessionMemory = time.Second

// sessionRoom bounds the remembered sessions. All are forgotten when it is full.
const sessionRoom = 4096

// sessionLooks bounds the look-ups at a time: a flood of invented sessions leaves connections to
// the calls of others.
const sessionLooks = 4

// sessions remember for a moment which principal a session belongs to.
type sessions struct {
	store *db.WebSessions
	looks chan struct{} // holds an entry for each look-up under way

	mu   sync.Mutex
	seen map[[sha256.Size]byte]seenSession // by the SHA-256 of the text
}

type seenSession struct {
	principal db.Principal
	until     time.Time
	used      bool // the look-up was a use of the session; a use must not be answered from one that was not
}

func newSessions(store *db.WebSessions) *sessions {
	return &sessions{store: store, looks: make(chan struct{}, sessionLooks),
		seen: map[[sha256.Size]byte]seenSession{}}
}

// principal returns the principal of a session. The memory counts from before the look-up, so a
// token revoked during it is not trusted longer than sessionMemory. use is
// false for calls of the script, which must not keep the session of an open page from ending.
func (s *sessions) principal(ctx context.Context, text string, use bool) (db.Principal, error) {
	key, now := sha256.Sum256([]byte(text)), time.Now()
	s.mu.Lock()
	seen, ok := s.seen[key]
	s.mu.Unlock()
	if ok && now.Before(seen.until) && (seen.used || !use) {
		return seen.principal, nil
	}
	select {
	case s.looks <- struct{}{}:
	case <-ctx.Done():
		return db.Principal{}, ctx.Err()
	}
	find := s.store.Find
	if !use {
		find = s.store.Look
	}
	p, err := find(ctx, text)
	<-s.looks
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		delete(s.seen, key)
		return db.Principal{}, err
	}
	if len(s.seen) >= sessionRoom {
		clear(s.seen)
	}
	s.seen[key] = seenSession{p, now.Add(sessionMemory), use}
	return p, nil
}

// end ends a session at once.
func (s *sessions) end(ctx context.Context, text string) error {
	s.mu.Lock()
	delete(s.seen, sha256.Sum256([]byte(text)))
	s.mu.Unlock()
	return s.store.Delete(ctx, text)
}

// endOwn ends all sessions of the caller's tokens, and returns their number. This process forgets the look-ups of
// all sessions, since it does not know whose they are. Other replicas forget within sessionMemory.
func (s *sessions) endOwn(ctx context.Context, of db.Principal) (int64, error) {
	ended, err := s.store.DeleteOwn(ctx, of)
	s.mu.Lock()
	clear(s.seen)
	s.mu.Unlock()
	return ended, err
}

// reader returns the principal of the request's session. use: the reader has asked for a page.
func (s *Site) reader(r *http.Request, use bool) (db.Principal, error) {
	text := s.sessionText(r)
	if text == "" {
		return db.Principal{}, berth.Errorf(berth.CodeUnauthorized, "not signed in")
	}
	return s.sessions.principal(r.Context(), text, use)
}

// sessionText returns the text of the request's session, "" without one.
func (s *Site) sessionText(r *http.Request) string {
	name, ok := s.cookieName(r)
	if !ok {
		return ""
	}
	c, err := r.Cookie(name)
	if err != nil || len(c.Value) != 64 {
		return ""
	}
	return c.Value
}

// cookieName returns the name of the session's cookie. ok is false where a session would travel
// readable: over plain HTTP to another machine.
//
// Browsers accept the prefix __Host- over TLS only. On the loopback address the name holds the
// port instead, since browsers share cookies between the ports of a host.
func (s *Site) cookieName(r *http.Request) (name string, ok bool) {
	if s.encrypted(r) {
		return "__Host-berth", true
	}
	if !onLoopback(r) {
		return "", false
	}
	_, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		port = "80"
	}
	return "berth-" + port, true
}

// encrypted reports whether the browser speaks TLS, with this server or with a trusted proxy.
func (s *Site) encrypted(r *http.Request) bool {
	if r.TLS != nil {
		return true
	}
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || r.Header.Get("X-Forwarded-Proto") != "https" {
		return false
	}
	for _, p := range s.Proxies {
		if p.Contains(from.Addr().Unmap()) {
			return true
		}
	}
	return false
}

// onLoopback reports whether the browser runs on this machine and addresses it by a loopback
// name. The address alone would admit requests that a proxy on this machine passes on in plain
// text, and the name alone would admit requests from other machines.
func onLoopback(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !from.Addr().Unmap().IsLoopback() || r.Header.Get("X-Forwarded-For") != "" {
		return false
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
