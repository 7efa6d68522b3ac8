package proof_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"testing"

	"berth"
	"berth/api/client"
	"berth/e2e/faultproxy"
	"berth/spec"
)

// replica is one of several berthd over the same servers.
type replica struct {
	s      *stack
	name   string
	listen string
	token  string
	flags  []string
	folder string // of its program; empty: built from this repository
	now    *process
	api    *client.Client // this one alone
}

// replicas are a stack's control plane: several berthd behind an address that
// leads to one that lives, as a load balancer does.
type replicas struct {
	s     *stack
	all   []*replica
	front *faultproxy.Proxy
}

// onReplicas is a stack with n berthd and one agent over an engine in memory,
// which reaches them by their common address.
func onReplicas(t *testing.T, n int, flags ...string) (*stack, *replicas) {
	t.Helper()
	s := newStack(t)
	s.image, s.machines = "testprog", 1
	s.flags = []string{"--only", "postgres,temporal"}
	s.startDev()
	r := s.startReplicas(n, flags...)
	var err error
	if r.front, err = faultproxy.Start(r.all[0].listen); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.front.Close() })
	s.connect("http://"+r.front.Address(), r.all[0].token)
	join, err := s.api.CreateJoinToken(t.Context(), spec.NewJoinToken{})
	if err != nil {
		t.Fatal(err)
	}
	agent, err := startProcess(filepath.Join(s.dir, "agent.log"), []string{"BERTH_JOIN_TOKEN=" + join.Secret}, program(t, "berth-agent"),
		"--server", "http://"+r.front.Address(), "--machine", "m1", "--runtime", "fake",
		"--state-dir", filepath.Join(s.dir, "machines", "m1", "agent"), "--cpus", "64", "--memory", "64GiB", "--no-gpus")
	if err != nil {
		t.Fatal(err)
	}
	s.others = append(s.others, agent)
	s.awaitMachines()
	return s, r
}

// startReplicas starts n berthd with the same flags, each at an address of its
// own.
func (s *stack) startReplicas(n int, flags ...string) *replicas {
	s.t.Helper()
	r := &replicas{s: s}
	token := "berth_" + berth.NewSecret()[:12] + "_" + berth.NewSecret()
	for i := range n {
		r.all = append(r.all, &replica{s: s, name: fmt.Sprintf("berthd-%d", i), listen: freeAddress(s.t), token: token, flags: flags})
	}
	for _, one := range r.all {
		one.start()
		s.t.Cleanup(one.api.Close)
	}
	return r
}

// start starts it, at the same address as before, and returns once it answers.
func (p *replica) start() {
	p.s.t.Helper()
	p.launch()
	was := p.s.api
	p.s.api = p.api
	p.s.awaitAPI(p.now)
	p.s.api = was
}

// launch starts its process.
func (p *replica) launch() {
	p.s.t.Helper()
	args := append([]string{
		"--listen", p.listen, "--database-url", p.s.at.DatabaseURL, "--temporal-address", p.s.at.Temporal,
		"--blob-url", "file://" + filepath.Join(p.s.dir, "blobs"), "--rate", "100000", "--burst", "100000", "--submit-rate", "0",
	}, p.flags...)
	var err error
	if p.now, err = startProcess(p.log(), []string{"BERTH_ADMIN_TOKEN=" + p.token}, programOf(p.s.t, p.folder, "berthd"), args...); err != nil {
		p.s.t.Fatal(err)
	}
	p.s.others = append(p.s.others, p.now)
	if p.api == nil {
		p.api = client.New("http://"+p.listen, p.token)
	}
}

func (p *replica) log() string { return filepath.Join(p.s.dir, p.name+".log") }

// freeze stops its threads until thaw; its connections stay open.
func (p *replica) freeze() { p.now.signal(syscall.SIGSTOP) }
func (p *replica) thaw()   { p.now.signal(syscall.SIGCONT) }

var (
	tookTheLead = regexp.MustCompile(`msg="acquired leadership" epoch=(\d+)`)
	leadsNoMore = regexp.MustCompile(`msg="lost leadership" epoch=(\d+)`)
)

// terms returns the terms in the lines of this kind in the replica's log.
func (p *replica) terms(line *regexp.Regexp) (found []int) {
	p.s.t.Helper()
	b, err := os.ReadFile(p.log())
	if err != nil {
		p.s.t.Fatal(err)
	}
	for _, m := range line.FindAllSubmatch(b, -1) {
		if n, err := strconv.Atoi(string(m[1])); err == nil {
			found = append(found, n)
		}
	}
	return found
}

// lost returns the terms whose end the replica has logged.
func (p *replica) lost() []int { return p.terms(leadsNoMore) }

// leader waits for a leader. It returns the replica that took the lead last, with its
// term.
func (r *replicas) leader() (leads *replica, term int) {
	r.s.t.Helper()
	until(r.s.t, "a replica leads", func(context.Context) error {
		for _, p := range r.all {
			for _, n := range p.terms(tookTheLead) {
				if n > term {
					leads, term = p, n
				}
			}
		}
		if leads == nil {
			return errNotYet
		}
		return nil
	})
	return leads, term
}

// wantNoticed waits until every leader of an earlier term has logged the end of that
// term.
func (r *replicas) wantNoticed(now int) {
	r.s.t.Helper()
	until(r.s.t, "the leaders before have noticed that they lead no more", func(context.Context) error {
		for _, p := range r.all {
			for _, n := range p.terms(tookTheLead) {
				if n < now && !slices.Contains(p.lost(), n) {
					return fmt.Errorf("%s has not, of term %d", p.name, n)
				}
			}
		}
		return nil
	})
}

// other returns another replica; from now on the common address leads to that replica.
func (r *replicas) other(than *replica) *replica {
	for _, p := range r.all {
		if p != than {
			r.front.SetTargets(p.listen)
			return p
		}
	}
	panic("there is no other")
}
