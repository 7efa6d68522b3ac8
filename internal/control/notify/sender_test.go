package notify_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"mime"
	"net"
	"net/http"
	"net/http/httptest"
	netmail "net/mail"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/notify"
	"berth/internal/control/webhook"
	"berth/internal/lib/publicnet"
	"berth/internal/lib/sealer"
	"berth/spec"
)

// waitLimit bounds each wait for a condition. Only a test that fails waits so long.
const waitLimit = 5 * time.Minute

// site is a database with secrets, and a sender.
type site struct {
	t    *testing.T
	db   *db.DB
	keys *sealer.Keys
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t}
	var err error
	if s.db, err = db.Open(t.Context(), dbtest.URL(t), db.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.db.Close)
	file := filepath.Join(t.TempDir(), "keys")
	if err := sealer.Make(file); err != nil {
		t.Fatal(err)
	}
	if s.keys, err = sealer.Load(file); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) secret(name, value string) {
	s.t.Helper()
	key, sealed := s.keys.Seal("default", name, []byte(value))
	if _, _, err := s.db.Secrets.Set(s.t.Context(), db.SealedSecret{Tenant: "default", Name: name, Key: key,
		Sealed: sealed}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) channel(name string, c spec.Channel) {
	s.t.Helper()
	if _, err := s.db.Channels.Set(s.t.Context(), "default", name, c, "user:test"); err != nil {
		s.t.Fatal(err)
	}
}

// cancel submits a job and cancels it at once.
func (s *site) cancel(name string) berth.JobID {
	s.t.Helper()
	jobSpec := spec.Job{Name: name, Image: "x"}.WithDefaults()
	job, _, err := s.db.Jobs.Submit(s.t.Context(), db.Submission{Tenant: "default", Spec: jobSpec, Actor: "user:test"})
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.db.Jobs.RequestCancel(s.t.Context(), "", job.ID, "user:test", nil); err != nil {
		s.t.Fatal(err)
	}
	return job.ID
}

// send runs a sender until the test ends.
func (s *site) send(edit func(*notify.Options)) {
	s.t.Helper()
	local, err := publicnet.Parse("127.0.0.1")
	if err != nil {
		s.t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	o := notify.Options{
		DB: s.db, Keys: s.keys, Logger: log, API: "https://berth.example",
		Caller: webhook.New(webhook.Options{DB: s.db, Keys: s.keys, Logger: log, Network: local, Timeout: waitLimit}),
		Look:   10 * time.Millisecond, First: 10 * time.Millisecond, Longest: 50 * time.Millisecond,
		ChatRest: time.Millisecond, MailRest: time.Millisecond, Lease: 3 * waitLimit,
	}
	if edit != nil {
		edit(&o)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	sender := notify.New(o)
	go func() {
		defer close(ended)
		_ = sender.Run(ctx)
	}()
	s.t.Cleanup(func() { cancel(); <-ended })
}

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.After(waitLimit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-limit:
			t.Fatalf("not in %s: %s", waitLimit, what)
		case <-tick.C:
		}
	}
}

// receiver keeps the bodies and headers of calls, and answers with the codes of answers in turn, then with 200.
type receiver struct {
	mu      sync.Mutex
	calls   []string
	headers []http.Header
	answers []int
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, _ := io.ReadAll(q.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls, r.headers = append(r.calls, q.URL.Path+" "+string(body)), append(r.headers, q.Header)
	if len(r.answers) > 0 {
		w.WriteHeader(r.answers[0])
		r.answers = r.answers[1:]
	}
}

func (r *receiver) got() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

func TestAChatGetsOneMessageForManyNotifications(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r := &receiver{answers: []int{http.StatusInternalServerError}}
	chat := httptest.NewServer(r)
	defer chat.Close()
	s.secret("CHAT", chat.URL+"/services/T0/B0/token\n")
	s.channel("team", spec.Channel{Kind: spec.ChannelSlack, Secret: "CHAT", Events: []string{"job.canceled"}})
	for range 11 {
		s.cancel("digits")
	}
	last := s.cancel("last")
	s.send(nil)
	until(t, "two tries", func() bool { return len(r.got()) == 2 })
	got := r.got()
	if got[0] != got[1] {
		t.Errorf("the repeat differs:\n%s\n%s", got[0], got[1])
	}
	if !strings.HasPrefix(got[0], `/services/T0/B0/token {"text":"12 x job.canceled\njob `) ||
		!strings.HasSuffix(got[0], `and 2 more"}`) ||
		strings.Contains(got[0], string(last)) {
		t.Errorf("message %s", got[0])
	}
	until(t, "recorded", func() bool {
		c, err := s.db.Channels.Get(t.Context(), "default", "team")
		return err == nil && c.Waiting == 0 && c.DeliveredAt != nil && c.FailingSince == nil && c.Error == ""
	})
}

func TestAWebhookChannelGetsSignedCallsOneByOne(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r := &receiver{}
	hook := httptest.NewServer(r)
	defer hook.Close()
	s.secret(spec.WebhookSecret, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	s.channel("hook", spec.Channel{Kind: spec.ChannelWebhook, URL: hook.URL + "/in", Events: []string{"job.canceled"}})
	first, second := s.cancel("a"), s.cancel("b")
	s.send(nil)
	until(t, "two calls", func() bool { return len(r.got()) == 2 })
	got := r.got()
	if !strings.Contains(got[0], string(first)) || !strings.Contains(got[1], string(second)) ||
		!strings.Contains(got[0], `"type": "job.canceled"`) {
		t.Errorf("calls %v", got)
	}
	ids := map[string]bool{}
	for _, h := range r.headers {
		ids[h.Get(webhook.HeaderID)] = strings.HasPrefix(h.Get(webhook.HeaderSignature), "v1,")
	}
	if len(ids) != 2 || ids[""] {
		t.Errorf("ids and signatures %v", ids)
	}
}

func TestARefusedCallDoesNotKeepTheOthersBack(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r := &receiver{answers: []int{http.StatusGone, http.StatusBadRequest}}
	hook := httptest.NewServer(r)
	defer hook.Close()
	s.secret(spec.WebhookSecret, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	s.channel("hook", spec.Channel{Kind: spec.ChannelWebhook, URL: hook.URL, Events: []string{"job.canceled"}})
	gone, bad, good := s.cancel("a"), s.cancel("b"), s.cancel("c")
	s.send(nil)
	until(t, "three calls and a repeat", func() bool { return len(r.got()) == 4 })
	for i, want := range []berth.JobID{gone, bad, good, bad} {
		if got := r.got()[i]; !strings.Contains(got, string(want)) {
			t.Errorf("call %d is %s, want job %s", i, got, want)
		}
	}
	if r.headers[1].Get(webhook.HeaderID) != r.headers[3].Get(webhook.HeaderID) {
		t.Error("the repeat has another id")
	}
	until(t, "nothing is left", func() bool {
		c, err := s.db.Channels.Get(t.Context(), "default", "hook")
		return err == nil && c.Waiting == 0 && c.FailingSince == nil
	})
}

func TestAnAcceptedMailIsNotRepeated(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	office := &postOffice{rude: true}
	mailer := office.serve(t, "smtp")
	s.channel("team", spec.Channel{Kind: spec.ChannelEmail, To: []string{"a@example.com"},
		Events: []string{"job.canceled"}})
	s.cancel("a")
	s.send(func(o *notify.Options) { o.Mailer = mailer })
	until(t, "delivered", func() bool {
		c, err := s.db.Channels.Get(t.Context(), "default", "team")
		if err == nil && c.FailingSince != nil {
			t.Fatalf("failed: %s", c.Error)
		}
		return err == nil && c.DeliveredAt != nil
	})
	if n := office.delivered(); n != 1 {
		t.Errorf("%d mails", n)
	}
}

func TestAChannelShowsWhyItFails(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	chat := httptest.NewServer(http.NotFoundHandler())
	defer chat.Close()
	s.secret("GONE", chat.URL+"/secret-path")
	s.secret("WRONG", "hunter2")
	s.secret("INSIDE", "https://10.1.2.3/secret-path")
	for name, c := range map[string]spec.Channel{
		"gone": {Kind: spec.ChannelSlack, Secret: "GONE"}, "wrong": {Kind: spec.ChannelSlack, Secret: "WRONG"},
		"inside": {Kind: spec.ChannelSlack, Secret: "INSIDE"}, "mail": {Kind: spec.ChannelEmail,
			To: []string{"a@example.com"}},
	} {
		s.channel(name, c)
		if err := s.db.Channels.Test(t.Context(), "default", name, "user:test"); err != nil {
			t.Fatal(err)
		}
	}
	s.send(nil)
	for name, want := range map[string]string{
		"gone": "it answered 404", "wrong": "secret WRONG does not contain an https URL", "inside": "its address is none that may be called",
		"mail": "this cluster sends no mail",
	} {
		until(t, name+" failed", func() bool {
			c, err := s.db.Channels.Get(t.Context(), "default", name)
			if err == nil && c.FailingSince != nil && (!strings.Contains(c.Error, want) || strings.Contains(c.Error,
				"hunter2") ||
				strings.Contains(c.Error, "secret-path")) {
				t.Fatalf("channel %s shows %q, want %q", name, c.Error, want)
			}
			return err == nil && c.FailingSince != nil
		})
	}
}

// postOffice is a mail server with TLS and one user.
type postOffice struct {
	mu      sync.Mutex
	mails   []*netmail.Message
	bodies  []string
	to      [][]string
	refuses string // recipient that is refused
	rude    bool   // it closes the connection once it has accepted a mail
}

func (p *postOffice) NewSession(c *smtp.Conn) (smtp.Session, error) {
	return &letter{office: p, conn: c}, nil
}

func (p *postOffice) delivered() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mails)
}

// letter is one session of the mail server.
type letter struct {
	office *postOffice
	conn   *smtp.Conn
	known  bool
	to     []string
}

func (*letter) AuthMechanisms() []string { return []string{sasl.Plain} }

func (l *letter) Auth(string) (sasl.Server, error) {
	return sasl.NewPlainServer(func(_, user, password string) error {
		if l.known = user == "berth" && password == "s3cret"; !l.known {
			return errors.New("unknown user")
		}
		return nil
	}), nil
}

func (l *letter) Mail(string, *smtp.MailOptions) error {
	if !l.known {
		return smtp.ErrAuthRequired
	}
	return nil
}

func (l *letter) Rcpt(to string, _ *smtp.RcptOptions) error {
	l.office.mu.Lock()
	defer l.office.mu.Unlock()
	if to == l.office.refuses {
		return &smtp.SMTPError{Code: 550, Message: "no such user in /internal/path"}
	}
	l.to = append(l.to, to)
	return nil
}

func (l *letter) Data(r io.Reader) error {
	m, err := netmail.ReadMessage(r)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(m.Body)
	l.office.mu.Lock()
	defer l.office.mu.Unlock()
	l.office.mails, l.office.bodies, l.office.to = append(l.office.mails, m), append(l.office.bodies,
		string(body)), append(l.office.to, l.to)
	return err
}

func (l *letter) Reset() {
	if l.to != nil && l.office.rude && l.office.delivered() > 0 {
		_ = l.conn.Conn().Close()
	}
	l.to = nil
}

func (*letter) Logout() error { return nil }

// certificate returns a certificate for 127.0.0.1 and the pool that trusts it.
func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// serve starts a mail server and returns a mailer for it.
func (p *postOffice) serve(t *testing.T, scheme string) *notify.Mailer {
	t.Helper()
	cert, pool := certificate(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	server := smtp.NewServer(p)
	server.TLSConfig = &tls.Config{Certificates: []tls.Certificate{cert}}
	server.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	if scheme == "smtps" {
		l = tls.NewListener(l, server.TLSConfig)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() { _ = server.Close(); <-ended })
	m, err := notify.ParseServer(scheme + "://berth@" + address)
	if err != nil {
		t.Fatal(err)
	}
	m.From, m.Password, m.TLS, m.Timeout, m.Plain = "berth@example.com", "s3cret", &tls.Config{RootCAs: pool}, waitLimit, false
	return m
}

func TestMailGoesThroughAServerWithTLS(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"smtp", "smtps"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			office := &postOffice{}
			mailer := office.serve(t, scheme)
			if err := mailer.Probe(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.channel("team", spec.Channel{Kind: spec.ChannelEmail, To: []string{"a@example.com", "b@example.com"},
				Events: []string{"job.canceled"}})
			id := s.cancel("größe\r\nBcc: x@evil.example")
			s.send(func(o *notify.Options) { o.Mailer = mailer })
			until(t, "a mail", func() bool { return office.delivered() == 1 })
			m := office.mails[0]
			subject, err := new(mime.WordDecoder).DecodeHeader(m.Header.Get("Subject"))
			if err != nil || !strings.Contains(subject, "größe Bcc: x@evil.example") || m.Header.Get("Bcc") != "" {
				t.Errorf("subject %q, %v, headers %v", subject, err, m.Header)
			}
			if !slices.Equal(office.to[0], []string{"a@example.com", "b@example.com"}) ||
				m.Header.Get("Auto-Submitted") != "auto-generated" ||
				!strings.HasPrefix(m.Header.Get("Message-Id"), "<berth.") {
				t.Errorf("to %v, headers %v", office.to[0], m.Header)
			}
			if !strings.Contains(strings.ReplaceAll(office.bodies[0], "=\r\n", ""),
				"https://berth.example/jobs/"+string(id)) {
				t.Errorf("body %s", office.bodies[0])
			}
		})
	}
}

func TestMailIsNotSentWithoutTLS(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := smtp.NewServer(&postOffice{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() { _ = server.Close(); <-ended })
	m, err := notify.ParseServer("smtp://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	m.From, m.Plain = "berth@example.com", false
	if err := m.Probe(t.Context()); err == nil {
		t.Error("a server without STARTTLS is used")
	}
}

func TestARefusedRecipientIsShownWithoutTheServersWords(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	office := &postOffice{refuses: "b@example.com"}
	mailer := office.serve(t, "smtp")
	s.channel("team", spec.Channel{Kind: spec.ChannelEmail, To: []string{"a@example.com", "b@example.com"}})
	s.channel("far", spec.Channel{Kind: spec.ChannelEmail, To: []string{"a@other.example"}})
	for _, name := range []string{"team", "far"} {
		if err := s.db.Channels.Test(t.Context(), "default", name, "user:test"); err != nil {
			t.Fatal(err)
		}
	}
	s.send(func(o *notify.Options) { o.Mailer = mailer })
	for name, want := range map[string]string{"team": "the mail server refused the message with code 550",
		"far": "this cluster sends no mail to a@other.example; allowed: addresses in example.com"} {
		until(t, name, func() bool {
			c, err := s.db.Channels.Get(t.Context(), "default", name)
			if err == nil && c.FailingSince != nil && c.Error != want {
				t.Fatalf("%s shows %q", name, c.Error)
			}
			return err == nil && c.FailingSince != nil
		})
	}
	if n := office.delivered(); n != 0 {
		t.Errorf("%d mails were delivered to some of the recipients", n)
	}
}
