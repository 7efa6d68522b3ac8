package prog

import (
	"context"
	"strings"
)

// at runs a command if a variable has the given value, and exits 0 otherwise: at
// BERTH_ATTEMPT 1 exit 3.
func at(ctx context.Context, p *Process, args []string) int {
	if v, _ := p.Env(args[0]); v != args[1] {
		return 0
	}
	one := *p
	one.Args = args[2:]
	return Run(ctx, &one)
}

// do runs commands one after the other, each given as a string that is split at spaces: do
// "echo hello" "sleep 1s" "exit 3". It stops at the first code that is not 0 and returns
// that code.
func do(ctx context.Context, p *Process, args []string) int {
	for _, line := range args {
		one := *p
		one.Args = strings.Fields(line)
		if code := Run(ctx, &one); code != 0 || ctx.Err() != nil {
			return code
		}
	}
	return 0
}
