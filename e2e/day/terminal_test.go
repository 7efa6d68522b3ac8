package day

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"berth/e2e/rig"
)

// The size of the terminal. Pages of the guide show 80 columns; a window on a laptop has 45
// lines.
const (
	columns = 80
	lines   = 45
)

// prompt ends every screen on which the shell waits for a command.
const prompt = "$"

// patience bounds the wait for a text, also on a busy machine.
const patience = 3 * time.Minute

// terminal is a shell in tmux.
type terminal struct {
	socket string // of a tmux server of its own
	typed  string // the last command
}

// openTerminal starts a shell in a folder. The environment of this process does not reach it.
func openTerminal(ctx context.Context, folder string, env ...string) (*terminal, error) {
	t := &terminal{socket: filepath.Join(folder, "..", "tmux")}
	config := filepath.Join(folder, "..", "tmux.conf")
	// Without a status line the screen has all lines.
	if err := os.WriteFile(config, []byte("set -g status off\nset -g escape-time 0\n"), 0o600); err != nil {
		return nil, err
	}
	shell := append([]string{"env", "-i", "HOME=" + folder, "TERM=screen", "LC_ALL=C.UTF-8", "TZ=UTC",
		"PS1=" + prompt + " ", "HISTFILE="}, env...)
	shell = append(shell, "bash", "--noprofile", "--norc")
	cmd := exec.CommandContext(ctx, "tmux", append([]string{"-S", t.socket, "-f", config, "new-session", "-d", "-s", "day",
		"-x", strconv.Itoa(columns), "-y", strconv.Itoa(lines), "-c", folder}, shell...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("start tmux: %w: %s", err, out)
	}
	return t, t.await(ctx, "the prompt", func(screen string) bool { return screen == prompt })
}

// close ends the shell and its tmux server.
func (t *terminal) close() error {
	_, err := t.tmux(context.Background(), "kill-server")
	return err
}

func (t *terminal) tmux(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "tmux", append([]string{"-S", t.socket}, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("tmux %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// screen returns the visible text. Lines that the terminal has wrapped are joined.
func (t *terminal) screen(ctx context.Context) (string, error) {
	out, err := t.tmux(ctx, "capture-pane", "-p", "-J", "-t", "day")
	if err != nil {
		return "", err
	}
	var text []string
	for line := range strings.Lines(out) {
		text = append(text, strings.TrimRight(line, " \n"))
	}
	return strings.TrimRight(strings.Join(text, "\n"), "\n"), nil
}

// await waits until the screen fulfils a condition.
func (t *terminal) await(ctx context.Context, condition string, fulfilled func(screen string) bool) error {
	last := ""
	err := rig.Await(ctx, patience, func(ctx context.Context) error {
		text, err := t.screen(ctx)
		if err != nil {
			return err
		}
		if last = text; !fulfilled(text) {
			return errors.New("the screen lacks " + condition)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, last)
	}
	return nil
}

// begin types a command on an empty screen and starts it.
func (t *terminal) begin(ctx context.Context, command string) error {
	t.typed = command
	if _, err := t.tmux(ctx, "send-keys", "-t", "day", "C-l"); err != nil {
		return err
	}
	if err := t.await(ctx, "an empty line", func(s string) bool { return s == prompt }); err != nil {
		return err
	}
	if _, err := t.tmux(ctx, "send-keys", "-t", "day", "-l", command); err != nil {
		return err
	}
	// The typed line must be on the screen first: until then the prompt of the command before is the last line,
	// and would count as the end of this one.
	if err := t.await(ctx, command, func(s string) bool { return s == prompt+" "+command }); err != nil {
		return err
	}
	_, err := t.tmux(ctx, "send-keys", "-t", "day", "Enter")
	return err
}

// interrupt presses Ctrl-C.
func (t *terminal) interrupt(ctx context.Context) error {
	_, err := t.tmux(ctx, "send-keys", "-t", "day", "C-c")
	return err
}

// end waits for the end of the command and returns its output, without the typed line if that is still
// on the screen.
func (t *terminal) end(ctx context.Context) (string, error) {
	output := ""
	err := t.await(ctx, "the end of "+t.typed, func(s string) bool {
		text, ended := strings.CutSuffix(s, prompt)
		output = strings.TrimSuffix(text, "\n")
		// A command that an interrupt ends may leave the echo of Ctrl-C before the prompt.
		return ended && (output != text || strings.HasSuffix(text, "^C"))
	})
	rest, whole := strings.CutPrefix(output, prompt+" "+t.typed)
	if whole {
		output = strings.TrimPrefix(rest, "\n")
	}
	return output, err
}
