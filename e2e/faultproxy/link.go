package faultproxy

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// link is one proxied connection: the client's half and the server's half.
type link struct {
	proxy  *Proxy
	client *net.TCPConn
	server *net.TCPConn

	once sync.Once
	gone chan struct{}        // closed when both halves are
	trap atomic.Pointer[trap] // set before the trapped request is forwarded
}

// chunk is the result of one read.
type chunk struct {
	at   time.Time
	data []byte
	end  error // the last one's: io.EOF, or how the connection broke
}

// queue is how many chunks wait in a cut before the sender is made to.
const queue = 64

// run forwards both directions until both have ended, and then closes the connection.
func (l *link) run() {
	var both sync.WaitGroup
	both.Go(func() { l.forward(l.client, l.server, ToServer) })
	both.Go(func() { l.forward(l.server, l.client, ToClient) })
	both.Wait()
	l.reset() // both halves have ended in order: nothing is lost by it
}

// forward carries one direction until that direction ends.
func (l *link) forward(from, to *net.TCPConn, d Direction) {
	chunks := make(chan chunk, queue)
	var reading sync.WaitGroup
	reading.Go(func() { l.read(from, chunks) })
	defer reading.Wait()
	var seen tail
	for {
		var c chunk
		select {
		case c = <-chunks:
		case <-l.gone:
			return
		}
		if !l.hold(c, d) {
			return
		}
		switch {
		case errors.Is(c.end, io.EOF):
			_ = to.CloseWrite() // a broken connection shows at the next read
			return
		case c.end != nil:
			l.reset()
			return
		}
		if l.caught(c.data, d, &seen) {
			return
		}
		if _, err := to.Write(c.data); err != nil {
			l.reset()
			return
		}
	}
}

// read queues the bytes from one end of the connection, and finally the error that ended it.
func (l *link) read(from *net.TCPConn, chunks chan<- chunk) {
	for {
		b := make([]byte, 32<<10)
		n, err := from.Read(b)
		if n > 0 && !l.queue(chunks, chunk{at: time.Now(), data: b[:n]}) {
			return
		}
		if err != nil {
			l.queue(chunks, chunk{at: time.Now(), end: err})
			return
		}
	}
}

// queue adds a chunk, and returns false if the link is gone before the queue has room.
func (l *link) queue(chunks chan<- chunk, c chunk) bool {
	select {
	case chunks <- c:
		return true
	case <-l.gone:
		return false
	}
}

// hold returns when the chunk may pass, or false when the link is gone.
func (l *link) hold(c chunk, d Direction) bool {
	for {
		now, changed := l.proxy.state()
		wait := time.Until(c.at.Add(now.delay))
		if !now.cut[d] && (now.delay == 0 || wait <= 0) {
			return true
		}
		var due <-chan time.Time
		if !now.cut[d] {
			due = time.After(wait)
		}
		select {
		case <-due:
		case <-changed:
		case <-l.gone:
			return false
		}
	}
}

// caught reports whether the chunk begins the reply that CutReply waits for. It
// also sees a request that is to be caught, before it is forwarded.
func (l *link) caught(data []byte, d Direction, seen *tail) bool {
	if d == ToServer {
		if t := l.proxy.spring(seen, data); t != nil {
			l.trap.Store(t)
		}
		return false
	}
	t := l.trap.Load()
	if t == nil {
		return false
	}
	l.reset()
	close(t.done)
	return true
}

// reset ends both halves at once, like a host that has lost its state.
func (l *link) reset() {
	l.once.Do(func() {
		close(l.gone)
		reset(l.client)
		reset(l.server)
	})
}

// reset closes a connection with a TCP reset: without lingering, unsent bytes are dropped.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
