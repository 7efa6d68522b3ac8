package notify

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	netmail "net/mail"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/wneessen/go-mail"

	"berth/internal/lib/publicnet"
	"berth/spec"
)

// Mailer sends mail through one mail server. The zero value is not usable.
type Mailer struct {
	host     string
	port     int
	implicit bool // TLS from the first byte (RFC 8314), else STARTTLS
	user     string

	From     string        // address of the sender
	Domains  []string      // recipients' domains; empty: that of From
	Password string        // of the user in the address of the server
	Plain    bool          // mail may be sent without TLS if the server has none
	TLS      *tls.Config   // nil: authorities of the system
	Timeout  time.Duration // of one message
}

// errNoMail is returned where the operator has named no mail server.
var errNoMail = errors.New("this cluster sends no mail: its operator has not set berthd --smtp")

// ParseServer returns a mailer for an address of a mail server: smtp://HOST[:587], which must offer STARTTLS
// unless it is on loopback, or smtps://HOST[:465]. The address may contain a user, and no password.
func ParseServer(address string) (*Mailer, error) {
	const allowed = "smtp://[USER@]HOST[:PORT] or smtps://[USER@]HOST[:PORT]"
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" || u.Scheme != "smtp" && u.Scheme != "smtps" ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%q is not the address of a mail server; allowed: %s", redacted(address), allowed)
	}
	if _, set := u.User.Password(); set {
		return nil, errors.New("the address contains a password; allowed: a user, and the password in the file of " +
			"--smtp-password-file")
	}
	m := &Mailer{host: u.Hostname(), port: 587, implicit: u.Scheme == "smtps", user: u.User.Username(),
		Plain: publicnet.Loopback(u.Hostname()), Timeout: time.Minute}
	if m.implicit {
		m.port = 465
	}
	if p := u.Port(); p != "" {
		if m.port, err = strconv.Atoi(p); err != nil || m.port < 1 || m.port > 65535 {
			return nil, fmt.Errorf("%q is not a port; allowed: 1 to 65535", p)
		}
	}
	return m, nil
}

// redacted returns the scheme of an address that cannot be parsed: the rest may contain a password.
func redacted(address string) string {
	scheme, _, found := strings.Cut(address, "://")
	if !found {
		return "(without ://)"
	}
	return scheme + "://…"
}

// Check returns an error if the sender's address is not one.
func (m *Mailer) Check() error {
	a, err := netmail.ParseAddress(m.From)
	if err != nil || a.Address != m.From {
		return fmt.Errorf("sender %q is not a mail address; allowed: an address without a name, such as "+
			"berth@example.com", m.From)
	}
	if m.user == "" && m.Password != "" {
		return errors.New("there is a password, and the address of the server has no user; allowed: smtp://USER@HOST")
	}
	return nil
}

// RefusedRecipient returns the first address to which no mail may be sent, or "". The operator lends the name of the
// mail server to all tenants, so only recipients in known domains get mail.
func (m *Mailer) RefusedRecipient(to []string) string {
	for _, address := range to {
		_, domain, _ := strings.Cut(address, "@")
		if !spec.IsMailAddress(address) || !m.allows(domain) {
			return address
		}
	}
	return ""
}

// domains returns the domains of allowed recipients.
func (m *Mailer) domains() []string {
	if len(m.Domains) > 0 {
		return m.Domains
	}
	_, domain, _ := strings.Cut(m.From, "@")
	return []string{domain}
}

func (m *Mailer) allows(domain string) bool {
	for _, d := range m.domains() {
		if d == "*" || strings.EqualFold(d, domain) {
			return true
		}
	}
	return false
}

// Allowed describes the recipients that RefusedRecipient accepts.
func (m *Mailer) Allowed() string { return "addresses in " + strings.Join(m.domains(), ", ") }

// client returns a client for one message. Without TLS from the start, the connection ends with ctx.
func (m *Mailer) client(ctx context.Context) (*mail.Client, error) {
	tlsConfig := &tls.Config{}
	if m.TLS != nil {
		tlsConfig = m.TLS.Clone()
	}
	tlsConfig.ServerName, tlsConfig.MinVersion = m.host, tls.VersionTLS12
	// Where mail may go without TLS, a certificate that cannot be verified is no worse: mail servers on the same
	// machine usually have one.
	tlsConfig.InsecureSkipVerify = m.Plain //nolint:gosec // see above
	policy := mail.TLSMandatory
	if m.Plain {
		policy = mail.TLSOpportunistic
	}
	options := []mail.Option{mail.WithPort(m.port), mail.WithTimeout(m.Timeout), mail.WithTLSConfig(tlsConfig),
		mail.WithTLSPolicy(policy)}
	if m.implicit {
		options = append(options, mail.WithSSL()) // a dialer of our own would hide from the library that TLS is on
	} else {
		dial := func(dial context.Context, network, to string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(dial, network, to)
			if err == nil {
				// The library bounds each step by a deadline of its own, and all of them together by nothing.
				context.AfterFunc(ctx, func() { _ = conn.Close() })
			}
			return conn, err
		}
		options = append(options, mail.WithDialContextFunc(dial))
	}
	if m.user != "" {
		options = append(options, mail.WithSMTPAuth(mail.SMTPAuthAutoDiscover), mail.WithUsername(m.user),
			mail.WithPassword(m.Password))
	}
	return mail.NewClient(m.host, options...)
}

// Probe connects to the server and signs in, without sending mail.
func (m *Mailer) Probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.Timeout)
	defer cancel()
	c, err := m.client(ctx)
	if err != nil {
		return err
	}
	if err := c.DialWithContext(ctx); err != nil {
		return err
	}
	_ = c.Close()
	return nil
}

// Send sends one mail to all recipients, or to none of them. id is the same at each repeat of a mail, and becomes its
// Message-ID, by which most mail systems drop duplicates.
func (m *Mailer) Send(ctx context.Context, to []string, id, subject, body string) error {
	msg := mail.NewMsg(mail.WithNoDefaultUserAgent())
	if err := msg.From(m.From); err != nil {
		return err
	}
	if err := msg.To(to...); err != nil {
		return err
	}
	_, domain, _ := strings.Cut(m.From, "@")
	msg.SetMessageIDWithValue(id + "@" + domain)
	msg.SetDate()
	msg.SetBulk()
	// Automatic answers, such as notices of absence, are not sent to mail with this header (RFC 3834 section 5).
	msg.SetGenHeader("Auto-Submitted", "auto-generated")
	msg.Subject(subject)
	msg.SetBodyString(mail.TypeTextPlain, body)
	ctx, cancel := context.WithTimeout(ctx, m.Timeout)
	defer cancel()
	c, err := m.client(ctx)
	if err != nil {
		return err
	}
	if err := c.DialWithContext(ctx); err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	// The server has accepted the mail with its answer to the content. An error in the farewell must not repeat it.
	if err := c.Send(msg); err != nil && !msg.IsDelivered() {
		return err
	}
	return nil
}

// mailFault returns an error for users: it names the code of the server's answer, and nothing about the server.
func mailFault(err error) error {
	var sent *mail.SendError
	var network net.Error
	switch {
	case errors.As(err, &sent) && sent.ErrorCode() != 0:
		return fmt.Errorf("the mail server refused the message with code %d", sent.ErrorCode())
	case errors.As(err, &network) && network.Timeout():
		return errors.New("the mail server did not answer in time")
	}
	return errors.New("the mail server could not be used")
}
