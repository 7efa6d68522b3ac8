package api

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"

	"berth"
	"berth/internal/lib/background"
	"berth/internal/lib/connlimit"
)

// The kernel is asked whether a client has read its answer after unreadFirst, and then
// less and less often, down to once per unreadSeldom.
const (
	unreadFirst  = time.Millisecond
	unreadSeldom = 100 * time.Millisecond
)

// clientConn is a connection of HTTP/1, which carries one call after the other. An answer
// counts as unread while the kernel holds some of its bytes, and the next call waits
// until then: a client that sends requests and reads no answers gets one.
//
// The streams of an HTTP/2 connection share its buffers, so the unread bytes of one
// answer are not known. On such a connection the client's window bounds the written
// bytes.
type clientConn struct {
	held  func() int // unread bytes of answers in the kernel's buffer
	close func()
	stall time.Duration // the time in which the client must take 64 KiB
	owner *background.Group

	unread atomic.Pointer[unreadAnswer] // the latest unread answer; nil: none
	cut    atomic.Bool                  // the connection was closed: the client read too slowly
}

// unreadAnswer is an answer with its last bytes still in the kernel's buffer.
type unreadAnswer struct {
	read  chan struct{} // closed when the next call finds that the kernel holds none
	taken func()        // ends the count; may be called again
}

type clientConnKey struct{}

// connContext adds a connection to the context of its calls; see http.Server.ConnContext.
func (o *openCalls) connContext(ctx context.Context, c net.Conn) context.Context {
	ctx = connlimit.Context(ctx, c)
	return context.WithValue(ctx, clientConnKey{}, &clientConn{
		held:  func() int { return connlimit.Unread(ctx) },
		close: func() { connlimit.Close(ctx) },
		stall: o.transfers.limits.Stall,
		owner: o.owner,
	})
}

// clientConnOf returns the connection of a call, or nil for a call that shares its
// connection.
func clientConnOf(r *http.Request) *clientConn {
	c, ok := r.Context().Value(clientConnKey{}).(*clientConn)
	if !ok || r.ProtoMajor != 1 {
		return nil
	}
	return c
}

// sent calls taken once the client has read the answer that was just written, or has lost
// its connection for not reading. After the last answer of a connection, sent returns
// only then, or when the server ends: the buffer of a connection that the server has
// closed cannot be asked.
func (c *clientConn) sent(taken func(), last bool, closing <-chan struct{}) {
	if c == nil || c.held() == 0 {
		taken()
		return
	}
	if last {
		defer taken()
		c.drain(nil, closing)
		return
	}
	a := &unreadAnswer{read: make(chan struct{}), taken: sync.OnceFunc(taken)}
	c.unread.Store(a)
	if !c.owner.Go(func(ctx context.Context) { // ends with the answer, the connection or the server
		defer a.taken()
		c.drain(a.read, ctx.Done())
	}) {
		a.taken()
	}
}

// awaitRead returns once the client has read the answers before this call. It fails if
// the call or the server ends first, or if the client reads too slowly.
func (c *clientConn) awaitRead(ctx context.Context, closing <-chan struct{}) error {
	if c == nil {
		return nil
	}
	read := c.held() == 0 || c.drain(ctx.Done(), closing)
	if a := c.unread.Swap(nil); a != nil {
		close(a.read)
		if read {
			a.taken() // before this call is judged by its tenant's unread answers
		}
	}
	if !read || c.cut.Load() {
		return berth.Errorf(berth.CodeUnavailable,
			"the client has not read the earlier answers on this connection: read each answer before the next request")
	}
	return nil
}

// drain returns true once the kernel holds no bytes of earlier answers, and false when
// one of the channels is closed. It closes the connection of a client that does not take
// 64 KiB, or the rest, within stall.
func (c *clientConn) drain(end, closing <-chan struct{}) bool {
	left, since := c.held(), time.Now()
	for pause := unreadFirst; left > 0; pause = min(2*pause, unreadSeldom) {
		select {
		case <-time.After(pause):
		case <-end:
			return false
		case <-closing:
			return false
		}
		switch held := c.held(); {
		case held == 0 || held <= left-transferBlock:
			left, since = held, time.Now()
		case time.Since(since) > c.stall && !closed(end):
			c.cut.Store(true)
			c.close()
			return false
		}
	}
	return true
}

// closed reports whether the channel is closed; a nil channel is open.
func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// answersInTurn makes a call wait until its client has read the answers before. It comes
// before the call is timed: the wait is the client's time.
func (o *openCalls) answersInTurn(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if err := clientConnOf(c.Request()).awaitRead(c.Request().Context(), o.closing); err != nil {
			return err
		}
		return next(c)
	}
}
