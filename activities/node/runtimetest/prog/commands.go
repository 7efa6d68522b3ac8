package prog

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// command is one entry of the table; run sees at least args arguments.
type command struct {
	args  int
	usage string
	run   func(ctx context.Context, p *Process, args []string) int
}

// lookup finds a command by name; it is everything the test program can do.
func lookup(name string) (command, bool) {
	c, ok := map[string]command{
		"exit":        {1, "exit CODE", exit},
		"exit-at":     {2, "exit-at NAME CODE VALUE... (0 if the variable has none of the values)", exitAt},
		"echo":        {0, "echo LINE...", echo},
		"stderr":      {0, "stderr LINE...", stderr},
		"print":       {1, "print TEXT (no newline)", printText},
		"sleep":       {1, "sleep DURATION [CODE]", sleep},
		"lines":       {2, "lines COUNT INTERVAL [CODE]", lines},
		"spam":        {2, "spam COUNT BYTES", spam},
		"env":         {1, "env NAME...", env},
		"cwd":         {0, "cwd", cwd},
		"trap-term":   {1, "trap-term CODE [DELAY]", trapTerm},
		"ignore-term": {0, "ignore-term", ignoreTerm},
		"trap":        {1, "trap SIGNAL...", trap},
		"eat-memory":  {1, "eat-memory MIB [SLEEP]", eatMemory},
		"child-oom":   {1, "child-oom MIB [CODE]", childOOM},
		"fork":        {2, "fork COUNT DURATION", fork},
		"write-file":  {2, "write-file PATH TEXT", writeFile},
		"read-file":   {1, "read-file PATH", readFile},
		"await-file":  {1, "await-file PATH (waits until it is there)", awaitFile},
		"digest":      {2, "digest VARIABLE PATH [SLEEP]", digest},
		"train":       {3, "train DIR STEPS INTERVAL [SAVE_EVERY]", train},
		"descend":     {4, "descend DIR STEPS INTERVAL SAVE_EVERY", descend},
		"at":          {3, "at NAME VALUE COMMAND ARG... (nothing if the variable has another value)", at},
		"do":          {1, "do 'COMMAND ARG...'...", do},
	}[name]
	return c, ok
}

func exit(_ context.Context, p *Process, args []string) int {
	code, err := strconv.Atoi(args[0])
	if err != nil {
		return p.usage("exit: %q is no code", args[0])
	}
	return code
}

func exitAt(ctx context.Context, p *Process, args []string) int {
	value, ok := p.Env(args[0])
	if !ok || !slices.Contains(args[2:], value) {
		return 0
	}
	return exit(ctx, p, args[1:])
}

func echo(_ context.Context, p *Process, args []string) int {
	for _, line := range args {
		p.say("%s", line)
	}
	return 0
}

func stderr(_ context.Context, p *Process, args []string) int {
	for _, line := range args {
		if _, err := p.Stderr.Write([]byte(line + "\n")); err != nil {
			return 1
		}
	}
	return 0
}

func printText(_ context.Context, p *Process, args []string) int {
	if _, err := p.Stdout.Write([]byte(args[0])); err != nil {
		return 1
	}
	return 0
}

func sleep(ctx context.Context, p *Process, args []string) int {
	d, err := time.ParseDuration(args[0])
	if err != nil {
		return p.usage("sleep: %v", err)
	}
	pause(ctx, d)
	if len(args) > 1 {
		return exit(ctx, p, args[1:])
	}
	return 0
}

func lines(ctx context.Context, p *Process, args []string) int {
	count, err := strconv.Atoi(args[0])
	if err != nil {
		return p.usage("lines: %v", err)
	}
	interval, err := time.ParseDuration(args[1])
	if err != nil {
		return p.usage("lines: %v", err)
	}
	for i := range count {
		p.say("line %d", i+1)
		if interval > 0 && !pause(ctx, interval) {
			return 1
		}
	}
	if len(args) > 2 {
		return exit(ctx, p, args[2:])
	}
	return 0
}

// spam writes numbered lines of the given length, as fast as it can.
func spam(ctx context.Context, p *Process, args []string) int {
	count, err := strconv.Atoi(args[0])
	if err != nil {
		return p.usage("spam: %v", err)
	}
	size, err := strconv.Atoi(args[1])
	if err != nil {
		return p.usage("spam: %v", err)
	}
	for i := range count {
		if ctx.Err() != nil {
			return 1
		}
		line := strconv.Itoa(i+1) + " "
		p.say("%s%s", line, strings.Repeat("x", max(0, size-len(line))))
	}
	return 0
}

func env(_ context.Context, p *Process, args []string) int {
	for _, name := range args {
		if v, ok := p.Env(name); ok {
			p.say("%s=%s", name, v)
		} else {
			p.say("%s is unset", name)
		}
	}
	return 0
}

func cwd(_ context.Context, p *Process, _ []string) int {
	p.say("%s", p.Dir)
	return 0
}

// trapTerm says ready, and on SIGTERM exits with the given code after a delay,
// as a trainer that saves its work would.
func trapTerm(ctx context.Context, p *Process, args []string) int {
	term := p.Catch("SIGTERM")
	p.say("ready")
	select {
	case <-term:
	case <-ctx.Done():
		return 1
	}
	p.say("term")
	if len(args) > 1 {
		d, err := time.ParseDuration(args[1])
		if err != nil {
			return p.usage("trap-term: %v", err)
		}
		pause(ctx, d)
	}
	return exit(ctx, p, args)
}

func ignoreTerm(ctx context.Context, p *Process, _ []string) int {
	term := p.Catch("SIGTERM")
	p.say("ready")
	for {
		select {
		case <-term:
			p.say("ignored SIGTERM")
		case <-ctx.Done():
			return 1
		}
	}
}

// trap prints every caught signal; SIGTERM ends it with 0.
func trap(ctx context.Context, p *Process, args []string) int {
	signals := p.Catch(append([]string{"SIGTERM"}, args...)...)
	p.say("ready")
	for {
		select {
		case s := <-signals:
			p.say("got %s", s)
			if s == "SIGTERM" {
				return 0
			}
		case <-ctx.Done():
			return 1
		}
	}
}

func eatMemory(ctx context.Context, p *Process, args []string) int {
	mib, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		return p.usage("eat-memory: %v", err)
	}
	p.Hog(ctx, mib)
	if ctx.Err() != nil {
		return 1
	}
	p.say("ate %d MiB", mib)
	if len(args) > 1 {
		return sleep(ctx, p, args[1:])
	}
	return 0
}

// childOOM loses a child to the kernel's memory limit and exits 0 all the same,
// as data loaders that are restarted do, or with the code that it is told.
func childOOM(ctx context.Context, p *Process, args []string) int {
	code, err := p.Spawn(ctx, "eat-memory", args[0])
	if err != nil {
		return p.fail(err)
	}
	p.say("child exited %d", code)
	if len(args) > 1 {
		return exit(ctx, p, args[1:])
	}
	return 0
}

// fork runs children at the same time and says how many could do their work.
func fork(ctx context.Context, p *Process, args []string) int {
	count, err := strconv.Atoi(args[0])
	if err != nil {
		return p.usage("fork: %v", err)
	}
	var good atomic.Int64
	var all sync.WaitGroup
	for range count {
		all.Go(func() {
			if code, err := p.Spawn(ctx, "sleep", args[1]); err == nil && code == 0 {
				good.Add(1)
			}
		})
	}
	all.Wait()
	p.say("%d of %d children ran", good.Load(), count)
	return 0
}

func writeFile(_ context.Context, p *Process, args []string) int {
	path, err := p.WritePath(args[0])
	if err != nil {
		return p.fail(err)
	}
	if err := os.WriteFile(path, []byte(args[1]), 0o644); err != nil {
		return p.fail(err)
	}
	return 0
}

// awaitFile waits until the file exists, so that a test decides when the program
// goes on.
func awaitFile(ctx context.Context, p *Process, args []string) int {
	path, err := p.ReadPath(args[0])
	if err != nil {
		return p.fail(err)
	}
	for {
		if _, err := os.Stat(path); err == nil {
			return 0
		} else if !errors.Is(err, os.ErrNotExist) {
			return p.fail(err)
		}
		if !pause(ctx, 5*time.Millisecond) {
			return 1
		}
	}
}

// digest prints what a variable and a file hold, without telling it.
func digest(ctx context.Context, p *Process, args []string) int {
	sum := func(text string) string {
		h := sha256.Sum256([]byte(text))
		return hex.EncodeToString(h[:])
	}
	if v, ok := p.Env(args[0]); ok {
		p.say("env %s %s", args[0], sum(v))
	} else {
		p.say("env %s is unset", args[0])
	}
	path, err := p.ReadPath(args[1])
	var text []byte
	if err == nil {
		text, err = os.ReadFile(path)
	}
	if err == nil {
		p.say("file %s", sum(string(text)))
	} else {
		p.say("no file")
	}
	if len(args) > 2 {
		return sleep(ctx, p, args[2:])
	}
	return 0
}

func readFile(_ context.Context, p *Process, args []string) int {
	path, err := p.ReadPath(args[0])
	if err != nil {
		return p.fail(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return p.fail(err)
	}
	p.say("%s", strings.TrimSuffix(string(text), "\n"))
	return 0
}
