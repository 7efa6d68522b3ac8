package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/devstack/dockerd"
)

// powerOffLimit bounds the end of an engine after the end of its agent.
const powerOffLimit = 5 * time.Minute

// localMachine is the process of a local instance with a container engine of its own. All processes of the
// instance end with it:
//
//	end of                    the engine and its containers        the agent
//	------------------------  -----------------------------------  ------------------------
//	the agent, by itself      killed by this process               -
//	this process, by SIGTERM  killed by this process               SIGTERM, then as above
//	this process, killed      SIGTERM by the kernel, and the rest  SIGKILL by the kernel
//	                          by the next call of the provider
//
// The provider reports the instance as terminated only after it has destroyed the engine itself.
type localMachine struct {
	engine  string   // folder of the engine
	images  []string // NAME=ROOTFS.tar
	command []string // of the agent
}

// machineCommand returns the hidden subcommand that runs an instance. "berth-cloud local" starts it.
func machineCommand() *cobra.Command {
	var m localMachine
	cmd := &cobra.Command{
		Use:    "local-machine --engine FOLDER [--image NAME=ROOTFS.tar]... -- PROGRAM [ARGUMENT...]",
		Short:  "Run the processes of one local machine",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m.command = args
			return m.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&m.engine, "engine", "", "folder of the container engine (required)")
	imageFlag(cmd, &m.images)
	_ = cmd.MarkFlagRequired("engine") // the error is for unknown flags
	return cmd
}

// imageFlag registers the flag for images, which an engine has from the start.
func imageFlag(cmd *cobra.Command, images *[]string) {
	cmd.Flags().StringArrayVar(images, "image", nil, "image put into the engine, as NAME=ROOTFS.tar (repeatable)")
}

// run starts the engine and then the agent, and kills the engine once the agent has ended.
func (m localMachine) run(ctx context.Context) error {
	// The authority of Berth's API is for the agent: the engine would trust no registry with it.
	env := os.Environ()
	if err := os.Unsetenv("SSL_CERT_FILE"); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	engine, err := dockerd.Start(ctx, dockerd.Options{Dir: m.engine, Tied: true, Logger: log})
	if err != nil {
		return err
	}
	for _, image := range m.images {
		name, path, _ := strings.Cut(image, "=")
		if _, err = dockerd.ImportImage(ctx, engine.Host(), name, path); err != nil {
			break
		}
	}
	if err == nil {
		err = m.runAgent(ctx, env, engine.Host())
	}
	// ctx may have ended: the engine must not outlive this process.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), powerOffLimit)
	defer cancel()
	return errors.Join(err, engine.KillMachine(ctx))
}

// runAgent runs the agent to its end. The end of ctx is passed on as SIGTERM.
func (m localMachine) runAgent(ctx context.Context, env []string, host string) error {
	// The kernel sends the signal of Pdeathsig when the thread that started the child ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	args := append(m.command[1:], "--docker-host="+host)
	args = append(args, dockerd.TrustFlags(m.images)...)
	cmd := exec.CommandContext(ctx, m.command[0], args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 15 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	return nil
}
