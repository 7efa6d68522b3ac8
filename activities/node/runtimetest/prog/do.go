package prog

import (
	"context"
	"strings"
)

// do runs the commands it is given one after the other, each a string that is
// split at spaces: do "echo hello" "sleep 1s" "exit 3". It stops at the first
// code that is not 0 and returns it.
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
