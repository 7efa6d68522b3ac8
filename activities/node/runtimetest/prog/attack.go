package prog

import (
	"context"
	"errors"
	"syscall"
)

// id prints the effective user and group of the process.
func id(_ context.Context, p *Process, _ []string) int {
	p.say("%s", p.User())
	return 0
}

// attack prints a line for each attack: the name of the attack and the errno that the kernel
// returned, 0 if the attack succeeded.
func attack(_ context.Context, p *Process, args []string) int {
	if p.Attack == nil {
		return p.usage("attack: no container protects this machine")
	}
	for _, name := range args[1:] {
		err := p.Attack(name, args[0])
		number, known := errors.AsType[syscall.Errno](err)
		if err != nil && !known {
			return p.fail(err)
		}
		p.say("%s %d", name, number)
	}
	return 0
}
