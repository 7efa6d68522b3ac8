// Package faultcloud is a cloud in a file, with faults, for tests. Several processes may share the
// file, so a test can kill a process inside a call and go on with another one: a call takes effect as a
// whole or not at all. Each effect is also a line of a ledger next to the file.
//
// It keeps the rules of Amazon EC2 for tokens: a token with the same request returns its first
// instance, another request with the token is a mismatch.
package faultcloud

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"berth"
	"berth/internal/control/cloud"
)

// Fault is one scripted failure of Create.
type Fault struct {
	Kind cloud.Kind `json:"kind"`
	// After makes the call fail after it took effect; otherwise the call has no effect.
	After bool `json:"after"`
	// Scope and RetryAfter are fields of the error.
	Scope      string        `json:"scope,omitempty"`
	RetryAfter time.Duration `json:"retry_after,omitempty"`
}

// err returns the failure as a provider does.
func (f Fault) err(text string) error {
	return &cloud.Error{Kind: f.Kind, Scope: f.Scope, RetryAfter: f.RetryAfter, Err: errors.New(text)}
}

// State is the content of the file.
type State struct {
	Instances []Instance    `json:"instances"`
	Creates   []Fault       `json:"creates"`            // faults of the next calls of Create, in order
	Lag       time.Duration `json:"lag"`                // until Find and List show a new instance
	Ignore    int           `json:"ignore"`             // calls of Terminate that succeed without effect
	Unlisted  bool          `json:"unlisted,omitempty"` // List is refused for want of a right
	Hashes    []string      `json:"hashes"`             // of all requests that Create received
	Ends      []string      `json:"ends"`               // ids of all calls of Terminate
}

// Instance is an instance of the cloud.
type Instance struct {
	cloud.Instance
	Hash    string    `json:"hash"` // of the request
	Join    string    `json:"join"` // the join token in its user data
	Visible time.Time `json:"visible"`
}

// Call is one line of the ledger: a call of Create or Terminate that reached the cloud.
type Call struct {
	At       time.Time       `json:"at"`    // by the clock of this host
	Clock    time.Time       `json:"clock"` // by Cloud.Now
	Call     string          `json:"call"`  // create or terminate
	Machine  berth.MachineID `json:"machine,omitempty"`
	N        int             `json:"n,omitempty"`
	Token    string          `json:"token,omitempty"`
	Hash     string          `json:"hash,omitempty"` // of the request
	Instance string          `json:"instance,omitempty"`
	Error    cloud.Kind      `json:"error,omitempty"` // of the answer
}

// Cloud is a provider over a file. All methods may be called concurrently, also by several processes.
type Cloud struct {
	Path string
	Now  func() time.Time

	// Script changes the state at the begin of each Create, for faults that are drawn at random; nil: nothing.
	Script func(s *State)

	// Before and After run in Create, before it takes effect and after that; nil: nothing.
	Before, After func()
}

var _ cloud.Provider = (*Cloud)(nil)

// New returns a cloud over a file, which is created if it is missing.
func New(path string, now func() time.Time) *Cloud { return &Cloud{Path: path, Now: now} }

// Read returns the content of the file.
func (c *Cloud) Read() (s State, err error) {
	err = c.locked(func() error {
		s, err = c.load()
		return err
	})
	return s, err
}

// Change locks the file, and replaces its content with the result of f. A process that is killed meanwhile
// leaves the old content.
func (c *Cloud) Change(f func(s *State)) error {
	return c.locked(func() error {
		s, err := c.load()
		if err != nil {
			return err
		}
		f(&s)
		body, err := json.Marshal(s)
		if err != nil {
			return err
		}
		if err := os.WriteFile(c.Path+".new", body, 0o600); err != nil {
			return err
		}
		return os.Rename(c.Path+".new", c.Path)
	})
}

// locked calls f while no other process reads or changes the file.
func (c *Cloud) locked(f func() error) error {
	lock, err := os.OpenFile(c.Path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	return f()
}

// load returns the content of the file, which may be missing.
func (c *Cloud) load() (s State, err error) {
	body, err := os.ReadFile(c.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(body, &s)
}

// Calls returns the ledger.
func (c *Cloud) Calls() (list []Call, err error) {
	err = c.locked(func() error {
		body, err := os.ReadFile(c.Path + ".calls")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for d := json.NewDecoder(bytes.NewReader(body)); d.More(); {
			var call Call
			if err := d.Decode(&call); err != nil {
				return err
			}
			list = append(list, call)
		}
		return nil
	})
	return list, err
}

// note adds a line to the ledger. It is called within a change.
func (c *Cloud) note(call Call, err error) error {
	call.At, call.Clock = time.Now(), c.Now()
	if e, ok := errors.AsType[*cloud.Error](err); ok {
		call.Error = e.Kind
	}
	line, err := json.Marshal(call)
	if err != nil {
		return err
	}
	ledger, err := os.OpenFile(c.Path+".calls", os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = ledger.Write(append(line, '\n'))
	return errors.Join(err, ledger.Close())
}

// fault returns a typed error.
func fault(kind cloud.Kind, format string, args ...any) error {
	return &cloud.Error{Kind: kind, Err: fmt.Errorf(format, args...)}
}

// Create implements cloud.Provider.
func (c *Cloud) Create(_ context.Context, l cloud.Launch) (i cloud.Instance, err error) {
	if c.Before != nil {
		c.Before()
	}
	var noted error
	changed := c.Change(func(s *State) {
		if c.Script != nil {
			c.Script(s)
		}
		i, err = s.create(l, c.Now())
		noted = c.note(Call{Call: "create", Machine: l.Machine, N: l.N, Token: l.Token, Hash: l.Hash(),
			Instance: s.of(l.Token)}, err)
	})
	err = errors.Join(changed, noted, err)
	if c.After != nil {
		c.After()
	}
	return i, err
}

// of returns the id of the instance with a token, or "".
func (s *State) of(token string) string {
	for _, i := range s.Instances {
		if i.Token == token {
			return i.ID
		}
	}
	return ""
}

// create is one call of Create.
func (s *State) create(l cloud.Launch, now time.Time) (cloud.Instance, error) {
	s.Hashes = append(s.Hashes, l.Hash())
	var next Fault
	if len(s.Creates) > 0 {
		next, s.Creates = s.Creates[0], s.Creates[1:]
	}
	if next.Kind != "" && !next.After {
		return cloud.Instance{}, next.err("scripted")
	}
	for _, i := range s.Instances {
		if i.Token != l.Token {
			continue
		}
		switch {
		case i.Hash != l.Hash():
			return cloud.Instance{}, fault(cloud.Mismatch, "token %s belongs to another request", l.Token)
		case i.State == cloud.Terminated:
			return cloud.Instance{}, fault(cloud.Mismatch, "token %s belongs to an ended instance", l.Token)
		case next.Kind != "":
			return cloud.Instance{}, next.err("scripted")
		}
		return i.Instance, nil
	}
	made := Instance{Hash: l.Hash(), Join: l.Bootstrap.JoinToken, Visible: now.Add(s.Lag), Instance: cloud.Instance{
		ID: fmt.Sprintf("i-%d", len(s.Instances)+1), Token: l.Token, Cluster: l.Cluster, Pool: l.Pool,
		Machine: l.Machine, N: l.N, State: cloud.Pending, Offering: l.Offering, Created: now,
	}}
	s.Instances = append(s.Instances, made)
	if next.Kind != "" {
		return cloud.Instance{}, next.err("scripted, after it took effect")
	}
	return made.Instance, nil
}

// Find implements cloud.Provider.
func (c *Cloud) Find(_ context.Context, l cloud.Launch) (cloud.Instance, error) {
	s, err := c.Read()
	if err != nil {
		return cloud.Instance{}, err
	}
	for _, x := range s.Instances {
		if x.Token == l.Token && !x.Visible.After(c.Now()) {
			return x.Instance, nil
		}
	}
	return cloud.Instance{}, fault(cloud.NotFound, "no instance with token %s", l.Token)
}

// List implements cloud.Provider.
func (c *Cloud) List(_ context.Context, cluster string, regions []string) (list []cloud.Instance, err error) {
	s, err := c.Read()
	if err == nil && s.Unlisted {
		err = fault(cloud.Auth, "no right to list instances")
	}
	if err != nil {
		return nil, err
	}
	for _, x := range s.Instances {
		if x.Cluster == cluster && slices.Contains(regions, x.Offering.Region) && !x.Visible.After(c.Now()) {
			list = append(list, x.Instance)
		}
	}
	return list, nil
}

// Terminate implements cloud.Provider. The instance is terminated at once.
func (c *Cloud) Terminate(_ context.Context, i cloud.Instance) error {
	var noted error
	found := fault(cloud.NotFound, "no instance %s", i.ID)
	err := c.Change(func(s *State) {
		s.Ends = append(s.Ends, i.ID)
		call := Call{Call: "terminate", Instance: i.ID}
		for n := range s.Instances {
			x := &s.Instances[n]
			if x.ID != i.ID {
				continue
			}
			found, call.Machine, call.N, call.Token = nil, x.Machine, x.N, x.Token
			if s.Ignore > 0 {
				s.Ignore--
				break
			}
			x.State = cloud.Terminated
		}
		noted = c.note(call, found)
	})
	return errors.Join(err, noted, found)
}

// Offers implements cloud.Provider. It sells nothing.
func (c *Cloud) Offers(context.Context, []string) ([]cloud.Offer, error) { return nil, nil }
