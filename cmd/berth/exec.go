package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"berth/api/client"
	"berth/spec"
)

// console is the terminal of this process: of its input and its output. Tests have their own.
type console interface {
	// Raw hands every key to this process as it is typed. restore undoes that, at any time and
	// more than once.
	Raw() (restore func(), err error)
	// Size returns the size; 0, 0 if it is unknown.
	Size() (rows, columns int)
}

// commandError is the end of a command in a container with a code other than 0, which becomes the
// exit code of this process. The command has printed its reason itself.
type commandError struct{ code int }

// Error returns the end in words. Users do not see them.
func (e *commandError) Error() string {
	return fmt.Sprintf("the command ended with exit code %d", e.code)
}

// newExec builds "berth exec" over POST /v1/jobs/{id}/sessions.
func newExec(a *app) *cobra.Command {
	var req spec.NewSession
	noStdin := false
	cmd := &cobra.Command{
		Use:   "exec JOB [flags] -- COMMAND [ARG...]",
		Short: "Run a command in the container of a running job",
		Long: "Exec runs a command in the container of a running job, next to the job's own process, as the same\n" +
			"user and under the same limits. It needs no open port on the machine.\n\n" +
			"Exec exits with the exit code of the command. If the connection is cut, exec exits with 7, and the\n" +
			"command is stopped. With --tty the command has a terminal; without --tty, standard output and\n" +
			"standard error stay apart.\n\n" +
			"Exec also enters a failed attempt that hold_on_failure holds: its files, and a new container of its\n" +
			"image. --attempt selects the attempt; a job that does not run is entered by its hold.\n\n" +
			"The events of the job name the user and the command. The result of a pipeline step with a session\n" +
			"is not reused.",
		Example: "  berth exec digits --tty -- bash\n  berth exec digits --member 3 -- nvidia-smi\n" +
			"  tar c src | berth exec digits -- tar x -C /workspace",
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: a.completeJobs(liveJob),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 1 {
				return &usageError{message: "berth exec needs a JOB, and the command after --",
					hint: "usage: berth exec JOB -- COMMAND [ARG...]"}
			}
			if err := checkSession(req); err != nil {
				return err
			}
			req.Kind, req.Command = spec.SessionExec, args[1:]
			if req.TTY && a.console == nil {
				return &usageError{message: "--tty needs a terminal as standard input and output",
					hint: "leave --tty out in scripts and pipes"}
			}
			in := a.in
			if noStdin {
				in = nil
			}
			return enter(cmd.Context(), a, args[0], req, in)
		},
	}
	f := cmd.Flags()
	addSessionFlags(f, &req)
	f.BoolVarP(&req.TTY, "tty", "t", false, "give the command a terminal")
	f.BoolVarP(&noStdin, "no-stdin", "n", false, "do not pass standard input to the command")
	return cmd
}

// enter opens a session in a job and runs it to its end. The error carries the exit code.
func enter(ctx context.Context, a *app, arg string, req spec.NewSession, in io.Reader) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	job, err := a.job(ctx, c, arg)
	if err != nil {
		return err
	}
	// Signals go to the command from here on, and do not end this process.
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	streams := client.Streams{Stdin: in, Stdout: a.out, Stderr: a.err}
	if req.TTY {
		req.Term = a.termName
		req.Rows, req.Columns = a.console.Size()
		restore, err := a.console.Raw()
		if err != nil {
			return fmt.Errorf("set up the terminal: %w", err)
		}
		defer restore() // also if this goroutine panics
	}
	sizes, signals := make(chan client.Size, 1), make(chan string, 8)
	streams.Sizes, streams.Signals = sizes, signals
	var of console
	if req.TTY {
		of = a.console
	}
	stop := watchSignals(ctx, of, sizes, signals, cancel)
	defer stop()
	code, err := c.Sessions().Run(ctx, job.ID, req, streams)
	_, cut := errors.AsType[*client.CutError](err)
	switch {
	case cut, errors.Is(err, errAborted):
		return err
	case err != nil:
		return a.failed(ctx, err)
	case code != 0:
		return &commandError{code}
	}
	return nil
}

// errAborted ends a session after repeated interrupts or another ending signal.
var errAborted = errors.New("the session was ended by a signal; the job continues")

// abortAfter is the number of interrupts within abortWithin that end a session.
const (
	abortAfter  = 3
	abortWithin = 2 * time.Second
)

// watchSignals sends changes of the terminal's size, and signals of this process, to the command. A
// terminal turns Ctrl-C into a byte, so only other programs send signals to a session with a terminal. SIGTERM and
// SIGHUP end the session. of is nil for a session without a terminal.
func watchSignals(
	ctx context.Context, of console, sizes chan client.Size, signals chan<- string, end context.CancelCauseFunc,
) (stop func()) {
	caught := make(chan os.Signal, 16)
	signal.Notify(caught, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGWINCH)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var interrupts []time.Time
		for {
			select {
			case <-ctx.Done():
				return
			case s := <-caught:
				switch s {
				case syscall.SIGWINCH:
					resized(of, sizes)
				case syscall.SIGINT, syscall.SIGQUIT:
					interrupts = append(interrupts, time.Now())
					if n := len(interrupts); n >= abortAfter && time.Since(interrupts[n-abortAfter]) < abortWithin {
						end(errAborted)
						return
					}
					select {
					case signals <- signalName(s):
					default:
					}
				default:
					end(errAborted)
					return
				}
			}
		}
	}()
	return func() {
		signal.Stop(caught)
		end(nil)
		<-done
	}
}

// resized sends the size of the terminal. Only the latest size matters.
func resized(of console, sizes chan client.Size) {
	if of == nil {
		return
	}
	rows, columns := of.Size()
	select {
	case <-sizes:
	default:
	}
	sizes <- client.Size{Rows: rows, Columns: columns}
}

// signalName returns the name of a signal that a command may get.
func signalName(s os.Signal) string {
	if s == syscall.SIGQUIT {
		return "SIGQUIT"
	}
	return "SIGINT"
}
