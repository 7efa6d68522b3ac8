package unfinished

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"

	"berth/activities/node"
)

// Exit codes of a reader.
const (
	exitEnded   = 0 // the container has ended
	exitFailed  = 1
	exitTooFast = 3
)

const (
	attachPatience = 10 * time.Second       // with an engine that does not attach the reader
	tick           = 250 * time.Millisecond // between two looks at the line without output
)

// prepared reports that this program can be a reader: it has called Main.
var prepared atomic.Bool

// Main runs a reader and ends the process, if this process was started as one: with Argument, the path of the engine's
// socket and the id of the container. It returns at once otherwise. It is the first call of main.
func Main() {
	prepared.Store(true)
	if len(os.Args) != 4 || os.Args[1] != Argument {
		return
	}
	err := read(os.Args[2], os.Args[3], os.Stdin, os.Stdout)
	switch {
	case err == nil:
		os.Exit(exitEnded)
	case errors.Is(err, node.ErrOutputTooFast):
		os.Exit(exitTooFast)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(exitFailed)
}

// read writes pictures of a container's unfinished line to out until the container has ended, or in has.
func read(socket, id string, in io.Reader, out io.Writer) error {
	timer, err := newKillTimer()
	if err != nil {
		return err
	}
	if err := timer.set(Patience); err != nil {
		return err
	}
	// When memory is short, a reader is the process to kill first.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0o644)
	go func() {
		_, _ = io.Copy(io.Discard, in)
		os.Exit(exitEnded) // the agent has ended, or reads no more
	}()
	stream, err := attach(timer, socket, id)
	if err != nil {
		return err
	}
	defer stream.Close()
	w := &writer{out: out, next: make(chan node.UnfinishedLine, 1)}
	go w.run()
	w.put(node.UnfinishedLine{}) // the reader is attached
	r := newReader(func() error { return timer.set(Patience) }, w.put, time.Now)
	return r.run(stream.Conn, stream.Reader)
}

// attach attaches this process to the output of a container. While it waits for the engine, it proves by the timer that
// it runs: its first read follows the engine's answer at once.
func attach(timer killTimer, socket, id string) (types.HijackedResponse, error) {
	type answer struct {
		stream types.HijackedResponse
		err    error
	}
	ctx, cancel := context.WithTimeout(context.Background(), attachPatience)
	defer cancel()
	answered := make(chan answer, 1)
	go func() {
		api, err := client.NewClientWithOpts(client.WithHost("unix://"+socket), client.WithAPIVersionNegotiation())
		if err != nil {
			answered <- answer{err: err}
			return
		}
		s, err := api.ContainerAttach(ctx, id, container.AttachOptions{Stream: true, Stdout: true, Stderr: true})
		answered <- answer{s, err}
	}()
	for {
		if err := timer.set(Patience); err != nil {
			return types.HijackedResponse{}, err
		}
		select {
		case a := <-answered:
			if a.err != nil {
				return a.stream, fmt.Errorf("attach to container %.12s: %w", id, a.err)
			}
			return a.stream, nil
		case <-time.After(tick):
			if ctx.Err() != nil {
				return types.HijackedResponse{}, fmt.Errorf("attach to container %.12s: %w", id, ctx.Err())
			}
		}
	}
}

// reader follows one container's output.
type reader struct {
	arm   func() error              // sets the kernel's timer
	put   func(node.UnfinishedLine) // takes a picture and never waits
	now   func() time.Time
	lines *lines
	look  func(now time.Time) node.UnfinishedLine // takes a picture of lines

	looked time.Time           // when the last picture was taken
	sent   node.UnfinishedLine // the last one that was handed over
	at     time.Time           // when
}

func newReader(arm func() error, put func(node.UnfinishedLine), now func() time.Time) *reader {
	r := &reader{arm: arm, put: put, now: now, lines: &lines{}}
	r.look = r.lines.picture
	return r
}

// run reads the stream to its end. It returns node.ErrOutputTooFast as soon as more than MaxRate has come within a
// second, or in more than MaxReads reads.
func (r *reader) run(conn net.Conn, stream io.Reader) error {
	split := demux{to: r.lines}
	buf := make([]byte, 64<<10)
	var second time.Time // begin of the present second of output
	var bytes, reads int // of that second
	for {
		if err := r.arm(); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(tick)); err != nil {
			return fmt.Errorf("read output: %w", err)
		}
		n, err := stream.Read(buf)
		now := r.now()
		if now.Sub(second) >= time.Second {
			second, bytes, reads = now, 0, 0
		}
		bytes, reads = bytes+n, reads+1
		if bytes > MaxRate || reads > MaxReads {
			return node.ErrOutputTooFast
		}
		if err := split.write(buf[:n], now); err != nil {
			return err
		}
		switch {
		case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
			r.show(now)
		case errors.Is(err, io.EOF):
			return nil
		default:
			return fmt.Errorf("read output: %w", err)
		}
	}
}

// show hands over a picture that has changed, Every after the one before. It takes a picture once in each tick: output
// in small pieces must not cost a picture for each piece, also while the picture is the same.
func (r *reader) show(now time.Time) {
	if now.Sub(r.looked) < tick || now.Sub(r.at) < Every {
		return
	}
	r.looked = now
	if p := r.look(now); p.Text != r.sent.Text || p.Stderr != r.sent.Stderr {
		r.put(p)
		r.sent, r.at = p, now
	}
}

// writer hands the last picture to the agent. The reader never waits for it: a picture that was not taken yet is
// replaced.
type writer struct {
	out  io.Writer
	next chan node.UnfinishedLine // holds one
}

// put replaces the picture that waits. One goroutine calls it.
func (w *writer) put(p node.UnfinishedLine) {
	select {
	case <-w.next:
	default:
	}
	w.next <- p
}

// run writes pictures, one JSON document a line, until the agent takes no more.
func (w *writer) run() {
	e := json.NewEncoder(w.out)
	for p := range w.next {
		if e.Encode(p) != nil {
			os.Exit(exitFailed)
		}
	}
}
