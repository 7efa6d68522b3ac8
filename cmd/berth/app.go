package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"berth"
	"berth/api/client"
	"berth/internal/lib/jobfile"
	"berth/wire"
)

// defaultURL is the server's URL where neither a flag, the environment nor a context names
// one: the default address of berthd and berth-dev.
const defaultURL = "http://127.0.0.1:7070"

// config holds the settings from flags, the environment and the file of contexts. A flag
// takes precedence over its variable. The token has no flag, since other users of the
// machine can read the arguments of a process.
type config struct {
	URL      string // --url or BERTH_URL
	Token    string // BERTH_TOKEN
	Context  string // --context or BERTH_CONTEXT
	Contexts string // path of the file of contexts; empty: none
	Output   string // -o
}

// Validate checks the values of flags before any command runs; an error is a usage error,
// exit code 2.
func (c config) Validate() error {
	switch c.Output {
	case "table", "wide", "json", "yaml", "name":
		return nil
	default:
		return usagef("-o %s is not known; allowed: table, wide, json, yaml, name", c.Output)
	}
}

// app is one run of the command line: the settings, the server, and the streams of the
// output. Commands are functions over an app, in files by noun. Results go to out and
// messages to err, so that a pipe receives results only. An app serves one run and is not
// safe for concurrent use.
type app struct {
	config
	in       io.Reader
	out, err io.Writer
	outTerm  screen
	errTerm  screen
	// readSecret reads a line without echo, until ctx is done; nil if standard input is no terminal.
	readSecret func(ctx context.Context) ([]byte, error)
	console    console // nil unless standard input and output are a terminal
	termName   string  // TERM
	home       string  // HOME
	now        func() time.Time
	version    string
	warned     bool       // the warning about a readable file of contexts was printed
	repeated   *sync.Once // of the announcement of a call that the server asked to repeat; nil before client

	// transport carries the calls; nil: connections to the chosen server.
	transport http.RoundTripper

	// lookup returns a variable of the environment.
	lookup func(name string) (value string, ok bool)
}

// run executes one command line, reports its error and returns its exit code. A command that succeeds fails if its
// output did not arrive. After an interrupt, output that its reader does not take is dropped.
func run(ctx context.Context, a *app, args []string) int {
	out, errs := newInterruptible(ctx, a.out), newInterruptible(ctx, a.err)
	a.out, a.err = out, errs
	root := newRoot(a)
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = out.lost()
	}
	if err != nil {
		a.report(err)
	}
	return int(exitOf(err))
}

// report prints an error on standard error: one line with the failure, its place and the
// allowed values, and a second line with a hint. An error with several faulty fields gets a
// line for each, so that one run shows all faults.
func (a *app) report(err error) {
	// The command has printed the end of the job already, with its own hint, but not what failed besides.
	if _, said := errors.AsType[*endedError](err); said {
		if all, ok := err.(interface{ Unwrap() []error }); ok {
			for _, e := range all.Unwrap() {
				a.report(e)
			}
		}
		return
	}
	if _, said := errors.AsType[*commandError](err); said {
		return
	}
	if errors.Is(err, context.Canceled) {
		return // by Ctrl-C; the command has printed which work continues
	}
	// A file's error has its own layout: places, source lines, and marks below the faults.
	if file, ok := errors.AsType[*jobfile.Error](err); ok {
		fmt.Fprintln(a.err, file.Error())
		return
	}
	e, _ := errors.AsType[*berth.Error](err)
	switch {
	case e == nil || len(e.Fields) == 0:
		fmt.Fprintln(a.err, a.errTerm.paint(bad, "berth:"), err.Error())
	case len(e.Fields) == 1:
		fmt.Fprintf(a.err, "%s %s\n", a.errTerm.paint(bad, "berth:"), fieldText(e.Fields[0]))
	default:
		fmt.Fprintf(a.err, "%s the request has %d faults\n", a.errTerm.paint(bad, "berth:"), len(e.Fields))
		for _, f := range e.Fields {
			fmt.Fprintf(a.err, "  %s\n", fieldText(f))
		}
	}
	if hint := a.hintFor(err); hint != "" {
		fmt.Fprintln(a.err, a.errTerm.paint(faint, "hint: "+hint))
	}
}

// fieldText formats the fault of one field; the field is empty for faults of the whole
// request.
func fieldText(f berth.FieldError) string { return jobfile.Line(f) }

// hintFor returns the advice for an error, or "". Errors of the command line carry their
// own hint; errors of the server get one by their code, for faults that the user can remove.
func (a *app) hintFor(err error) string {
	if e, ok := errors.AsType[*usageError](err); ok {
		return e.hint
	}
	if e, ok := errors.AsType[*timeoutError](err); ok {
		return e.hint
	}
	if e, ok := errors.AsType[*unknownSubmitError](err); ok {
		return e.hint()
	}
	if _, ok := errors.AsType[*unreachableError](err); ok {
		return "start berthd or berth-dev there, or name another server: --url, BERTH_URL or berth login URL"
	}
	if e, ok := errors.AsType[*berth.Error](err); ok {
		if e.Slug == wire.SlugLogDamaged {
			return "ask an operator: the server's store has lost a part of the log"
		}
		switch e.Code {
		case berth.CodeUnauthorized:
			return "set BERTH_TOKEN, or run berth login"
		case berth.CodeForbidden:
			return "ask an operator for a token with the required role"
		case berth.CodeInternal, berth.CodeUnavailable:
			return "try again; the server's /readyz names the component that is down"
		case berth.CodeInvalid, berth.CodeNotFound, berth.CodeConflict, berth.CodeCapacity:
		}
	}
	return ""
}

// target resolves the server and the token. A stored token is sent only to the server for
// which it was stored. BERTH_TOKEN takes precedence over a stored token.
func (a *app) target() (target, error) {
	stored, err := loadContexts(a.Contexts)
	if err != nil {
		return target{}, err
	}
	t, err := a.choose(stored)
	if err != nil {
		return target{}, err
	}
	// Warn once a run, and only if the stored token is the one that will be sent.
	if t.Token != "" && a.Token == "" && !a.warned && exposed(a.Contexts) {
		a.warned = true
		fmt.Fprintf(a.err, "berth: %s is readable by other users; run chmod 600 on it\n", a.Contexts)
	}
	if a.Token != "" {
		t.Token = a.Token
	}
	t.URL, err = serverURL(t.URL)
	return t, err
}

// choose picks a stored context: the one named by --context, else one that was stored for
// --url or BERTH_URL, else the current one. Of several contexts with the same URL the
// current one is preferred, then the first by name, so that the choice does not vary
// between runs.
func (a *app) choose(stored *contexts) (target, error) {
	if a.Context != "" {
		found, ok := stored.Contexts[a.Context]
		switch {
		case !ok:
			return target{}, &usageError{message: fmt.Sprintf("context %q is not known", a.Context),
				hint: "list contexts: berth context list; create it: berth login URL --name " + a.Context}
		// A context together with another URL: the URL counts, without the context's token.
		case a.URL == "" || sameServer(a.URL, found.URL):
			return *found, nil
		default:
			return target{URL: a.URL}, nil
		}
	}
	if a.URL == "" {
		if current, ok := stored.Contexts[stored.Current]; ok {
			return *current, nil
		}
		return target{URL: defaultURL}, nil
	}
	if current, ok := stored.Contexts[stored.Current]; ok && sameServer(a.URL, current.URL) {
		return *current, nil
	}
	for _, name := range slices.Sorted(maps.Keys(stored.Contexts)) {
		if sameServer(a.URL, stored.Contexts[name].URL) {
			return *stored.Contexts[name], nil
		}
	}
	return target{URL: a.URL}, nil
}

// serverURL checks the form of a server's URL and removes slashes at its end. It makes no
// connection.
func serverURL(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return "", &usageError{message: fmt.Sprintf("%q is not a server's URL; allowed: http://HOST:PORT or "+
			"https://HOST", s), hint: "set it by --url, BERTH_URL or berth login URL"}
	}
	return strings.TrimRight(s, "/"), nil
}

// sameServer compares URLs as text, without slashes at the end. Two names of one server
// count as two servers: a token must not reach an address for which it was not stored.
func sameServer(a, b string) bool { return strings.TrimRight(a, "/") == strings.TrimRight(b, "/") }

// client returns the client for the chosen server. Nothing is sent yet. The client itself
// repeats calls that the server asks to repeat; the first repeat of a command is announced,
// because a command that is silent for seconds looks broken.
func (a *app) client() (*client.Client, error) {
	t, err := a.target()
	if err != nil {
		return nil, err
	}
	c := client.New(t.URL, t.Token)
	if a.transport != nil {
		c = client.Over(a.transport, t.Token)
	}
	if a.repeated == nil {
		a.repeated = new(sync.Once)
	}
	c.OnRepeat = func(answer error) {
		a.repeated.Do(func() { a.say("berth: %v; retrying for up to 15s", answer) })
	}
	return c, nil
}

// failed converts the error of a call for the user: an interrupt stays the context's error,
// an error of the API stays unchanged, and a failed connection names the server. nil stays
// nil, so that calls can be wrapped without a check.
func (a *app) failed(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	// A call that Ctrl-C interrupted fails like a broken connection; the interrupt is the
	// cause.
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if _, ok := errors.AsType[*berth.Error](err); ok {
		return err
	}
	// The error of a write to a pipe or a file looks like one of a connection.
	_, output := errors.AsType[*outputError](err)
	_, broken := errors.AsType[*client.BrokenLogError](err) // names its cause
	if output || broken || !client.Unreachable(err) {
		return err
	}
	// A url.Error repeats method and URL, which unreachableError names more briefly.
	cause := err
	if e, ok := errors.AsType[*url.Error](err); ok {
		cause = e.Err
	}
	// The error is impossible here: the client for this call came from the same target.
	t, _ := a.target()
	return &unreachableError{url: t.URL, err: cause}
}

// say prints a message for people on standard error. Messages are no part of the result:
// programs read standard output.
func (a *app) say(format string, args ...any) {
	fmt.Fprintf(a.err, format+"\n", args...)
}

// view is one result in every form that -o selects. table may be nil where the caller has
// excluded -o table and -o wide.
type view struct {
	body  any      // the API's document, printed by -o json and -o yaml
	names []string // identifiers for -o name, one on each line
	table func(wide bool) error
}

// show prints a result in the format of -o. JSON and YAML are the document of the API, so
// their fields are as stable as the API's; tables are for people only.
func (a *app) show(v view) error {
	switch a.Output {
	case "json":
		b, err := json.MarshalIndent(v.body, "", "  ")
		if err != nil {
			return fmt.Errorf("print JSON: %w", err)
		}
		_, err = fmt.Fprintf(a.out, "%s\n", a.outTerm.document(b))
		return err
	case "yaml":
		// YAML is made from the JSON, so that both formats have the same names and the same
		// values.
		b, err := json.Marshal(v.body)
		if err != nil {
			return fmt.Errorf("print YAML: %w", err)
		}
		b, err = yamlDocument(b)
		if err != nil {
			return fmt.Errorf("print YAML: %w", err)
		}
		_, err = a.out.Write(b)
		return err
	case "name":
		for _, n := range v.names {
			fmt.Fprintln(a.out, n)
		}
		return nil
	default:
		return v.table(a.Output == "wide")
	}
}
