// Command supply judges the known vulnerabilities of Berth's programs. It runs govulncheck on them
// with a local copy of the Go vulnerability database, compares the findings with the exceptions in
// vuln-exceptions.yaml, and prints one line for each finding. scripts/vuln.sh calls it. The tests of
// this package also hold the lists of modules that scripts/sbom.sh writes.
//
// The one rule to know: only findings in code that a program reaches count. The linker decides
// reachability for built programs, and the call graph with -source.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, time.Now()))
}

// run executes the command line and returns the exit status: 0 for a clean result, 1 for a red one,
// 2 for a check that could not run.
func run(ctx context.Context, args []string, out io.Writer, now time.Time) int {
	c := check{now: now}
	flags := flag.NewFlagSet("supply", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&c.database, "db", "", "folder of the Go vulnerability database")
	flags.StringVar(&c.exceptions, "exceptions", "vuln-exceptions.yaml", "file of accepted findings")
	flags.StringVar(&c.scanner, "govulncheck", "govulncheck", "path of govulncheck")
	flags.BoolVar(&c.strict, "strict", false, "fail without a database or with one that is too old")
	flags.BoolVar(&c.source, "source", false, "arguments are packages; print calls that reach findings (minutes)")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	c.targets = flags.Args()
	r, err := c.run(ctx)
	if err != nil {
		_, _ = fmt.Fprintf(out, "vulnerabilities: %v\n", err)
		return 2
	}
	r.print(out)
	if r.red() {
		return 1
	}
	return 0
}
