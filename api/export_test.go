package api

import (
	"time"

	"github.com/labstack/echo/v4"

	"berth"
)

// Routes returns the router's own table: all served routes, described or not.
func (s *Server) Routes() []*echo.Route { return s.router.echo.Routes() }

// Panic mounts a route that panics.
func (s *Server) Panic(path string) {
	s.router.echo.GET(path, func(echo.Context) error { panic("a bug") })
}

// Recent is the map of limited room, for texts and numbers.
type Recent struct{ r *recent[string, int] }

func NewRecent(room int) Recent                  { return Recent{newRecent[string, int](room)} }
func (r Recent) Get(key string) (v int, ok bool) { return r.r.get(key) }
func (r Recent) Put(key string, v int)           { r.r.put(key, v) }

// OpenTransfers returns how many transfers the server has open.
func (s *Server) OpenTransfers() (n int) {
	s.calls.transfers.mu.Lock()
	defer s.calls.transfers.mu.Unlock()
	for _, k := range s.calls.transfers.all {
		n += k
	}
	return n
}

// TransfersOf returns how many transfers a token has open.
func (s *Server) TransfersOf(token string) int {
	s.calls.transfers.mu.Lock()
	defer s.calls.transfers.mu.Unlock()
	if of := s.calls.transfers.tokens[token]; of != nil {
		return len(of.open)
	}
	return 0
}

// AgeMachineTokens makes the machines' tokens be confirmed longer ago.
func (s *Server) AgeMachineTokens(by time.Duration) {
	a := s.auth.machines
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known.each(func(k *knownMachine) *knownMachine {
		k.confirmed = k.confirmed.Add(-by)
		return k
	})
}

// AgeUserTokens makes the users' tokens be looked up longer ago.
func (s *Server) AgeUserTokens(by time.Duration) {
	s.auth.mu.Lock()
	defer s.auth.mu.Unlock()
	s.auth.right.each(func(k knownToken) knownToken {
		k.asked = k.asked.Add(-by)
		return k
	})
}

// StopRates stops the clock of the rates of calls and of wrong tokens, whose buckets no longer refill by
// themselves. pass moves that clock on.
func (s *Server) StopRates() (pass func(time.Duration)) {
	l := s.limits
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.now = func() time.Time { return now } // called with l.mu held
	return func(by time.Duration) {
		l.mu.Lock()
		defer l.mu.Unlock()
		now = now.Add(by)
	}
}

// MachineTrust is how long a token renews a lease while it cannot be confirmed.
const MachineTrust = machineTrust

// OpenCalls returns how many users' calls have a slot or wait for one.
func (s *Server) OpenCalls() int { return int(s.calls.calls.Load()) }

// UnreadAnswers returns how many bytes of answers count as unread.
func (s *Server) UnreadAnswers() int {
	s.calls.unread.mu.Lock()
	defer s.calls.unread.mu.Unlock()
	return s.calls.unread.all
}

// Unread are answers that clients have not read.
type Unread struct{ u *unread }

func NewUnread() Unread                                     { return Unread{newUnread()} }
func (u Unread) Add(t berth.TenantID, n int) (taken func()) { return u.u.add(t, n) }
func (u Unread) Refuses(t berth.TenantID) error             { return u.u.refuses(t) }

// DownloadsOfAddress is the number of downloads of agents that one address may have under way.
const DownloadsOfAddress = downloadsOfAddress

// DownloadPace is the pace that a download of an agent must keep.
type DownloadPace = downloadPace

// NewDownloadPace returns the pace of the product.
func NewDownloadPace() DownloadPace { return downloadPace{stall: downloadStall} }

func (p *downloadPace) Deadline(now time.Time, n int) time.Time { return p.deadline(now, n) }
