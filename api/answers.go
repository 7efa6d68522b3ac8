package api

import (
	"bytes"
	"fmt"
	"net/http"
	"sync"
	"time"

	"berth"
)

// maxAnswer is the longest answer, in bytes, of a user's call. Transfers are exempt.
//
// An answer counts as unread until its client has received all of it, with at least
// unreadLeast bytes. While a tenant has unreadOfTenant bytes unread, or all tenants
// together have unreadOfAll and the tenant unreadFair of these, its calls are refused.
const (
	maxAnswer      = 64 << 20
	unreadLeast    = 64 << 10
	unreadOfTenant = 16 << 20
	unreadOfAll    = 128 << 20
	unreadFair     = 1 << 20
)

// answerTimeout bounds the writing of an answer that is neither a transfer nor held in
// memory: answers to agents, pages, metrics.
const answerTimeout = time.Minute

// heldAnswer keeps the answer of a user's call in memory, so that the call can return its
// slot before a client that reads slowly, or never, receives a byte.
type heldAnswer struct {
	http.ResponseWriter // of the connection
	status              int
	body                bytes.Buffer
	tooLong             bool
}

// Unwrap gives http.ResponseController the connection's deadlines.
func (a *heldAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// FlushError does nothing: no byte is sent before the answer is complete.
func (a *heldAnswer) FlushError() error { return nil }

// WriteHeader keeps the status; the first one counts.
func (a *heldAnswer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

// Write keeps b, up to maxAnswer bytes in all.
func (a *heldAnswer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if a.tooLong = a.tooLong || a.body.Len()+len(b) > maxAnswer; a.tooLong {
		return 0, fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	}
	return a.body.Write(b)
}

// send writes the answer to the connection. The client must take each 64 KiB
// within stall.
func (a *heldAnswer) send(stall time.Duration) error {
	control := http.NewResponseController(a.ResponseWriter)
	extend := func() { _ = control.SetWriteDeadline(time.Now().Add(stall)) } // not every transport has deadlines
	extend()
	a.ResponseWriter.WriteHeader(a.status)
	for a.body.Len() > 0 {
		extend()
		if _, err := a.ResponseWriter.Write(a.body.Next(transferBlock)); err != nil {
			return err // the client has gone, or does not read
		}
	}
	return nil
}

// unread counts the bytes of answers that clients have not received, by tenant. Its
// methods may be called concurrently.
type unread struct {
	mu      sync.Mutex
	all     int
	tenants map[berth.TenantID]int
}

func newUnread() *unread { return &unread{tenants: map[berth.TenantID]int{}} }

// refuses returns an error while a tenant's clients leave too much unread.
func (u *unread) refuses(tenant berth.TenantID) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	mine := u.tenants[tenant]
	if mine < unreadOfTenant && (u.all < unreadOfAll || mine < unreadFair) {
		return nil
	}
	return berth.Errorf(berth.CodeUnavailable,
		"clients of tenant %s have not read %s of answers; read them, or try again", tenant,
		berth.BytesText(int64(mine)))
}

// add counts an answer until the returned function is called.
func (u *unread) add(tenant berth.TenantID, size int) (taken func()) {
	size = max(size, unreadLeast)
	count := func(n int) {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.all += n
		if u.tenants[tenant] += n; u.tenants[tenant] == 0 {
			delete(u.tenants, tenant)
		}
	}
	count(size)
	return func() { count(-size) }
}
