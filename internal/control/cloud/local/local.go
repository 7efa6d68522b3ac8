// Package local creates machines on this host: each instance is one process of berth-agent with a state
// folder of its own. It serves demonstrations and tests, in which real agents join and are lost.
//
// Files hold the state of an instance, which follows from four facts:
//
//	record   started   lock of the process   engine   state
//	------   -------   -------------------   ------   ------------------------------------------
//	none     -         -                     -        no instance
//	yes      no        free                  -        pending: a crash came before the start
//	yes      no        held                  -        pending
//	yes      yes       held                  -        running, or ending after Terminate
//	yes      yes       free                  left     the call that finds it destroys the engine; then terminated
//	yes      yes       free                  none     terminated: killed, or ended by itself
//	ending   -         free                  as above terminated, after the end of the engine
//
// A call writes the record before it starts the process, so a token starts one process at most. The process
// inherits the lock, which stays held until the process and all its children have ended. A process id
// would prove nothing, since another process may have the id by now.
//
// With Options.Engines each instance has a container engine of its own. Containers do not hold the lock, so
// the end of the engine is a separate step: the call that first finds the lock free destroys the engine with
// all containers, and only then reports the instance as terminated. Races: two calls never destroy an engine at once,
// since both hold the lock of the folder. A call that dies in the middle leaves the instance without EndedAt, and the
// next call repeats the step. If the engine of an instance cannot be destroyed, calls for this instance fail with an
// unknown outcome. Calls for other instances succeed: a list shows the instance as ending, with the error as its
// reason.
//
// The one rule to know: all calls hold the lock of the folder, whichever process makes them.
package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/offers"
)

// Options configure a Provider.
type Options struct {
	// Dir is the absolute path of the folder for the state of all instances. It is created.
	Dir string
	// Program runs as the machine: berth-agent, or a program that ends by running it. Args follow the arguments that
	// the provider sets.
	Program string
	Args    []string
	// Offers are the offerings with their shapes. An instance has the CPUs and the memory of its offer.
	Offers []cloud.Offer
	// Most is the largest number of instances that exist at the same time.
	Most int
	// Engines gives each instance a container engine of its own; nil: the instances share an engine of the host.
	Engines *Engines
}

// Engines are the container engines of instances. Each has a folder of its own.
type Engines struct {
	// Host is the command of a machine. It is run with the arguments --engine=FOLDER, --, Program and the
	// arguments of Program, starts the engine in the folder, and then Program. It ends with Program.
	Host []string
	// Destroy kills all processes of the engine in the folder and of its containers. It may be repeated.
	Destroy func(ctx context.Context, folder string) error
}

// Provider is a cloud.Provider.
type Provider struct{ o Options }

var _ cloud.Provider = Provider{}

// New returns a provider, or every fault of the options.
func New(o Options) (Provider, error) {
	var faults []error
	for name, path := range map[string]string{"folder": o.Dir, "program": o.Program} {
		if !filepath.IsAbs(path) {
			faults = append(faults, fmt.Errorf("%s %q: it must be an absolute path", name, path))
		}
	}
	if o.Most < 1 || o.Most > 1000 {
		faults = append(faults, fmt.Errorf("most %d: allowed are 1 to 1000", o.Most))
	}
	if err := errors.Join(faults...); err != nil {
		return Provider{}, err
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return Provider{}, fmt.Errorf("create the state folder: %w", err)
	}
	return Provider{o}, nil
}

// record is the stored part of an instance.
type record struct {
	Hash     string         `json:"hash"` // of the launch
	Instance cloud.Instance `json:"instance"`
	Ending   bool           `json:"ending,omitempty"`  // Terminate was called
	EndedAt  time.Time      `json:"ended_at,omitzero"` // when the end was noticed
	Program  []string       `json:"program,omitempty"` // arguments of the process
}

// NoticeFile is the file in the folder of an instance whose appearance tells the agent that the cloud ends
// the machine, as berth-agent --notices describes it. Nothing here writes the file: it is for demonstrations
// and tests.
const NoticeFile = "notice.json"

// shownFor is the time for which List shows an ended instance.
const shownFor = time.Hour

// Create implements cloud.Provider.
func (p Provider) Create(ctx context.Context, l cloud.Launch) (cloud.Instance, error) {
	doing := fmt.Sprintf("create machine %s launch %d", l.Machine, l.N)
	unlock, err := p.lock(ctx, doing)
	if err != nil {
		return cloud.Instance{}, err
	}
	defer unlock()
	m, err := p.machine(l.Token)
	if err != nil {
		return cloud.Instance{}, refuse(cloud.Spec, doing, err)
	}
	r, err := m.load()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if r, err = p.record(ctx, l, doing); err != nil {
			return cloud.Instance{}, err
		}
		if err := m.store(r); err != nil {
			return cloud.Instance{}, unknown(doing, err)
		}
	case err != nil:
		return cloud.Instance{}, unknown(doing, err)
	case r.Hash != l.Hash():
		return cloud.Instance{}, refuse(cloud.Mismatch, doing, errors.New("the token belongs to another request"))
	}
	i, started, err := m.state(ctx, &r)
	if err == nil && !started && i.State == cloud.Pending {
		err = m.start(p.command(m, r), l.Bootstrap)
	}
	if err != nil {
		return cloud.Instance{}, unknown(doing, err)
	}
	if i.State == cloud.Ending || i.State == cloud.Terminated {
		err := fmt.Errorf("instance %s of this token is %s", i.ID, i.State)
		return cloud.Instance{}, refuse(cloud.Mismatch, doing, err)
	}
	return i, nil
}

// command returns the command that runs an instance.
func (p Provider) command(m machine, r record) []string {
	agent := append([]string{p.o.Program}, r.Program...)
	if p.o.Engines == nil {
		return agent
	}
	return slices.Concat(p.o.Engines.Host, []string{"--engine=" + m.path(engineFolder), "--"}, agent)
}

// record returns the record of a new instance, or refuses it.
func (p Provider) record(ctx context.Context, l cloud.Launch, doing string) (record, error) {
	n := slices.IndexFunc(p.o.Offers, func(o cloud.Offer) bool { return o.Offering == l.Offering })
	if n < 0 {
		return record{}, refuse(cloud.Spec, doing, fmt.Errorf("%s is not among the offers", l.Offering))
	}
	all, err := p.all(ctx)
	if err != nil {
		return record{}, unknown(doing, err)
	}
	alive := 0
	for _, i := range all {
		if i.State != cloud.Terminated {
			alive++
		}
	}
	if alive >= p.o.Most {
		err := fmt.Errorf("%d instances exist, and at most %d are allowed (--max)", alive, p.o.Most)
		return record{}, &cloud.Error{Kind: cloud.Capacity, Scope: l.Offering.String(), Err: err}
	}
	offer := p.o.Offers[n]
	i := cloud.Instance{
		ID: "local-" + l.Token, Token: l.Token, Cluster: l.Cluster, Pool: l.Pool, Machine: l.Machine, N: l.N,
		Offering: l.Offering, Created: time.Now().UTC().Truncate(time.Second),
	}
	return record{Hash: l.Hash(), Instance: i, Program: append([]string{
		"--server=" + l.Bootstrap.URL, "--state-dir=" + filepath.Join(p.o.Dir, l.Token, "agent"),
		"--machine=" + string(l.Machine), "--pool=" + l.Pool, "--region=" + l.Offering.Region, "--site=cloud",
		"--notices=file=" + filepath.Join(p.o.Dir, l.Token, NoticeFile),
		"--shutdown-after=15m", "--shutdown-command=none", // the process ends itself
		"--deadman=off", "--host-boot=" + i.ID, fmt.Sprintf("--cpus=%d", offer.CPUs),
		fmt.Sprintf("--memory=%dMiB", offer.MemoryMiB),
	}, p.o.Args...)}, nil
}

// Find implements cloud.Provider.
func (p Provider) Find(ctx context.Context, l cloud.Launch) (cloud.Instance, error) {
	doing := fmt.Sprintf("find machine %s launch %d", l.Machine, l.N)
	unlock, err := p.lock(ctx, doing)
	if err != nil {
		return cloud.Instance{}, err
	}
	defer unlock()
	_, i, err := p.find(ctx, l.Token, doing)
	return i, err
}

// find returns the machine of a token with its instance.
func (p Provider) find(ctx context.Context, token, doing string) (machine, cloud.Instance, error) {
	m, err := p.machine(token)
	if err != nil {
		return machine{}, cloud.Instance{}, refuse(cloud.NotFound, doing, err)
	}
	r, err := m.load()
	if errors.Is(err, fs.ErrNotExist) {
		return machine{}, cloud.Instance{}, refuse(cloud.NotFound, doing, errors.New("there is no such instance"))
	}
	if err != nil {
		return machine{}, cloud.Instance{}, unknown(doing, err)
	}
	i, _, err := m.state(ctx, &r)
	if err != nil {
		return machine{}, cloud.Instance{}, unknown(doing, err)
	}
	return m, i, nil
}

// List implements cloud.Provider.
func (p Provider) List(ctx context.Context, cluster string, regions []string) ([]cloud.Instance, error) {
	unlock, err := p.lock(ctx, "list instances")
	if err != nil {
		return nil, err
	}
	defer unlock()
	all, err := p.all(ctx)
	if err != nil {
		return nil, unknown("list instances", err)
	}
	return slices.DeleteFunc(all, func(i cloud.Instance) bool {
		return i.Cluster != cluster || !slices.Contains(regions, i.Offering.Region)
	}), nil
}

// endsLimit bounds the time in which a list ends engines, so that an engine that cannot be ended does not use up the
// time of the call. The next call repeats the rest.
const endsLimit = 20 * time.Second

// all returns the instances of all clusters, without the ones that ended long ago. An instance whose state cannot be
// found, because its engine is not destroyed, is ending.
func (p Provider) all(ctx context.Context) ([]cloud.Instance, error) {
	entries, err := os.ReadDir(p.o.Dir)
	if err != nil {
		return nil, err
	}
	all := []cloud.Instance{}
	ends, cancel := context.WithTimeout(ctx, endsLimit)
	defer cancel()
	for _, entry := range entries {
		m, err := p.machine(entry.Name())
		if err != nil {
			continue // the lock
		}
		r, err := m.load()
		if errors.Is(err, fs.ErrNotExist) {
			continue // a crash came before the record
		}
		if err != nil {
			return nil, err
		}
		i, _, err := m.state(ends, &r)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			i = r.Instance
			i.State, i.Reason = cloud.Ending, err.Error()
		}
		if i.State != cloud.Terminated || time.Since(r.EndedAt) < shownFor {
			all = append(all, i)
		}
	}
	return all, nil
}

// Terminate implements cloud.Provider. It returns once all processes and containers of the instance have ended.
func (p Provider) Terminate(ctx context.Context, i cloud.Instance) error {
	doing := "terminate instance " + i.ID
	unlock, err := p.lock(ctx, doing)
	if err != nil {
		return err
	}
	defer unlock()
	m, i, err := p.find(ctx, strings.TrimPrefix(i.ID, "local-"), doing)
	if err != nil || i.State == cloud.Terminated {
		return err
	}
	r, err := m.load()
	if err == nil {
		r.Ending = true
		err = m.store(r)
	}
	if err == nil {
		err = m.kill(ctx)
	}
	if err == nil {
		_, _, err = m.state(ctx, &r) // ends the engine
	}
	if err != nil {
		return unknown(doing, err)
	}
	return nil
}

// Offers implements cloud.Provider.
func (p Provider) Offers(_ context.Context, regions []string) ([]cloud.Offer, error) {
	return offers.In(p.o.Offers, regions), nil
}

// lock takes the lock of the folder.
func (p Provider) lock(ctx context.Context, doing string) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(p.o.Dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, unknown(doing, err)
	}
	for {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			_ = file.Close()
			return nil, unknown(doing, fmt.Errorf("lock the state folder: %w", err))
		}
		select {
		case <-ctx.Done():
			_ = file.Close()
			return nil, unknown(doing, context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

// pause is the time between two looks at a lock.
const pause = 5 * time.Millisecond

// token is the form of tokens, and of the folders of machines.
var token = regexp.MustCompile(`^[0-9a-f]{32}$`)

// machine is the folder of an instance.
type machine struct {
	dir     string
	engines *Engines
}

func (p Provider) machine(name string) (machine, error) {
	if !token.MatchString(name) {
		return machine{}, fmt.Errorf("token %q: it must be 32 hex digits", name)
	}
	return machine{dir: filepath.Join(p.o.Dir, name), engines: p.o.Engines}, nil
}

func (m machine) path(name string) string { return filepath.Join(m.dir, name) }

// load reads the record; fs.ErrNotExist: there is none.
func (m machine) load() (record, error) {
	var r record
	text, err := os.ReadFile(m.path("instance.json"))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%s: %w", m.path("instance.json"), err)
	}
	return r, nil
}

// store writes the record, whole or not at all.
func (m machine) store(r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(m.dir, 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(m.path("instance.new"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err == nil {
		err = file.Sync()
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(m.path("instance.new"), m.path("instance.json"))
	}
	return err
}

func refuse(kind cloud.Kind, doing string, err error) *cloud.Error {
	return &cloud.Error{Kind: kind, Err: fmt.Errorf("%s: %w", doing, err)}
}

func unknown(doing string, err error) *cloud.Error { return refuse(cloud.Unknown, doing, err) }
