package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	"github.com/coder/websocket"

	"berth"
	"berth/internal/lib/framed"
	"berth/spec"
	"berth/wire"
)

// Sessions are the calls about sessions in running members. Get them from Client.Sessions.
type Sessions struct{ c *Client }

// Sessions returns the calls about sessions in running members.
func (c *Client) Sessions() Sessions { return Sessions{c} }

// Size is the size of a terminal.
type Size = framed.Size

// A CutError is the end of a session without a status: the connection was cut, or the server closed
// it for a reason.
type CutError struct {
	Cause   wire.SessionCause // "": the connection was cut
	Message string
	Err     error
}

// Error names the reason.
func (e *CutError) Error() string {
	switch {
	case e.Message != "":
		return e.Message
	case e.Cause != "":
		return "the session ended: " + string(e.Cause)
	default:
		return fmt.Sprintf("the connection was cut: %v", e.Err)
	}
}

// Unwrap returns the error of the connection, which may be nil.
func (e *CutError) Unwrap() error { return e.Err }

// cutOf returns the CutError of a connection that ended.
func cutOf(err error) *CutError {
	cause, message, _ := framed.Closed(err)
	return &CutError{Cause: cause, Message: message, Err: err}
}

// Open requests a session in a running member of a job.
func (s Sessions) Open(ctx context.Context, job berth.JobID, req spec.NewSession) (made wire.JobSession, err error) {
	_, err = s.c.do(ctx, request{
		method: http.MethodPost, path: "/v1/jobs/" + url.PathEscape(string(job)) + "/sessions", body: req, once: true,
	}, &made)
	return made, err
}

// SessionsQuery selects sessions of a job. The zero query selects the newest 100.
type SessionsQuery struct {
	Open   bool   // only sessions that have not ended
	Limit  int    // 0: 100; at most 1000
	Cursor string // NextCursor of the page before; "": the first page
}

// List returns a page of the sessions in a job's containers, newest first. NextCursor of the page is
// the Cursor of the next; "" after the last page.
func (s Sessions) List(ctx context.Context, job berth.JobID, q SessionsQuery) (wire.Page[wire.SessionRecord], error) {
	v := url.Values{}
	set(v, "cursor", q.Cursor)
	if q.Open {
		v.Set("open", "true")
	}
	if q.Limit > 0 {
		v.Set("limit", strconv.Itoa(q.Limit))
	}
	var page wire.Page[wire.SessionRecord]
	_, err := s.c.do(ctx, request{method: http.MethodGet, path: jobPath(job) + "/sessions", query: v}, &page)
	return page, err
}

// Connect connects to a session, which takes one connection. The caller closes it.
func (s Sessions) Connect(ctx context.Context, id string) (*websocket.Conn, error) {
	header := http.Header{}
	if s.c.token != "" {
		header.Set("Authorization", "Bearer "+s.c.token)
	}
	dialing, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	ws, res, err := websocket.Dial(dialing, s.c.base+"/v1/sessions/"+url.PathEscape(id), &websocket.DialOptions{
		HTTPClient: s.c.http, HTTPHeader: header, Subprotocols: []string{wire.SessionProtocol},
	})
	if err == nil {
		ws.SetReadLimit(framed.MaxFrame)
		return ws, nil
	}
	if res != nil && res.StatusCode >= 300 {
		return nil, problem(res)
	}
	return nil, err
}

// Streams are the user's side of a session. Stdin may be nil; a nil channel never fires.
type Streams struct {
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Sizes   <-chan Size   // of the terminal
	Signals <-chan string // for the command, such as SIGINT
}

// Run opens a session of kind exec or files and copies until its end. It returns the exit
// code of the command, or an error: a CutError if the end of the command is not known. Run does not
// wait for a Read of Stdin that is under way.
func (s Sessions) Run(ctx context.Context, job berth.JobID, req spec.NewSession, of Streams) (int, error) {
	made, err := s.Open(ctx, job, req)
	if err != nil {
		return 0, err
	}
	ws, err := s.Connect(ctx, made.ID)
	if err != nil {
		return 0, err
	}
	r := &running{io: of, status: make(chan wire.SessionStatus, 1)}
	r.conn = framed.New(ws, []framed.Channel{framed.Stdout, framed.Stderr}, []framed.Channel{framed.Stdin},
		framed.Beats{}, r.control)
	return r.run(ctx, ws)
}

// running is a session that this process runs.
type running struct {
	io     Streams
	conn   *framed.Conn
	status chan wire.SessionStatus // the last frame; holds one
}

// control takes the status.
func (r *running) control(ch framed.Channel, payload []byte) {
	var status wire.SessionStatus
	if ch == framed.Status && json.Unmarshal(payload, &status) == nil {
		select {
		case r.status <- status:
		default:
		}
	}
}

// run copies until the end.
func (r *running) run(ctx context.Context, ws *websocket.Conn) (int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	served := make(chan error, 1)
	go func() { served <- r.conn.Serve(ctx) }()
	go r.send(ctx)
	var outputs sync.WaitGroup
	for ch, w := range map[framed.Channel]io.Writer{framed.Stdout: r.io.Stdout, framed.Stderr: r.io.Stderr} {
		outputs.Go(func() { _, _ = io.Copy(output{w, cancel}, r.conn.Reader(ch)) })
	}
	var err error
	select {
	case status := <-r.status:
		_ = ws.Close(websocket.StatusNormalClosure, "")
		<-served
		r.status <- status
	case err = <-served:
	}
	outputs.Wait()
	select {
	case status := <-r.status: // perhaps the last frame before the end of the connection
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		return result(status)
	default:
	}
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	return 0, cutOf(err)
}

// output notes the error of a writer of the user, and ends the session with it: the command would
// otherwise wait for a reader that never comes.
type output struct {
	w   io.Writer
	end context.CancelCauseFunc
}

func (o output) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if err != nil {
		o.end(fmt.Errorf("write the output of the session: %w", err))
	}
	return n, err
}

// result returns the exit code in a status, or the reason why there is none.
func result(s wire.SessionStatus) (int, error) {
	if s.Exit == nil {
		if s.Cause == wire.CauseRefused {
			return 0, berth.Errorf(berth.CodeConflict, "%s", s.Message)
		}
		return 0, &CutError{Cause: s.Cause, Message: s.Message}
	}
	return *s.Exit, nil
}

// send sends the input, and sizes and signals as they come. It ends with the connection, but for a
// Read of the input under way.
func (r *running) send(ctx context.Context) {
	in := r.conn.Writer(framed.Stdin)
	if r.io.Stdin != nil {
		go func() {
			if _, err := io.Copy(in, r.io.Stdin); err == nil {
				_ = in.Close()
			}
		}()
	} else {
		_ = in.Close()
	}
	for {
		select {
		case <-ctx.Done():
			return
		case size := <-r.io.Sizes:
			if text, err := json.Marshal(size); err == nil {
				_ = r.conn.Send(framed.Resize, text)
			}
		case name := <-r.io.Signals:
			_ = r.conn.Send(framed.Signal, []byte(name))
		}
	}
}
