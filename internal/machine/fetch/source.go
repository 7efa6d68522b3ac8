package fetch

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"berth"
	"berth/internal/lib/archive"
	"berth/internal/lib/publicnet"
	"berth/spec"
)

// Times of a connection.
const (
	dialTimeout   = 15 * time.Second
	headerTimeout = time.Minute
)

// FileName is the name of an input's single file in its folder.
const FileName = "content"

// Options configure the connections to sources. The zero value allows public addresses.
type Options struct {
	Policy publicnet.Policy
	Roots  *x509.CertPool // that servers' certificates are judged by; nil: the system's
	// Resolver asks for the addresses of servers; nil: the system's.
	Resolver *net.Resolver
	Limits   archive.Limits // of one input; zero: MaxInputBytes and MaxInputFiles

	Volumes Volumes  // folders of this machine that may be read
	Own     []string // folders of the agent's, of which nothing may be
}

// Sources reads inputs. It may be used concurrently.
type Sources struct {
	files, objects *http.Client
	limits         archive.Limits
	resolver       *net.Resolver
	volumes        map[spec.Volume]*volume
	own            []string
}

// Open returns sources; nothing is connected yet.
func Open(o Options) *Sources {
	if o.Limits == (archive.Limits{}) {
		o.Limits = archive.Limits{Bytes: spec.MaxInputBytes, Files: spec.MaxInputFiles}
	}
	transport := o.Policy.Transport(dialTimeout)
	dialer := o.Policy.Dialer(dialTimeout)
	dialer.Resolver = o.Resolver
	transport.DialContext = dialer.DialContext
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.Roots}
	transport.ResponseHeaderTimeout = headerTimeout
	transport.DisableCompression = true // read objects as stored
	transport.MaxIdleConnsPerHost = 16
	volumes := map[spec.Volume]*volume{}
	for name, dir := range o.Volumes {
		volumes[name] = &volume{site: site{dir: dir, own: o.Own}, name: name, most: o.Limits.Files,
			calls: make(chan struct{}, callsAbreast)}
	}
	return &Sources{
		files: &http.Client{Transport: transport, CheckRedirect: stayEncrypted},
		objects: &http.Client{Transport: transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
		limits:   o.Limits,
		resolver: o.Resolver,
		volumes:  volumes,
		own:      o.Own,
	}
}

// Close releases idle connections.
func (s *Sources) Close() { s.files.CloseIdleConnections() }

// Found is the present version of an input.
type Found struct {
	Kind    string        // distinguishes addresses of different kinds
	Address berth.Address // equal ones of one kind are equal content
	Once    bool          // its server reports no versions: each fetch counts as another content
	fetch   func(ctx context.Context, to *os.Root, again Again) (archive.Summary, error)
}

// Again repeats try until it succeeds or the patience with the server has ended, and returns
// the last error. It does not repeat an error that Final reports as final.
type Again func(ctx context.Context, try func() error) error

// Fetch reads the input into an empty folder that no other process uses. The summary
// has an address only with Once: the address of the content.
func (f *Found) Fetch(ctx context.Context, to *os.Root, again Again) (archive.Summary, error) {
	return f.fetch(ctx, to, again)
}

// Find resolves the present state of an input. login is the value of the input's
// secret, "" if it names none.
func (s *Sources) Find(ctx context.Context, in spec.Input, login spec.Sensitive) (*Found, error) {
	switch kind := in.Kind(); kind {
	case spec.InputS3, spec.InputGS, spec.InputAzure, spec.InputFile:
		return s.findObjects(ctx, in, login)
	case spec.InputHTTPS:
		return s.findFile(ctx, in, login)
	case spec.InputFolder, spec.InputOutput, spec.InputUnknown:
		return nil, refusedf("%.200q cannot be fetched", in.From)
	default:
		panic(fmt.Sprintf("unknown kind of input %d", kind))
	}
}

// Refused is an error that only the job's user can do something about.
type Refused struct {
	says   string
	absent bool // there is no such thing
}

// Error returns the reason of the refusal.
func (r Refused) Error() string { return r.says }

// refusedf returns a refusal, which no machine and no later try would change.
func refusedf(format string, args ...any) error { return Refused{says: fmt.Sprintf(format, args...)} }

// Changed is the error of content that changed during a fetch.
type Changed struct{ what string }

// Error names the content.
func (c Changed) Error() string { return c.what + " changed while it was read" }

// Local is an error of this machine's disk.
type Local struct{ Err error }

// Error returns the text of the local error.
func (l Local) Error() string { return l.Err.Error() }

// Unwrap returns the local error.
func (l Local) Unwrap() error { return l.Err }

// Final reports whether trying the same again is of no use.
func Final(err error) bool {
	_, refused := errors.AsType[Refused](err)
	_, changed := errors.AsType[Changed](err)
	_, local := errors.AsType[Local](err)
	return refused || changed || local
}

// fault describes the error of a request without the transport's own text: this may
// contain the target of a redirect, which may be a login by itself.
func fault(what string, err error) error {
	if Final(err) {
		return err
	}
	if r, ok := errors.AsType[*publicnet.RefusedError](err); ok {
		return refusedf("%s: %v", what, r)
	}
	if d, ok := errors.AsType[downgraded](err); ok {
		return refusedf("%s: %v", what, d)
	}
	if d, ok := errors.AsType[*net.DNSError](err); ok {
		return unresolved(what, d)
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return berth.Errorf(berth.CodeUnavailable, "%s: %v", what, err)
}

// answer is the error of a status. detail is the server's own code, if any.
func answer(what string, status int, detail string) error {
	says := fmt.Sprintf("%s: %d %s", what, status, http.StatusText(status))
	if detail != "" {
		says += " (" + detail + ")"
	}
	switch {
	case status == http.StatusPreconditionFailed, status == http.StatusRequestedRangeNotSatisfiable:
		return Changed{what}
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status == http.StatusTooManyRequests:
		return berth.Errorf(berth.CodeUnavailable, "%s", says)
	case status >= 300 && status < 500:
		return Refused{says: says, absent: status == http.StatusNotFound}
	default:
		return berth.Errorf(berth.CodeUnavailable, "%s", says)
	}
}

// silence is how long a server may send nothing in the middle of an answer.
const silence = time.Minute

// lively ends an answer that has stopped arriving.
type lively struct {
	body  io.Reader
	timer *time.Timer
}

// watch returns a context that ends when the server falls silent, for a request whose body is
// read through the reader that read returns. The caller must call end after the last byte.
func watch(ctx context.Context) (limited context.Context, read func(io.Reader) io.Reader, end func()) {
	limited, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(2*silence, func() { cancel(errSilent) })
	return limited, func(body io.Reader) io.Reader { return &lively{body, timer} }, func() { timer.Stop(); cancel(nil) }
}

var errSilent = errors.New("the server sends nothing any more")

// Read allows another silence before each read.
func (l *lively) Read(p []byte) (int, error) {
	l.timer.Reset(silence)
	return l.body.Read(p)
}

// copied copies to a file; its error names the side at fault.
func copied(ctx context.Context, to io.Writer, from io.Reader) (int64, error) {
	n, err := io.Copy(to, from)
	if _, disk := errors.AsType[*os.PathError](err); disk {
		return n, Local{err}
	}
	if err != nil && errors.Is(context.Cause(ctx), errSilent) {
		err = errSilent
	}
	return n, err
}

// into creates a file and calls fill to write its content. The file must not exist yet.
func into(to *os.Root, name string, fill func(f *os.File) error) error {
	f, err := to.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return Local{err}
	}
	err = fill(f)
	if closed := f.Close(); err == nil && closed != nil {
		err = Local{closed}
	}
	return err
}

// hashOf returns the address of a text.
func hashOf(text string) berth.Address {
	sum := sha256.Sum256([]byte(text))
	return berth.AddressOf(sum[:])
}
