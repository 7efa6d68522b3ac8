package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"berth"
	"berth/api/client"
	"berth/e2e/faultproxy"
	"berth/spec"
)

// Options describe a stack.
type Options struct {
	Workshop *Workshop // required
	Programs string    // folder of the programs; empty: built from this repository
	Berthd   []string  // further flags of berthd, each as --name=value
	First    []string  // further flags of the first berthd alone

	// Newer are flags of berthd, each as --name=value, that are left out where its
	// help does not list them.
	Newer []string

	// Linked puts a proxy in front of the replicas, and proxies between each of them
	// and its servers, so that the test may choose which of them are reached.
	Linked bool

	// Apart puts the processes of each service into a control group of its own, all of equal weight, where the host
	// allows it. ServicesApart says whether it did.
	Apart bool
}

// Stack is a running Berth: PostgreSQL and Temporal, one berthd or more, any number
// of agents.
type Stack struct {
	Dir      string
	Programs *Programs
	URL      string // of the API
	Token    string // of an admin
	API      *client.Client
	DB       *pgxpool.Pool // Berth's database, for measurements only
	Temporal string        // address of the frontend

	replicas []*Replica
	flags    []string // of each of them
	linked   bool
	front    *faultproxy.Proxy // the replicas' common address; nil unless linked
	dev      *Process
	agents   []*Process
	database string    // URL of Berth's database
	services *services // nil: services run in the groups of this process
}

// The size that every machine pretends to have: jobs of these tests wait for
// the control plane and never for capacity.
const (
	machineCPUs   = "64"
	machineMemory = "64GiB"
)

// Patience bounds a wait for a condition that a working stack reaches soon, even on a
// crowded machine.
const Patience = 10 * time.Minute

// Start starts a stack without agents. The caller closes it, also after an
// error that came with a stack.
func Start(ctx context.Context, o Options) (*Stack, error) {
	dir, err := os.MkdirTemp(o.Workshop.Dir, "s-")
	if err != nil {
		return nil, err
	}
	s := &Stack{Dir: dir, linked: o.Linked, Token: "berth_" + berth.NewSecret()[:12] + "_" + berth.NewSecret()}
	if o.Apart {
		s.services = newServices(hostCgroups(), dir)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return s, err
	}
	if s.Programs, err = OpenPrograms(o.Programs, filepath.Join(o.Workshop.Dir, "bin")); err != nil {
		return s, err
	}
	if err := s.startServers(ctx); err != nil {
		return s, fmt.Errorf("start PostgreSQL and Temporal: %w: %s", err, Tail(filepath.Join(dir, "berth-dev.log")))
	}
	s.flags = slices.Clone(o.Berthd)
	for _, f := range o.Newer {
		name, _, _ := strings.Cut(strings.TrimPrefix(f, "--"), "=")
		takes, err := s.Programs.Takes("berthd", name)
		if err != nil {
			return s, err
		}
		if takes {
			s.flags = append(s.flags, f)
		}
	}
	return s, s.startBerthd(ctx, o.First)
}

// startServers starts PostgreSQL and Temporal in one berth-dev, and opens the database.
func (s *Stack) startServers(ctx context.Context) (err error) {
	s.dev, err = run(filepath.Join(s.Dir, "berth-dev.log"), nil, s.Programs.Path("berth-dev"),
		"--dir", s.Dir, "--listen", "127.0.0.1:0", "--temporal-port", "0", "--ui-port", "-1", "--only",
		"postgres,temporal")
	if err != nil {
		return err
	}
	s.services.add(temporalService, s.dev.PID)
	var at struct {
		Temporal    string `json:"temporal"`
		DatabaseURL string `json:"database_url"`
	}
	err = Await(ctx, Patience, func(context.Context) error {
		if !s.dev.Running() {
			return fatal{fmt.Errorf("berth-dev ended: %w", s.dev.err)}
		}
		b, err := os.ReadFile(filepath.Join(s.Dir, "stack.json"))
		if err != nil {
			return err
		}
		return json.Unmarshal(b, &at)
	})
	if err != nil {
		return err
	}
	s.Temporal, s.database = at.Temporal, at.DatabaseURL
	if postgres := s.postgresPIDs(); len(postgres) > 0 {
		s.services.add(postgresqlService, postgres[0])         // later backends start in its group
		s.services.add(postgresqlService, s.postgresPIDs()...) // backends that started before
	}
	cfg, err := pgxpool.ParseConfig(at.DatabaseURL)
	if err != nil {
		return err
	}
	cfg.MaxConns, cfg.ConnConfig.RuntimeParams["application_name"] = 4, "berth-rig"
	s.DB, err = pgxpool.NewWithConfig(ctx, cfg)
	return err
}

// startBerthd starts the first replica. A linked stack reaches it through a proxy, whose address
// stays the same when tests cut the link or change the target.
func (s *Stack) startBerthd(ctx context.Context, flags []string) error {
	first, err := s.AddReplica(ctx, flags...)
	if err != nil {
		return err
	}
	s.URL, s.API = "http://"+first.listen, client.New("http://"+first.listen, s.Token)
	if s.linked {
		if s.front, err = faultproxy.Start(first.listen); err != nil {
			return err
		}
		s.API.Close()
		s.URL = "http://" + s.front.Address()
		s.API = client.New(s.URL, s.Token)
	}
	return nil
}

// agentsAtOnce is how many agents start at the same time.
const agentsAtOnce = 8

// Join starts n more agents with engines in memory and returns once their machines are ready.
func (s *Stack) Join(ctx context.Context, n int) error {
	return s.JoinWith(ctx, n, "--runtime", "fake", "--no-gpus")
}

// JoinWith is Join with other flags about the engine and the GPUs. Containers of a real engine
// outlive the stack: RemoveContainers removes them.
func (s *Stack) JoinWith(ctx context.Context, n int, flags ...string) error {
	speaks, err := s.Programs.Takes("berth-agent", "temporal-address") // of an older version
	if err != nil {
		return err
	}
	first := len(s.agents)
	s.agents = slices.Grow(s.agents, n)[:first+n]
	var starts errgroup.Group
	starts.SetLimit(agentsAtOnce)
	for i := first; i < first+n; i++ {
		starts.Go(func() error {
			name := fmt.Sprintf("m%03d", i+1)
			join, err := s.API.CreateJoinToken(ctx, spec.NewJoinToken{})
			if err != nil {
				return err
			}
			args := append([]string{
				"--server", s.URL, "--machine", name, "--host-boot", "boot-of-" + name,
				"--state-dir", s.StateDir(name), "--cpus", machineCPUs, "--memory",
				machineMemory, "--disk", machineMemory,
			}, flags...)
			if speaks {
				args = append(args, "--temporal-address", s.Temporal)
			}
			s.agents[i], err = run(filepath.Join(s.Dir, "agent-"+name+".log"),
				[]string{"BERTH_JOIN_TOKEN=" + join.Secret}, s.Programs.Path("berth-agent"), args...)
			if err == nil {
				s.services.add(agentsService, s.agents[i].PID)
			}
			return err
		})
	}
	if err := starts.Wait(); err != nil {
		return err
	}
	err = Await(ctx, Patience, func(ctx context.Context) error {
		for _, p := range s.agents[first:] {
			if !p.Running() {
				return fatal{fmt.Errorf("an agent ended: %w: %s", p.err, Tail(p.Log))}
			}
		}
		var ready int
		err := s.DB.QueryRow(ctx, `SELECT count(*) FROM machines WHERE state = 'ready'`).Scan(&ready)
		if err == nil && ready < first+n {
			err = fmt.Errorf("%d of %d machines are ready", ready, first+n)
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("%w; the log of one agent: %s", err, Tail(s.agents[first].Log))
	}
	return err
}

// DatabaseURL returns the address of Berth's database, which no proxy guards.
func (s *Stack) DatabaseURL() string { return s.database }

// StateDir returns the folder of a machine's agent.
func (s *Stack) StateDir(machine string) string { return filepath.Join(s.Dir, "machines", machine) }

// RestartAgent ends the process of an agent in order, calls meanwhile, and starts the agent again. The containers of an
// engine in memory end with the process.
func (s *Stack) RestartAgent(i int, meanwhile func() error) (err error) {
	p := s.agents[i]
	if p.Running() {
		if err := p.end(syscall.SIGTERM); err != nil {
			return err
		}
	}
	if err := meanwhile(); err != nil {
		return err
	}
	if p, err = run(p.Log, p.env, p.path, p.args...); err == nil {
		s.agents[i] = p
		s.services.add(agentsService, p.PID)
	}
	return err
}

// Berthd returns the process of the first replica.
func (s *Stack) Berthd() *Process { return s.replicas[0].process }

// Agents returns the processes of the agents.
func (s *Stack) Agents() []*Process { return s.agents }

// Close ends every process. Files stay until the workshop is closed.
func (s *Stack) Close() error {
	var errs []error
	for _, p := range s.agents {
		if p != nil {
			p.Signal(syscall.SIGKILL) // their jobs are no longer of interest
		}
	}
	for _, p := range s.agents {
		if p != nil {
			<-p.exited
		}
	}
	if s.API != nil {
		s.API.Close()
	}
	if s.DB != nil {
		s.DB.Close()
	}
	for _, r := range s.replicas {
		errs = append(errs, r.close())
	}
	if s.front != nil {
		errs = append(errs, s.front.Close())
	}
	if s.dev != nil {
		errs = append(errs, s.dev.end(syscall.SIGINT))
	}
	s.services.close()
	return errors.Join(errs...)
}

// fatal is an error that waiting does not cure.
type fatal struct{ error }

func (f fatal) Unwrap() error { return f.error }

// Await calls check ten times a second until check returns nil, and returns its last error when
// the limit has passed.
func Await(ctx context.Context, limit time.Duration, check func(context.Context) error) error {
	return AwaitEvery(ctx, 100*time.Millisecond, limit, check)
}

// AwaitEvery is Await with another pause between two checks: a check that reads
// thousands of rows is itself a load.
func AwaitEvery(ctx context.Context, every, limit time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if _, ended := errors.AsType[fatal](err); ended {
			return err
		}
		if ctx.Err() == nil || last == nil {
			last = err // the error of a canceled check explains nothing
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", limit, last)
		}
	}
}
