package alarms_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth/e2e/rig"
)

const runbooksFile = "../../docs/operate/alerts.md"

// look is a step of a runbook's Diagnosis, which shows the cause while the alert fires.
type look struct {
	step  string // text of the runbook that contains the step
	shows func(context.Context) error
}

// lookFor bounds the time until a step shows the cause: a log line may follow the alert.
const lookFor = time.Minute

// diagnose takes the steps of the alert's Diagnosis while it fires.
func (p *plant) diagnose(ctx context.Context, a alarm) error {
	for _, l := range a.looks {
		if err := rig.AwaitEvery(ctx, time.Second, lookFor, l.shows); err != nil {
			return fmt.Errorf("the Diagnosis of the runbook, %q: %w", l.step, err)
		}
	}
	return nil
}

// metric is a step that reads a metric, whose value fulfills a condition.
func (p *plant) metric(name, condition string) look {
	return look{step: name, shows: func(ctx context.Context) error {
		holds, err := p.prometheus.query(ctx, name+condition)
		if err == nil && !holds {
			err = fmt.Errorf("%s%s has no value", name, condition)
		}
		return err
	}}
}

// statement is the first statement in SQL of the alert's runbook. A row of its result matches want.
func (p *plant) statement(alert, want string) look {
	const fence = "```sql\n"
	return look{step: fence, shows: func(ctx context.Context) error {
		text, err := runbookOf(alert)
		if err != nil {
			return err
		}
		_, text, _ = strings.Cut(text, fence)
		text, _, _ = strings.Cut(text, "```")
		rows, err := p.DB.Query(ctx, text)
		if err != nil {
			return err
		}
		found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
			values, err := row.Values()
			return fmt.Sprint(values...), err
		})
		if err != nil {
			return err
		}
		return matches(strings.Join(found, "\n"), want)
	}}
}

// command is a command of berth as the runbook has it. The runbooks call the machine m1. Its output matches want.
func (p *plant) command(line, machine, want string) look {
	return look{step: line, shows: func(ctx context.Context) error {
		words := strings.Fields(strings.ReplaceAll(line, " m1", " "+machine))
		cmd := exec.CommandContext(ctx, p.Programs.Path(words[0]), words[1:]...)
		cmd.Env = append(os.Environ(), "BERTH_URL="+p.URL, "BERTH_TOKEN="+p.Token, "HOME="+workshop.Dir)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return matches(string(out), want)
	}}
}

// logged is a step that finds a line in a log, whose path belongs to the folder of the stack.
func (p *plant) logged(file func() string, text string) look {
	return look{step: text, shows: func(context.Context) error {
		log, err := os.ReadFile(filepath.Join(p.Dir, file()))
		if err == nil && !strings.Contains(string(log), text) {
			err = fmt.Errorf("the log %s has no such line", file())
		}
		return err
	}}
}

// logOf returns the name of a replica's log.
func logOf(r **rig.Replica) func() string { return func() string { return (*r).Name + ".log" } }

func matches(output, want string) error {
	if !regexp.MustCompile(want).MatchString(output) {
		return fmt.Errorf("no line matches %q: %s", want, output)
	}
	return nil
}

// runbookOf returns the runbook of an alert.
func runbookOf(alert string) (string, error) {
	page, err := os.ReadFile(runbooksFile)
	if err != nil {
		return "", err
	}
	_, text, found := strings.Cut(string(page), "\n### "+alert+"\n")
	if !found {
		return "", fmt.Errorf("%s has no runbook in %s", alert, runbooksFile)
	}
	text, _, _ = strings.Cut(text, "\n### ")
	text, _, _ = strings.Cut(text, "\n## ")
	return text, nil
}

// A step that the benchmark takes is one of the runbook's Diagnosis, so it is a step that a person takes too.
func TestStepsOfTheDiagnosisAreInTheRunbook(t *testing.T) {
	t.Parallel()
	steps := 0
	for _, w := range listed(t).waves() {
		for _, l := range w {
			for _, a := range l {
				for _, x := range a.all() {
					text, err := runbookOf(x.alert)
					if err != nil {
						t.Fatal(err)
					}
					_, text, _ = strings.Cut(text, "**Diagnosis.**")
					text, _, _ = strings.Cut(text, "**Mitigation.**")
					for _, step := range x.looks {
						steps++
						if !strings.Contains(text, step.step) {
							t.Errorf("the Diagnosis of %s does not contain %q", x.alert, step.step)
						}
					}
				}
			}
		}
	}
	if steps < 10 {
		t.Errorf("found %d steps; want at least 10: the search is broken", steps)
	}
}

// listed returns a plant whose faults can be listed, and not injected.
func listed(t *testing.T) *plant {
	return &plant{t: t, Stack: &rig.Stack{}, receiver: &httptest.Server{}, dispatch: &rig.Replica{},
		workers: &rig.Replica{}}
}
