package prog

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
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
	args  int // least number of arguments
	usage string
	run   func(ctx context.Context, p *Process, args []string) int
}

// lookup finds a command by name. Its table is the whole test program.
func lookup(name string) (command, bool) {
	c, ok := map[string]command{
		"exit":         {1, "exit CODE", exit},
		"exit-at":      {2, "exit-at NAME CODE VALUE... (0 if the variable has none of the values)", exitAt},
		"echo":         {0, "echo LINE...", echo},
		"stderr":       {0, "stderr LINE...", stderr},
		"print":        {1, "print TEXT (no newline)", printText},
		"sleep":        {1, "sleep DURATION [CODE]", sleep},
		"lines":        {2, "lines COUNT INTERVAL [CODE]", lines},
		"spam":         {2, "spam COUNT BYTES", spam},
		"redraw":       {2, "redraw COUNT INTERVAL (a progress bar on stderr)", redraw},
		"cat":          {0, "cat (its input)", cat},
		"serve":        {1, "serve PORT (sends each connection's bytes back, in upper case, until killed)", serve},
		"dial":         {1, "dial NETWORK!ADDRESS... (prints what can be reached)", dial},
		"list":         {1, "list FOLDER...", list},
		"mode":         {1, "mode PATH... (1 for a setuid or setgid file, else 0)", mode},
		"link":         {2, "link TARGET PATH (makes a symbolic link)", link},
		"env":          {1, "env NAME...", env},
		"id":           {0, "id (prints UID:GID, as they take effect)", id},
		"cwd":          {0, "cwd", cwd},
		"trap-term":    {1, "trap-term CODE [DELAY]", trapTerm},
		"ignore-term":  {0, "ignore-term", ignoreTerm},
		"trap":         {1, "trap SIGNAL...", trap},
		"stamp":        {2, "stamp PATH SIGNAL... (appends the time of each to the file)", stamp},
		"eat-memory":   {1, "eat-memory MIB [SLEEP]", eatMemory},
		"child-oom":    {1, "child-oom MIB [CODE]", childOOM},
		"spin":         {0, "spin (uses a core until a signal ends it)", spin},
		"halt":         {0, "halt (stops itself by SIGSTOP)", halt},
		"fork":         {2, "fork COUNT DURATION", fork},
		"write-file":   {2, "write-file PATH TEXT", writeFile},
		"make-folder":  {1, "make-folder PATH", makeFolder},
		"fill":         {2, "fill PATH MIB", fill},
		"fill-unnamed": {2, "fill-unnamed PATH MIB (deletes the file, and holds it open until killed)", fillUnnamed},
		"read-file":    {1, "read-file PATH", readFile},
		"attack":       {2, "attack ARGUMENT NAME... (prints the kernel's refusals)", attack},
		"await-file":   {1, "await-file PATH (waits until it is there)", awaitFile},
		"digest":       {2, "digest VARIABLE PATH [SLEEP]", digest},
		"train":        {3, "train DIR STEPS INTERVAL [SAVE_EVERY]", train},
		"descend":      {4, "descend DIR STEPS INTERVAL SAVE_EVERY", descend},
		"at":           {3, "at NAME VALUE COMMAND ARG... (nothing if the variable has another value)", at},
		"do":           {1, "do 'COMMAND ARG...'...", do},
	}[name]
	return c, ok
}

// exit ends with the given code.
func exit(_ context.Context, p *Process, args []string) int {
	code, err := strconv.Atoi(args[0])
	if err != nil {
		return p.usage("exit: %q is no code", args[0])
	}
	return code
}

// exitAt exits with the code if the variable has one of the values, such as an attempt
// number.
func exitAt(ctx context.Context, p *Process, args []string) int {
	value, ok := p.Env(args[0])
	if !ok || !slices.Contains(args[2:], value) {
		return 0
	}
	return exit(ctx, p, args[1:])
}

// echo prints each argument on a line of its own.
func echo(_ context.Context, p *Process, args []string) int {
	for _, line := range args {
		p.say("%s", line)
	}
	return 0
}

// stderr is echo to the other stream.
func stderr(_ context.Context, p *Process, args []string) int {
	for _, line := range args {
		if _, err := p.Stderr.Write([]byte(line + "\n")); err != nil {
			return 1
		}
	}
	return 0
}

// cat prints its input.
func cat(_ context.Context, p *Process, _ []string) int {
	if _, err := io.Copy(p.Stdout, p.Stdin); err != nil {
		return p.fail(err)
	}
	return 0
}

// printText leaves its line unfinished, as a program that is killed may.
func printText(_ context.Context, p *Process, args []string) int {
	if _, err := p.Stdout.Write([]byte(args[0])); err != nil {
		return 1
	}
	return 0
}

// sleep ends early only when its container is killed.
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

// lines prints numbered lines at an interval.
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
		// Without an interval a large count tests the engine's log at full speed.
		if interval > 0 && !pause(ctx, interval) {
			return 1
		}
	}
	if len(args) > 2 {
		return exit(ctx, p, args[2:])
	}
	return 0
}

// redraw draws a progress bar on stderr: one line, written over at an interval and ended after it.
func redraw(ctx context.Context, p *Process, args []string) int {
	count, err := strconv.Atoi(args[0])
	if err != nil {
		return p.usage("redraw: %v", err)
	}
	interval, err := time.ParseDuration(args[1])
	if err != nil {
		return p.usage("redraw: %v", err)
	}
	for i := range count {
		if _, err := p.Stderr.Write([]byte("\r" + strconv.Itoa(i+1) + "/" + strconv.Itoa(count))); err != nil {
			return 1
		}
		if !pause(ctx, interval) {
			return 1
		}
	}
	if _, err := p.Stderr.Write([]byte("\n")); err != nil {
		return 1
	}
	return 0
}

// spam prints numbered lines of the given length without a pause.
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

// env prints variables, and says which are unset.
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

// cwd prints the working directory.
func cwd(_ context.Context, p *Process, _ []string) int {
	p.say("%s", p.Dir)
	return 0
}

// trapTerm prints ready, and on SIGTERM exits with the given code after a delay, as a
// trainer that saves its work would. A test must wait for ready: a signal before that ends
// the process.
func trapTerm(ctx context.Context, p *Process, args []string) int {
	// The signal is caught before the line is printed, so that a test may send it at once.
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
		// A delay stands for the time to save a checkpoint.
		pause(ctx, d)
	}
	return exit(ctx, p, args)
}

// ignoreTerm ignores SIGTERM: only SIGKILL ends the command.
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

// trap prints every caught signal; SIGTERM makes the command exit 0.
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

// stamp appends a line with the name and the time of each caught signal to a file. The file exists once the command
// listens. SIGTERM makes the command exit 0.
func stamp(ctx context.Context, p *Process, args []string) int {
	signals := p.Catch(append([]string{"SIGTERM"}, args[1:]...)...)
	path, err := p.WritePath(args[0])
	if err != nil {
		return p.fail(err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return p.fail(err)
	}
	defer func() { _ = file.Close() }() // each line was written by a call of its own
	for {
		select {
		case s := <-signals:
			if _, err := file.WriteString(s + " " + time.Now().UTC().Format(time.RFC3339Nano) + "\n"); err != nil {
				return p.fail(err)
			}
			if s == "SIGTERM" {
				return 0
			}
		case <-ctx.Done():
			return 1
		}
	}
}

// eatMemory allocates memory, and holds the memory for a duration if one is given.
func eatMemory(ctx context.Context, p *Process, args []string) int {
	mib, err := strconv.ParseInt(args[0], 10, 64)
	if err != nil {
		return p.usage("eat-memory: %v", err)
	}
	// In the fake a killed process reaches the next line, with ctx ended.
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

// spin hangs as a rank does that polls for its peers: it uses one core and prints no more.
func spin(ctx context.Context, p *Process, _ []string) int {
	p.say("spinning")
	p.Spin(ctx)
	return 1
}

// halt hangs as a rank does that a debugger or an operator has stopped.
func halt(ctx context.Context, p *Process, _ []string) int {
	p.say("halting")
	p.Halt(ctx)
	return 1
}

// childOOM loses a child to the kernel's memory limit and exits 0 nevertheless, as programs
// do that restart their data loaders, or with the given code.
func childOOM(ctx context.Context, p *Process, args []string) int {
	// The child needs more than the container's limit, the parent almost nothing.
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

// fork runs children concurrently and prints how many succeeded: a limit on processes stops
// some.
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

// writeFile replaces the content of a file in a mount.
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

// makeFolder creates a folder, which must not exist.
func makeFolder(_ context.Context, p *Process, args []string) int {
	path, err := p.WritePath(args[0])
	if err == nil {
		err = os.Mkdir(path, 0o755)
	}
	if err != nil {
		return p.fail(err)
	}
	return 0
}

// awaitFile polls every 5 ms until the file exists, so that a test decides when the program
// continues.
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

// digest prints the hashes of a variable and a file, so that a secret does not reach the
// log.
func digest(ctx context.Context, p *Process, args []string) int {
	sum := func(text string) string {
		// A test compares the hash with that of the secret.
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

// readFile prints a file without its last newline.
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
