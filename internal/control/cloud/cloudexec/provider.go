package cloudexec

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/internal/control/cloud"
	"berth/internal/lib/subprocess"
)

// Limits of the options.
const (
	DefaultTimeout = time.Minute
	MaxTimeout     = 90 * time.Second // a step of a machine has two minutes

	DefaultProcesses = 8
	MaxProcesses     = 64
)

const (
	maxAnswer = 16 << 20 // bytes, some ten thousand instances
	maxStderr = 4 << 10  // bytes that are kept, from the end
)

// Options configure a Provider.
type Options struct {
	// Name is the provider's name in errors and logs.
	Name string
	// Command is the absolute path of the program, followed by its arguments.
	Command []string
	// Env is the environment of the program in addition to subprocess.BaseEnv and AnswersEnv, as NAME=value.
	Env []string
	// Timeout limits one call; 0 is DefaultTimeout.
	Timeout time.Duration
	// Processes is the number of calls that run at the same time; 0 is DefaultProcesses.
	Processes int
	// Logger receives the end of the standard error output; nil discards it.
	Logger *slog.Logger
}

// validate sets the defaults and reports every fault.
func (o *Options) validate() error {
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Processes == 0 {
		o.Processes = DefaultProcesses
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	var faults []error
	if len(o.Command) == 0 {
		faults = append(faults, errors.New("command: it is empty; its first word is the path of a program"))
	} else if !filepath.IsAbs(o.Command[0]) {
		faults = append(faults, fmt.Errorf("command: %q is not an absolute path", o.Command[0]))
	}
	for _, v := range o.Env {
		if name, _, ok := strings.Cut(v, "="); !ok || name == "" {
			faults = append(faults, fmt.Errorf("env: %q is not NAME=value", v))
		}
	}
	if o.Timeout < time.Second || o.Timeout > MaxTimeout {
		faults = append(faults, fmt.Errorf("timeout %s: allowed are 1s to %s", o.Timeout, MaxTimeout))
	}
	if o.Processes < 1 || o.Processes > MaxProcesses {
		faults = append(faults, fmt.Errorf("processes %d: allowed are 1 to %d", o.Processes, MaxProcesses))
	}
	return errors.Join(faults...)
}

// executable reports why the path names no program.
func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		if pathError := (*fs.PathError)(nil); errors.As(err, &pathError) {
			err = pathError.Err
		}
		return fmt.Errorf("%s: %w", path, err)
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
		return fmt.Errorf("%s is not an executable file", path)
	}
	return nil
}

// Provider is a cloud.Provider that runs a program for each call.
type Provider struct {
	o    Options
	free chan struct{} // one for each process that may run
}

var _ cloud.Provider = (*Provider)(nil)

// New returns a provider, or every fault of the options. It warns if the program is missing, as before
// its installation; the calls fail until it is there.
func New(o Options) (*Provider, error) {
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("provider %q: %w", o.Name, err)
	}
	if err := executable(o.Command[0]); err != nil {
		o.Logger.Warn("cloud program cannot run, calls will fail", "provider", o.Name, "err", err)
	}
	return &Provider{o: o, free: make(chan struct{}, o.Processes)}, nil
}

// Create implements cloud.Provider.
func (p *Provider) Create(ctx context.Context, l cloud.Launch) (cloud.Instance, error) {
	a, err := p.call(ctx, Request{Call: CallCreate, Launch: &l})
	if err != nil {
		return cloud.Instance{}, err
	}
	return *a.Instance, nil
}

// Find implements cloud.Provider. The program does not receive the bootstrap, which has a secret.
func (p *Provider) Find(ctx context.Context, l cloud.Launch) (cloud.Instance, error) {
	l.Bootstrap = cloud.Bootstrap{}
	a, err := p.call(ctx, Request{Call: CallFind, Launch: &l})
	if err != nil {
		return cloud.Instance{}, err
	}
	return *a.Instance, nil
}

// List implements cloud.Provider.
func (p *Provider) List(ctx context.Context, cluster string, regions []string) ([]cloud.Instance, error) {
	a, err := p.call(ctx, Request{Call: CallList, Cluster: cluster, Regions: regions})
	if err != nil {
		return nil, err
	}
	return *a.Instances, nil
}

// Terminate implements cloud.Provider.
func (p *Provider) Terminate(ctx context.Context, i cloud.Instance) error {
	_, err := p.call(ctx, Request{Call: CallTerminate, Instance: &i})
	return err
}

// Offers implements cloud.Provider.
func (p *Provider) Offers(ctx context.Context, regions []string) ([]cloud.Offer, error) {
	a, err := p.call(ctx, Request{Call: CallOffers, Regions: regions})
	if err != nil {
		return nil, err
	}
	return *a.Offers, nil
}

// call runs the program for one request. Each error is a *cloud.Error.
func (p *Provider) call(ctx context.Context, r Request) (Answer, error) {
	r.Protocol = Protocol
	if err := r.validate(); err != nil {
		return Answer{}, &cloud.Error{Kind: cloud.Spec, Err: fmt.Errorf("provider %q: %w", p.o.Name, err)}
	}
	input, err := json.Marshal(r)
	if err != nil { // the settings of the pool are no JSON
		err = fmt.Errorf("provider %q: encode %s: %w", p.o.Name, r.Call, err)
		return Answer{}, &cloud.Error{Kind: cloud.Spec, Err: err}
	}
	select {
	case p.free <- struct{}{}:
		defer func() { <-p.free }()
	case <-ctx.Done():
		err := fmt.Errorf("%d processes run, and none ended: %w", p.o.Processes, context.Cause(ctx))
		return Answer{}, p.notRun(r, err)
	}
	if err := executable(p.o.Command[0]); err != nil {
		return Answer{}, p.notRun(r, err)
	}
	output, stderr, err := p.run(ctx, input)
	secret := ""
	if r.Launch != nil {
		secret = r.Launch.Bootstrap.JoinToken
	}
	said := stderr.Hidden(secret)
	if said != "" {
		p.o.Logger.Info("cloud program wrote to stderr", "provider", p.o.Name, "call", r.Call, "stderr", said)
	}
	if _, never := errors.AsType[*subprocess.StartError](err); never {
		return Answer{}, p.notRun(r, err)
	}
	if err != nil {
		return Answer{}, p.unknown(r, err, said)
	}
	a, err := Read(output, r)
	if err != nil {
		err = errors.New(clean(err.Error(), secret)) // it quotes the answer
		return Answer{}, p.unknown(r, fmt.Errorf("its answer is not valid: %w", err), said)
	}
	return a.clean(secret)
}

// notRun returns the error for a call for which no process was started. It is certain that the call had
// no effect, and it may be repeated.
func (p *Provider) notRun(r Request, cause error) error {
	err := fmt.Errorf("provider %q: no process was started for %s: %w", p.o.Name, r.Call, cause)
	return &cloud.Error{Kind: cloud.Throttle, Unsent: true, Err: err}
}

// run runs the program once. An error means that its output is not an answer.
func (p *Provider) run(ctx context.Context, input []byte) ([]byte, *subprocess.Tail, error) {
	limited, cancel := context.WithTimeoutCause(ctx, p.o.Timeout, fmt.Errorf("stopped after %s", p.o.Timeout))
	defer cancel()
	limited, stop := context.WithCancelCause(limited)
	defer stop(nil)
	stdout := &subprocess.Head{Limit: maxAnswer, Full: func() {
		stop(fmt.Errorf("its answer is longer than %d MiB", maxAnswer>>20))
	}}
	stderr := &subprocess.Tail{Limit: maxStderr}
	err := subprocess.Run(limited, subprocess.Program{
		Path: p.o.Command[0], Args: p.o.Command[1:],
		Env:   slices.Concat(subprocess.BaseEnv(), p.o.Env, []string{AnswersEnv + "=" + answers}),
		Stdin: bytes.NewReader(input), Stdout: stdout, Stderr: stderr,
	})
	if _, never := errors.AsType[*subprocess.StartError](err); never {
		return nil, stderr, err
	}
	if limited.Err() != nil {
		// The exit status of a killed process adds nothing. A complete answer may be there, but a
		// caller that has given up does not read it.
		return nil, stderr, context.Cause(limited)
	}
	if err != nil {
		return nil, stderr, err
	}
	output, _ := stdout.Bytes()
	return output, stderr, nil
}

// unknown returns the error for a run that proves nothing.
func (p *Provider) unknown(r Request, cause error, stderr string) error {
	err := fmt.Errorf("provider %q: run %s for %s: %w", p.o.Name, p.o.Command[0], r.Call, cause)
	if stderr != "" {
		err = fmt.Errorf("%w; its stderr ends with: %s", err, cut(stderr))
	}
	return &cloud.Error{Kind: cloud.Unknown, Err: err}
}
