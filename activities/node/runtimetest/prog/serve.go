package prog

import (
	"bytes"
	"context"
	"net"
	"sync"
)

// serve answers connections until its container is killed.
func serve(ctx context.Context, p *Process, args []string) int {
	l, err := net.Listen("tcp", ":"+args[0])
	if err != nil {
		return p.fail(err)
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	p.say("ready")
	var all sync.WaitGroup
	defer all.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			return 1
		}
		all.Go(func() {
			defer conn.Close()
			defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
			for block := make([]byte, 32<<10); ; {
				n, err := conn.Read(block)
				if _, failed := conn.Write(bytes.ToUpper(block[:n])); err != nil || failed != nil {
					return
				}
			}
		})
	}
}
