package framed

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// Channel is the first byte of a frame.
type Channel byte

// The channels.
const (
	Stdin  Channel = 0
	Stdout Channel = 1
	Stderr Channel = 2
	Status Channel = 3
	Resize Channel = 4
	Signal Channel = 5
	credit Channel = 6
	ended  Channel = 255
)

// MaxPayload is the longest payload of a frame, and Window the number of bytes of a channel that
// its receiver buffers.
const (
	MaxPayload = 64 << 10
	Window     = 1 << 20
)

// MaxFrame is the longest message of a session, for read limits.
const MaxFrame = MaxPayload + 1

// Beats are the times of the pings of a connection. Zero values have the defaults.
type Beats struct {
	Every time.Duration // 15 s between two pings
	Dead  time.Duration // 30 s without the pong of a ping
}

func (b Beats) orDefaults() Beats {
	if b.Every == 0 {
		b.Every = 15 * time.Second
	}
	if b.Dead == 0 {
		b.Dead = 30 * time.Second
	}
	return b
}

// Keep pings a websocket until ctx ends or a pong is missing, and returns the reason. The caller
// must have another goroutine read from the websocket.
func Keep(ctx context.Context, ws *websocket.Conn, b Beats) error {
	b = b.orDefaults()
	tick := time.NewTicker(b.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		waiting, cancel := context.WithTimeout(ctx, b.Dead)
		err := ws.Ping(waiting)
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return fmt.Errorf("no answer to a ping within %s: %w", b.Dead, err)
		}
	}
}

// Conn is one end of a session. Its methods may be called concurrently. Serve must run for the
// readers to get data and the writers to get credit.
type Conn struct {
	ws      *websocket.Conn
	beats   Beats
	control func(c Channel, payload []byte)

	ctx    context.Context // of all writes; ends with Serve
	cancel context.CancelCauseFunc

	in  map[Channel]*inbound
	out map[Channel]*outbound
}

// New returns an end that receives data on the channels reads and sends data on the channels
// writes. It calls control from Serve with each frame of another channel; control must not
// block.
func New(
	ws *websocket.Conn, reads, writes []Channel, beats Beats, control func(c Channel, payload []byte),
) *Conn {
	ws.SetReadLimit(MaxFrame)
	c := &Conn{ws: ws, beats: beats, control: control, in: map[Channel]*inbound{}, out: map[Channel]*outbound{}}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	for _, ch := range reads {
		c.in[ch] = newInbound(c, ch)
	}
	for _, ch := range writes {
		c.out[ch] = newOutbound(c, ch)
	}
	return c
}

// Serve receives frames until the connection ends, and returns the reason. All readers and
// writers fail with it from then on. The end of ctx cuts the connection; see Close for an end
// with a reason.
func (c *Conn) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	all.Go(func() {
		if err := Keep(ctx, c.ws, c.beats); ctx.Err() == nil {
			cancel(err)
		}
	})
	err := c.receive(ctx)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	cancel(err)
	c.cancel(err)
	for _, in := range c.in {
		in.fail(err)
	}
	for _, out := range c.out {
		out.fail(err)
	}
	_ = c.ws.CloseNow()
	all.Wait()
	return err
}

// receive takes one frame after the other.
func (c *Conn) receive(ctx context.Context) error {
	for {
		kind, frame, err := c.ws.Read(ctx)
		if err != nil {
			return err
		}
		if kind != websocket.MessageBinary || len(frame) == 0 {
			return errors.New("received a message that is no frame")
		}
		if err := c.take(Channel(frame[0]), frame[1:]); err != nil {
			return err
		}
	}
}

// take handles one frame.
func (c *Conn) take(ch Channel, payload []byte) error {
	switch ch {
	case Stdin, Stdout, Stderr:
		in := c.in[ch]
		if in == nil {
			return fmt.Errorf("received data on channel %d, which this end sends on", ch)
		}
		return in.add(payload)
	case credit:
		if len(payload) != 5 || c.out[Channel(payload[0])] == nil {
			return errors.New("received a wrong credit")
		}
		c.out[Channel(payload[0])].grant(int(binary.BigEndian.Uint32(payload[1:])))
		return nil
	case ended:
		if len(payload) != 1 || c.in[Channel(payload[0])] == nil {
			return errors.New("received the end of a channel that this end does not read")
		}
		c.in[Channel(payload[0])].fail(io.EOF)
		return nil
	case Status, Resize, Signal:
		c.control(ch, payload)
		return nil
	default:
		return nil // of a later version
	}
}

// Reader returns the data of a channel. It ends with io.EOF where the sender has closed the
// channel, and with the reason of Serve where the connection has ended.
func (c *Conn) Reader(ch Channel) io.Reader { return c.in[ch] }

// Writer returns the sending side of a channel. Close sends the end of the channel.
func (c *Conn) Writer(ch Channel) io.WriteCloser { return c.out[ch] }

// Send sends a frame of a channel without data.
func (c *Conn) Send(ch Channel, payload []byte) error {
	return c.ws.Write(c.ctx, websocket.MessageBinary, append([]byte{byte(ch)}, payload...))
}

// inbound buffers the bytes of a channel until the program takes them.
type inbound struct {
	conn *Conn
	ch   Channel

	mu    sync.Mutex
	some  sync.Cond
	held  [][]byte
	bytes int
	taken int // since the last credit
	err   error
}

func newInbound(c *Conn, ch Channel) *inbound {
	in := &inbound{conn: c, ch: ch}
	in.some.L = &in.mu
	return in
}

// add buffers a payload, which must lie within the window.
func (in *inbound) add(p []byte) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.bytes += len(p); in.bytes > Window {
		return fmt.Errorf("received more than %d bytes of channel %d at once", Window, in.ch)
	}
	if in.err == nil && len(p) > 0 {
		in.held = append(in.held, p)
		in.some.Signal()
	}
	return nil
}

// fail ends the channel after the buffered bytes; the first error counts.
func (in *inbound) fail(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.err == nil {
		in.err = err
	}
	in.some.Broadcast()
}

// Read waits for bytes, and grants the sender new credit for every quarter of the window.
func (in *inbound) Read(p []byte) (int, error) {
	in.mu.Lock()
	for len(in.held) == 0 && in.err == nil {
		in.some.Wait()
	}
	if len(in.held) == 0 {
		defer in.mu.Unlock()
		return 0, in.err
	}
	n := copy(p, in.held[0])
	if in.held[0] = in.held[0][n:]; len(in.held[0]) == 0 {
		in.held = in.held[1:]
	}
	in.bytes -= n
	in.taken += n
	grant := 0
	if in.taken >= Window/4 && in.err == nil {
		grant, in.taken = in.taken, 0
	}
	in.mu.Unlock()
	if grant > 0 {
		payload := binary.BigEndian.AppendUint32([]byte{byte(in.ch)}, uint32(grant))
		_ = in.conn.Send(credit, payload) // Serve returns the reason of a failure
	}
	return n, nil
}

// outbound sends the bytes of a channel while it has credit.
type outbound struct {
	conn *Conn
	ch   Channel
	turn sync.Mutex // one writer at a time

	mu     sync.Mutex
	some   sync.Cond
	credit int
	closed bool
	err    error
}

func newOutbound(c *Conn, ch Channel) *outbound {
	out := &outbound{conn: c, ch: ch, credit: Window}
	out.some.L = &out.mu
	return out
}

// grant adds credit.
func (out *outbound) grant(n int) {
	out.mu.Lock()
	defer out.mu.Unlock()
	out.credit = min(out.credit+n, Window)
	out.some.Broadcast()
}

// fail ends all writes.
func (out *outbound) fail(err error) {
	out.mu.Lock()
	defer out.mu.Unlock()
	if out.err == nil {
		out.err = err
	}
	out.some.Broadcast()
}

// take waits for credit and takes up to most of it.
func (out *outbound) take(most int) (int, error) {
	out.mu.Lock()
	defer out.mu.Unlock()
	for out.credit == 0 && out.err == nil && !out.closed {
		out.some.Wait()
	}
	switch {
	case out.err != nil:
		return 0, out.err
	case out.closed:
		return 0, io.ErrClosedPipe
	}
	n := min(most, out.credit, MaxPayload)
	out.credit -= n
	return n, nil
}

// Write sends p in frames, each within the credit.
func (out *outbound) Write(p []byte) (written int, err error) {
	out.turn.Lock()
	defer out.turn.Unlock()
	for len(p) > 0 {
		n, err := out.take(len(p))
		if err != nil {
			return written, err
		}
		if err := out.conn.Send(out.ch, p[:n]); err != nil {
			return written, err
		}
		p, written = p[n:], written+n
	}
	return written, nil
}

// Close sends the end of the channel, once.
func (out *outbound) Close() error {
	out.mu.Lock()
	again := out.closed
	out.closed = true
	out.some.Broadcast()
	out.mu.Unlock()
	if again {
		return nil
	}
	return out.conn.Send(ended, []byte{byte(out.ch)})
}
