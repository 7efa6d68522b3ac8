package controlplane

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"berth/internal/control/notify"
)

// Mail is the mail server for notifications of channels.
type Mail struct {
	Server       string // smtp://[USER@]HOST[:PORT] or smtps://…; empty: no mail
	From         string // address of the sender
	PasswordFile string // of the user in Server
	Recipients   string // domains to which mail is sent, separated by commas; empty: that of From; *: all
}

// mailer returns a mailer, or nil without a server. The password file is not read yet. plain permits
// servers without TLS beyond this machine. Settings of mail without a server are an error: the operator
// expects mail, and none would be sent.
func (m Mail) mailer(plain bool) (*notify.Mailer, error) {
	if m.Server == "" {
		if m.From != "" || m.PasswordFile != "" || m.Recipients != "" {
			return nil, errors.New("--smtp-from, --smtp-password-file and --smtp-recipients need --smtp")
		}
		return nil, nil
	}
	mailer, err := notify.ParseServer(m.Server)
	if err != nil {
		return nil, err
	}
	mailer.From = m.From
	mailer.Plain = mailer.Plain || plain
	for _, d := range strings.Split(m.Recipients, ",") {
		if d = strings.TrimSpace(d); d != "" {
			mailer.Domains = append(mailer.Domains, d)
		}
	}
	return mailer, mailer.Check()
}

// Open returns a mailer with its password, or nil without a server. Line breaks at the end of the file
// are not part of the password.
func (m Mail) Open(plain bool) (*notify.Mailer, error) {
	mailer, err := m.mailer(plain)
	if err != nil || mailer == nil || m.PasswordFile == "" {
		return mailer, err
	}
	password, err := os.ReadFile(m.PasswordFile)
	if err != nil {
		return nil, fmt.Errorf("read the password of the mail server: %w", err)
	}
	mailer.Password = strings.TrimRight(string(password), "\r\n")
	return mailer, mailer.Check()
}
