package prog

import (
	"context"
	"net"
	"os"
	"strings"
	"sync"
	"time"
)

// dialLimit bounds one attempt to connect. A packet that a firewall drops is never answered.
const dialLimit = 3 * time.Second

// dial tries to connect to all addresses at once, such as tcp!10.0.0.1:80 and unix!/run/x.sock, and prints
// a line for each: "ADDRESS reached" or "ADDRESS refused: REASON".
func dial(ctx context.Context, p *Process, args []string) int {
	results := make([]string, len(args))
	var all sync.WaitGroup
	for i, arg := range args {
		network, address, _ := strings.Cut(arg, "!")
		all.Go(func() {
			d := net.Dialer{Timeout: dialLimit}
			conn, err := d.DialContext(ctx, network, address)
			if err != nil {
				results[i] = "refused: " + strings.ReplaceAll(err.Error(), "\n", " ")
				return
			}
			_ = conn.Close()
			results[i] = "reached"
		})
	}
	all.Wait()
	for i, r := range results {
		p.say("%s %s", args[i], r)
	}
	return 0
}

// list prints the names in folders, one a line.
func list(_ context.Context, p *Process, args []string) int {
	for _, folder := range args {
		path, err := p.ReadPath(folder)
		if err != nil {
			return p.fail(err)
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			return p.fail(err)
		}
		for _, e := range entries {
			p.say("%s/%s", folder, e.Name())
		}
	}
	return 0
}

// mode prints for each path whether the file runs with the rights of its owner or group: 1, else 0.
func mode(_ context.Context, p *Process, args []string) int {
	for _, name := range args {
		path, err := p.ReadPath(name)
		if err != nil {
			return p.fail(err)
		}
		info, err := os.Lstat(path)
		if err != nil {
			return p.fail(err)
		}
		set := 0
		if info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 {
			set = 1
		}
		p.say("%s %d", name, set)
	}
	return 0
}

// link makes a symbolic link at a path of the container. Its target is not translated.
func link(_ context.Context, p *Process, args []string) int {
	path, err := p.WritePath(args[1])
	if err == nil {
		err = os.Symlink(args[0], path)
	}
	if err != nil {
		return p.fail(err)
	}
	return 0
}
