package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"berth/internal/lib/flags"
	"berth/internal/machine/fetch"
	"berth/spec"
)

// The engines on which an agent can run containers.
const (
	enginesHost    = "host"    // all agents share the local Docker engine
	enginesPrivate = "private" // each agent has a dockerd of its own: a machine that can be killed
	enginesFake    = "fake"    // containers in memory
)

// config holds the flags of berth-dev.
type config struct {
	Dir          string
	Agents       int
	Listen       string
	TemporalPort int
	UIPort       int
	PostgresPort int
	Engines      string
	DockerHost   string
	FakeGPUs     string   // path of a file with the GPUs of each machine
	Images       []string // name=rootfs.tar, put into every engine that lacks it
	CPUs         float64  // of each machine; 0: the host's
	Memory       string   // of each machine; "": the host's
	Region       string
	FileInputs   []string // folders that jobs on every machine may read
	Cloud        string   // file with providers of machines, as of berthd; "": none
	Only         []string // parts to run; empty: all
	User         string   // default of user in job files; "": as the database has it
	LogLevel     slog.Level
}

// parts are the values of --only.
var parts = []string{"postgres", "temporal", "berthd", "agents"}

// defaultDir returns a folder of the user's that survives a reboot: /tmp would lose the
// state.
func defaultDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/berth-dev"
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "share", "berth-dev")
	}
	return "berth-dev"
}

func (c *config) flags(f *pflag.FlagSet) {
	f.StringVar(&c.Dir, "dir", defaultDir(), "folder that keeps all state")
	f.IntVar(&c.Agents, "agents", 1, "number of machines")
	f.StringVar(&c.Listen, "listen", "127.0.0.1:7070", "address of the API; port 0 takes a free one and keeps it")
	f.IntVar(&c.TemporalPort, "temporal-port", 7233, "Temporal's port on 127.0.0.1; 0 takes a free one and keeps it")
	f.IntVar(&c.UIPort, "ui-port", 8233,
		"port of Temporal's UI on 127.0.0.1; 0 takes a free one and keeps it, -1 leaves it out")
	f.IntVar(&c.PostgresPort, "postgres-port", 0, "PostgreSQL's port on 127.0.0.1; 0 takes a free one and keeps it")
	f.StringVar(&c.Engines, "engines", enginesHost, "what agents run containers on: host, private or fake")
	f.StringVar(&c.DockerHost, "docker-host", "unix:///var/run/docker.sock", "the local engine, for --engines host")
	f.StringVar(&c.FakeGPUs, "fake-gpus", "", "file that declares each machine's GPUs")
	f.StringArrayVar(&c.Images, "image", nil, "NAME=ROOTFS.tar put into every engine that lacks it (repeatable)")
	f.Float64Var(&c.CPUs, "cpus", 0, "cores of each machine (default: the host's)")
	f.StringVar(&c.Memory, "memory", "", "memory of each machine, such as 4GiB (default: the host's)")
	f.StringArrayVar(&c.FileInputs, "file-inputs", nil,
		"folder that jobs of all tenants may read as file:///NAME/…: /NAME, or /NAME=/FOLDER (repeatable)")
	f.StringVar(&c.Region, "region", "local", "region of every machine")
	f.StringVar(&c.Cloud, "cloud", "", "YAML file with the providers of cloud machines, as berthd takes it")
	f.StringVar(&c.User, "container-user", "",
		"user of containers if the job file has no user: tenant or image (default: as the database has it)")
	f.StringSliceVar(&c.Only, "only", nil, "run these parts only: "+strings.Join(parts, ", "))
	c.LogLevel = slog.LevelWarn
	flags.LogLevel(f, &c.LogLevel)
}

// validate checks the flags beyond their types and makes Dir absolute. It returns all
// faults.
func (c *config) validate() error {
	var errs []error
	dir, err := filepath.Abs(c.Dir)
	errs = append(errs, err)
	c.Dir = dir
	if c.Agents < 0 || c.Agents > 64 {
		errs = append(errs, fmt.Errorf("--agents %d: allowed are 0 to 64", c.Agents))
	}
	if host, _, err := net.SplitHostPort(c.Listen); err != nil {
		errs = append(errs, fmt.Errorf("--listen %q: write HOST:PORT", c.Listen))
	} else if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		errs = append(errs, fmt.Errorf("--listen %q: berth-dev listens on loopback only; run berthd for more",
			c.Listen))
	}
	switch c.Engines {
	case enginesHost, enginesPrivate, enginesFake:
	default:
		errs = append(errs, fmt.Errorf("--engines %q: allowed are host, private, fake", c.Engines))
	}
	if !contains([]string{"", spec.UserTenant, spec.UserImage}, c.User) {
		errs = append(errs, fmt.Errorf("--container-user %q: allowed are %s, %s", c.User, spec.UserTenant,
			spec.UserImage))
	}
	for _, p := range c.Only {
		if !contains(parts, p) {
			errs = append(errs, fmt.Errorf("--only %q: allowed are %s", p, strings.Join(parts, ", ")))
		}
	}
	volumes, err := fetch.ParseVolumes(c.FileInputs)
	if err == nil {
		err = errors.Join(volumes.Check(c.Dir))
	}
	if err != nil {
		errs = append(errs, fmt.Errorf("--file-inputs: %w", err))
	}
	for _, i := range c.Images {
		if name, tar, ok := strings.Cut(i, "="); !ok || name == "" || tar == "" {
			errs = append(errs, fmt.Errorf("--image %q: write NAME=ROOTFS.tar", i))
		}
	}
	return errors.Join(errs...)
}

// runs reports whether --only includes the part, or is not set.
func (c *config) runs(part string) bool { return len(c.Only) == 0 || contains(c.Only, part) }

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}
