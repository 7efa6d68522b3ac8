package alarms_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/emersion/go-smtp"

	"berth/spec"
)

// mailServer is a mail server that can refuse all mail.
type mailServer struct {
	address string
	refuses atomic.Bool
}

// startMailServer starts a mail server, which ends with the test.
func startMailServer(t testing.TB) *mailServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &mailServer{address: l.Addr().String()}
	server := smtp.NewServer(m)
	server.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) }) // until Close
	t.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
	return m
}

// NewSession implements smtp.Backend.
func (m *mailServer) NewSession(*smtp.Conn) (smtp.Session, error) { return &mailSession{m}, nil }

// mailSession is a connection to a mailServer.
type mailSession struct{ server *mailServer }

// Mail implements smtp.Session. A server that refuses answers as a server without storage does.
func (s *mailSession) Mail(string, *smtp.MailOptions) error {
	if s.server.refuses.Load() {
		return &smtp.SMTPError{Code: 452, Message: "insufficient system storage"}
	}
	return nil
}

// Rcpt implements smtp.Session.
func (*mailSession) Rcpt(string, *smtp.RcptOptions) error { return nil }

// Data implements smtp.Session.
func (*mailSession) Data(r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

// Reset implements smtp.Session.
func (*mailSession) Reset() {}

// Logout implements smtp.Session.
func (*mailSession) Logout() error { return nil }

// mail lets the mail server refuse all mail.
func (p *plant) mail() lane {
	const channel = "oncall"
	test := func(ctx context.Context) error {
		_, err := p.API.TestChannel(ctx, channel)
		return err
	}
	return lane{{
		alert: "BerthMailFails", fault: "the mail server refuses all mail",
		begin: func(ctx context.Context) error {
			p.mails.refuses.Store(true)
			_, _, err := p.API.SetChannel(ctx, channel, spec.Channel{
				Kind: spec.ChannelEmail, To: []string{"oncall@example.com"}})
			return errors.Join(err, test(ctx))
		},
		looks: []look{
			p.logged(logOf(&p.dispatch), "mail server refused or failed"),
			p.command("berth channel list", "", `oncall.*email.*452`),
		},
		end: func(ctx context.Context) error {
			p.mails.refuses.Store(false)
			return test(ctx)
		},
		verify: `sum(increase(berth_notifications_total{kind="email",result="delivered"}[150s])) > 0`,
	}}
}
