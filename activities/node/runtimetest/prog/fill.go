package prog

import (
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"time"
)

// fill writes a file of random bytes, which no file system can compress.
func fill(ctx context.Context, p *Process, args []string) int {
	f, code := filled(ctx, p, args)
	if f != nil {
		_ = f.Close()
	}
	return code
}

// fillUnnamed is fill for a file that is deleted before the first byte is written. The program
// holds the file open until its container is killed.
func fillUnnamed(ctx context.Context, p *Process, args []string) int {
	f, code := filled(ctx, p, append(args, "unnamed"))
	if f == nil {
		return code
	}
	defer f.Close()
	for pause(ctx, time.Hour) {
	}
	return 1
}

// filled writes a file in pieces of 1 MiB, and returns the file if all of it was written.
func filled(ctx context.Context, p *Process, args []string) (*os.File, int) {
	path, err := p.WritePath(args[0])
	if err != nil {
		return nil, p.fail(err)
	}
	mib, err := strconv.Atoi(args[1])
	if err != nil {
		return nil, p.usage("fill: %v", err)
	}
	f, err := os.Create(path)
	if err == nil && len(args) > 2 {
		err = os.Remove(path)
	}
	if err != nil {
		return nil, p.fail(err)
	}
	random := rand.NewChaCha8([32]byte{})
	block := make([]byte, 1<<20)
	for range mib {
		_, _ = random.Read(block) // never fails
		if _, err := f.Write(block); err != nil || ctx.Err() != nil {
			_ = f.Close()
			return nil, p.fail(err)
		}
	}
	p.say("filled %d MiB", mib)
	return f, 0
}
