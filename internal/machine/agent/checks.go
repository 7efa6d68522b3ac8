package agent

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"berth/failure"
	"berth/internal/lib/subprocess"
)

// Checks are the operator's own commands around each member, as Slurm's prolog and epilog. A command
// is the path of a program, without arguments. The program runs as the agent's user, in its own
// process group, with the variables BERTH_CHECK (before or after), BERTH_JOB_ID, BERTH_TENANT,
// BERTH_ATTEMPT, BERTH_MEMBER, BERTH_MACHINE and BERTH_GPUS, and afterwards BERTH_EXIT_CODE. The check
// fails if the exit code is not 0 or the run takes longer than Timeout.
type Checks struct {
	Before, After string        // "": none
	Timeout       time.Duration // 0: DefaultCheckTimeout
}

// DefaultCheckTimeout is the time that a check may take by default.
const DefaultCheckTimeout = time.Minute

// checkOutput is the number of bytes that are kept of a check's output, from its end.
const checkOutput = 4 << 10

// checker runs the checks of one member.
type checker struct {
	*core
	checks Checks
	ran    bool // the check before the start, in this process
}

// checkFailure describes a check that failed.
type checkFailure struct {
	why  string // the command, the member and the error; "": the check passed
	line string // the last line of the output, cut to checkLine; "": none
}

// checkLine is the number of bytes that a job's message quotes of the output of a check.
const checkLine = 200

// text returns the failure with the last line of the output, for the job's tenant.
func (f checkFailure) text() string {
	if f.line == "" {
		return f.why
	}
	return f.why + ": " + f.line
}

// before runs the check before the start. An error says that ctx has ended.
func (c *checker) before(ctx context.Context) (checkFailure, error) {
	c.ran = true
	return c.run(ctx, c.checks.Before, "BERTH_CHECK=before")
}

// after runs the check after the end of a member that has run, or for which the check before the
// start has passed.
func (c *checker) after(ctx context.Context, x failure.Exit) (checkFailure, error) {
	if !c.ran && !x.Started() || x.Cause == failure.CauseCheck {
		return checkFailure{}, nil
	}
	code := ""
	if x.Started() {
		code = strconv.Itoa(x.Code)
	}
	return c.run(ctx, c.checks.After, "BERTH_CHECK=after", "BERTH_EXIT_CODE="+code)
}

// run runs a command. The output becomes a warning event of the job if the check fails.
func (c *checker) run(ctx context.Context, command string, env ...string) (checkFailure, error) {
	if command == "" {
		return checkFailure{}, nil
	}
	timeout := c.checks.Timeout
	if timeout <= 0 {
		timeout = DefaultCheckTimeout
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	env = append(append(subprocess.BaseEnv(),
		"BERTH_JOB_ID="+string(c.job), "BERTH_TENANT="+string(c.claim.Tenant),
		"BERTH_ATTEMPT="+strconv.Itoa(c.attempt), "BERTH_MEMBER="+strconv.Itoa(c.number),
		"BERTH_MACHINE="+string(c.machine), "BERTH_GPUS="+strings.Join(c.claim.GPUs, ","),
	), env...)
	out := &subprocess.Tail{Limit: checkOutput}
	begun := time.Now()
	err := subprocess.Run(limited, subprocess.Program{Path: command, Env: env, Stdout: out, Stderr: out})
	text := out.Text()
	switch {
	case ctx.Err() != nil:
		return checkFailure{}, context.Cause(ctx)
	case err == nil:
		c.log.Info("check passed", "command", command, "took", time.Since(begun), "output", text)
		return checkFailure{}, nil
	case limited.Err() != nil:
		err = fmt.Errorf("stopped after %s", timeout)
	}
	why := fmt.Sprintf("check %s of member %d of job %s failed: %v", command, c.number, c.job, err)
	says := why
	if text != "" {
		says += "; its output ends with: " + text
	}
	c.reports.warn(says)
	line := text[strings.LastIndexByte(text, '\n')+1:]
	return checkFailure{why, strings.ToValidUTF8(line[:min(len(line), checkLine)], "")}, nil
}
