package prog

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// progressFile is the path at which a job reports its progress.
const progressFile = "/workspace/.berth/progress"

// trainer is a small training loop. It saves step-N/ folders with a DONE file, saves at
// once on SIGUSR1, saves and exits 0 on SIGTERM, and resumes from BERTH_RESTORED_STEP. Its
// state is a hash over all steps, so that a run that lost, repeated or invented a step ends
// with another result.
type trainer struct {
	p     *Process
	dir   string
	steps int
	step  int // last completed
	hash  uint64
}

// train implements train DIR STEPS INTERVAL [SAVE_EVERY]; without SAVE_EVERY only signals
// and the end save.
func train(ctx context.Context, p *Process, args []string) int {
	steps, err := strconv.Atoi(args[1])
	if err != nil {
		return p.usage("train: %v", err)
	}
	interval, err := time.ParseDuration(args[2])
	if err != nil {
		return p.usage("train: %v", err)
	}
	saveEvery := 0
	if len(args) > 3 {
		if saveEvery, err = strconv.Atoi(args[3]); err != nil {
			return p.usage("train: %v", err)
		}
	}
	signals := p.Catch("SIGUSR1", "SIGTERM")
	dir, err := p.WritePath(args[0])
	if err != nil {
		return p.fail(err)
	}
	t := &trainer{p: p, dir: dir, steps: steps}
	if err := t.restore(); err != nil {
		return p.fail(err)
	}
	for t.step < t.steps {
		select {
		case <-ctx.Done():
			return 1
		case s := <-signals:
			if err := t.save(); err != nil {
				return p.fail(err)
			}
			if s == "SIGTERM" {
				return 0
			}
			continue
		case <-time.After(interval):
		}
		t.advance()
		if saveEvery > 0 && t.step%saveEvery == 0 {
			if err := t.save(); err != nil {
				return p.fail(err)
			}
		}
	}
	if err := t.save(); err != nil {
		return p.fail(err)
	}
	p.say("result %016x", t.hash)
	return 0
}

// TrainResult returns the line that a run of so many steps must print at its end, however
// often the run was interrupted.
func TrainResult(steps int) string {
	t := trainer{}
	for range steps {
		t.mix()
	}
	return fmt.Sprintf("result %016x", t.hash)
}

// mix does one step: FNV-1a over the step numbers.
func (t *trainer) mix() {
	t.step++
	t.hash = (t.hash ^ uint64(t.step)) * 1099511628211 // the multiplier of FNV-1a
}

// advance does a step, prints its number and reports the progress.
func (t *trainer) advance() {
	t.mix()
	t.p.say("step %d", t.step)
	// Progress is optional: a job without a /workspace trains all the same.
	if path, err := t.p.WritePath(progressFile); err == nil {
		if os.MkdirAll(filepath.Dir(path), 0o755) == nil {
			_ = os.WriteFile(path, fmt.Appendf(nil, `{"step":%d,"total":%d}`, t.step, t.steps), 0o644)
		}
	}
}

// restore reads the checkpoint that BERTH_RESTORED_STEP names. It fails rather than start
// from step 0, which would hide a lost checkpoint.
func (t *trainer) restore() error {
	from, ok := t.p.Env("BERTH_RESTORED_STEP")
	if !ok || from == "" {
		return nil
	}
	state, err := os.ReadFile(filepath.Join(t.dir, "step-"+from, "state"))
	if err != nil {
		return fmt.Errorf("restore step %s: %w", from, err)
	}
	if _, err := fmt.Sscanf(string(state), "%d %x", &t.step, &t.hash); err != nil {
		return fmt.Errorf("restore step %s: state %q: %w", from, state, err)
	}
	if strconv.Itoa(t.step) != strings.TrimSpace(from) {
		return fmt.Errorf("restore step %s: the state is of step %d", from, t.step)
	}
	t.p.say("restored step %d", t.step)
	return nil
}

// save writes the checkpoint of the present step, or nothing if that one is complete
// already. DONE comes last, so an interrupted save is no checkpoint.
func (t *trainer) save() error {
	dir := filepath.Join(t.dir, fmt.Sprintf("step-%d", t.step))
	done := filepath.Join(dir, "DONE")
	if _, err := os.Stat(done); err == nil {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("save step %d: %w", t.step, err)
	}
	state := fmt.Appendf(nil, "%d %x", t.step, t.hash)
	if err := os.WriteFile(filepath.Join(dir, "state"), state, 0o644); err != nil {
		return fmt.Errorf("save step %d: %w", t.step, err)
	}
	if err := os.WriteFile(done, nil, 0o644); err != nil {
		return fmt.Errorf("save step %d: %w", t.step, err)
	}
	t.p.say("saved step %d", t.step)
	return nil
}
