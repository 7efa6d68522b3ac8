package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"berth/internal/machine/agent"
)

// noShutdown is the value of --shutdown-command without a command. shutdownPatience is the time in which a command
// that succeeded must have ended this process.
const (
	noShutdown       = "none"
	shutdownPatience = 5 * time.Minute
)

// shutdownLimit bounds the command itself, and outputLimit the time after its end in which a child of it keeps the
// output open.
const (
	shutdownLimit = time.Minute
	outputLimit   = time.Second
)

// shutdownFlags registers the flags for the end of a machine that is of no use.
func (s *settings) shutdownFlags(f *pflag.FlagSet) {
	f.DurationVar(&s.shutdown, "shutdown-after", 0,
		"shut the machine down once it has had neither a control plane nor a container for this long; for machines "+
			"that a cloud can create again; 0: never")
	f.StringVar(&s.poweroff, "shutdown-command", "systemctl --no-block poweroff",
		"command of --shutdown-after, without a shell; none: only the agent exits")
}

// checkShutdown reports the faults of these flags.
func (s *settings) checkShutdown(fault func(flag string, err error)) {
	if s.shutdown != 0 && (s.shutdown < time.Minute || s.shutdown > 24*time.Hour) {
		fault("shutdown-after", fmt.Errorf("%s: allowed are 0, and 1m to 24h", s.shutdown))
	}
	if len(strings.Fields(s.poweroff)) == 0 {
		fault("shutdown-command", errors.New("it is empty: allowed are a command, and none"))
	}
}

// ended returns the result of the agent's run. If the machine is of no use, it runs the command of
// --shutdown-command and waits for the end of this process, so that the service manager does not start the agent
// again meanwhile.
func (s *settings) ended(ctx context.Context, result error, log *slog.Logger) error {
	if !errors.Is(result, agent.ErrUnneeded) {
		return result
	}
	if s.poweroff == noShutdown {
		return nil
	}
	if err := shutDown(ctx, s.poweroff, shutdownLimit); err != nil && ctx.Err() == nil {
		return err
	}
	log.Info("machine shuts down")
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(shutdownPatience):
		return fmt.Errorf("shut down this machine: %s succeeded %s ago, and the machine runs", s.poweroff,
			shutdownPatience)
	}
}

// shutDown runs a command, at most until limit.
func shutDown(ctx context.Context, command string, limit time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it ran for %s, which is the limit", limit))
	defer cancel()
	args := strings.Fields(command)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.WaitDelay = outputLimit
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay) && ctx.Err() == nil: // it succeeded, and a child runs on
		return nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	}
	return fmt.Errorf("shut down this machine: %s: %w: %s", command, err, strings.TrimSpace(string(out)))
}
