package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth/activities/node"
	"berth/internal/devstack/dockerd"
	"berth/internal/machine/deadman"
	"berth/wire"
)

// gangPorts is the number of ports for members of gangs on each machine, where all machines
// share the ports of this host.
const gangPorts = 50

// machine is one machine of the stack: an agent process and the engine of its containers.
type machine struct {
	name   string
	number int // among the stack's, from 0
	dir    string
	cfg    *config
	log    *slog.Logger
	server string                                    // the API's address
	join   func(ctx context.Context) (string, error) // creates a join token

	engine *dockerd.Daemon // nil on a shared engine
	host   string          // docker host

	mu    sync.Mutex
	agent *exec.Cmd // the running agent
	dead  bool      // killed by kill; stays so until the stack starts again
}

// boot starts the machine's engine, or adopts the running one, and returns the machine's
// boot id. The id changes whenever the containers of the last boot cannot be alive, as
// after a reboot.
func (m *machine) boot(ctx context.Context) (string, error) {
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		return "", err
	}
	kernel, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	id := strings.TrimSpace(string(kernel)) + "-" + m.name
	switch m.cfg.Engines {
	case enginesHost:
		m.host = m.cfg.DockerHost
		return id, nil
	case enginesFake:
		return id + "-" + rand.Text()[:8], nil
	}
	m.engine, err = dockerd.Start(ctx, dockerd.Options{Dir: filepath.Join(m.dir, "docker"), Logger: m.log})
	if err != nil {
		return "", err
	}
	m.host = m.engine.Host()
	file := filepath.Join(m.dir, "boot")
	if old, err := os.ReadFile(file); err == nil && m.engine.Adopted() {
		return string(old), nil
	}
	id += "-" + rand.Text()[:8]
	return id, os.WriteFile(file, []byte(id), 0o600)
}

// run restarts the machine's agent until ctx ends, as a service manager would. The
// containers outlive the agent.
func (m *machine) run(ctx context.Context, bootID string) error {
	for {
		begun := time.Now()
		err := m.runAgent(ctx, bootID)
		switch {
		case ctx.Err() != nil:
			return nil
		case m.isDead():
			m.log.Info("machine killed", "machine_id", m.name)
			<-ctx.Done()
			return nil
		}
		m.log.Warn("agent exited, restarted", "machine_id", m.name, "err", err)
		// An agent that fails at once must not be restarted in a busy loop.
		if time.Since(begun) < 2*time.Second {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

// runAgent runs one agent process to its end.
func (m *machine) runAgent(ctx context.Context, bootID string) error {
	program, err := beside("berth-agent")
	if err != nil {
		return err
	}
	args := []string{"--server", m.server, "--machine", m.name, "--state-dir", filepath.Join(m.dir, "agent"),
		"--host-boot", bootID, "--region", m.cfg.Region}
	if m.cfg.Engines == enginesFake {
		args = append(args, "--runtime", "fake")
	} else {
		args = append(args, "--docker-host", m.host)
	}
	if m.cfg.Engines == enginesHost { // the developer's own, with the images of other work
		args = append(args, "--image-disk-mark", "0")
	}
	if m.cfg.Engines != enginesHost {
		// Private and fake engines have no network in common, but the host: each machine
		// gets a part of its ports.
		first := wire.DefaultPorts.First + gangPorts*m.number
		ports := wire.PortRange{First: first, Last: first + gangPorts - 1}
		args = append(args, "--gang-network", node.HostNetwork, "--advertise", "127.0.0.1", "--gang-ports",
			ports.String())
	}
	for _, folder := range m.cfg.FileInputs {
		args = append(args, "--file-inputs", folder)
	}
	args = append(args, dockerd.TrustFlags(m.cfg.Images)...)
	if m.cfg.FakeGPUs != "" {
		args = append(args, "--fake-gpus", m.cfg.FakeGPUs)
	}
	if m.cfg.CPUs > 0 {
		args = append(args, "--cpus", fmt.Sprint(m.cfg.CPUs))
	}
	if m.cfg.Memory != "" {
		args = append(args, "--memory", m.cfg.Memory)
	}
	cmd := exec.Command(program, args...)
	// Without /etc/berth/agent.yaml, which is of an agent that is installed on this host.
	cmd.Env = append(os.Environ(), "BERTH_SETTINGS_FILE=")
	token, err := m.joinToken(ctx)
	if err != nil {
		return err
	}
	if token != "" {
		cmd.Env = append(cmd.Env, "BERTH_JOIN_TOKEN="+token)
	}
	logFile, err := os.OpenFile(filepath.Join(m.dir, "agent.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer logFile.Close()
	cmd.Stdout, cmd.Stderr = logFile, logFile
	return m.supervise(ctx, cmd)
}

// supervise runs the process, stops the process when ctx ends, and waits for its exit. The
// process dies with this one: a killed stack leaves containers behind, never a second
// agent.
func (m *machine) supervise(ctx context.Context, cmd *exec.Cmd) error {
	done := make(chan error, 1)
	started := make(chan error, 1)
	go func() {
		// The kernel sends the death signal when the thread that forked ends, so this
		// goroutine keeps its thread until the process has exited.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		err := cmd.Start()
		started <- err
		if err == nil {
			done <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start agent: %w", err)
	}
	m.setAgent(cmd)
	defer m.setAgent(nil)
	pid := filepath.Join(m.dir, "agent.pid")
	if err := os.WriteFile(pid, fmt.Appendf(nil, "%d\n", cmd.Process.Pid), 0o644); err != nil {
		m.log.Warn("cannot write the agent's pid file", "err", err)
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		_ = cmd.Process.Signal(syscall.SIGTERM)
	}
	select {
	case err := <-done:
		return err
	case <-time.After(15 * time.Second):
		_ = cmd.Process.Kill()
		return <-done
	}
}

// joinToken returns a join token for an agent that has no credential yet, else "".
func (m *machine) joinToken(ctx context.Context) (string, error) {
	entries, err := filepath.Glob(filepath.Join(m.dir, "agent", "credential*"))
	if err != nil || len(entries) > 0 {
		return "", err
	}
	return m.join(ctx)
}

// kill ends agent, deadman, engine and containers at once, as a power cut would.
func (m *machine) kill(ctx context.Context) error {
	if m.engine == nil {
		return fmt.Errorf("machine %s shares its engine: only machines of --engines private can be killed", m.name)
	}
	m.mu.Lock()
	// Set before the kill, or run would see the agent's end and restart the agent.
	m.dead = true
	if m.agent != nil {
		_ = m.agent.Process.Kill()
	}
	m.mu.Unlock()
	killDeadman(filepath.Join(m.dir, "agent"))
	return m.engine.KillMachine(ctx)
}

// killDeadman kills the deadman of an agent's state folder, if one runs: a deadman outlives
// a killed agent, but not a power cut.
func killDeadman(state string) {
	if p, err := deadman.Answer(deadman.Dir(state)); err == nil {
		_ = syscall.Kill(p.PID, syscall.SIGKILL) // it holds its lock, so the number is its own
	}
}

// leave releases the engine, which keeps running for the next start.
func (m *machine) leave() error {
	if m.engine == nil || m.isDead() {
		return nil
	}
	return m.engine.Release()
}

func (m *machine) setAgent(cmd *exec.Cmd) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.agent = cmd
}

func (m *machine) isDead() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dead
}

// beside returns the path of a program in the folder of this one, else in PATH.
func beside(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	path := filepath.Join(filepath.Dir(self), name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	path, err = exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside %s nor in PATH: build it with `make build`", name, self)
	}
	return path, nil
}
