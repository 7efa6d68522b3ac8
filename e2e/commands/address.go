package commands

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// held keeps the claims of this process open until the process ends.
var held struct {
	mu     sync.Mutex
	claims []net.Listener
}

// Port returns a free port for a server that starts later, or is killed and started again. The
// port lies below the ports that the kernel gives to connections and to listeners on any port.
// Until this process ends no other test process gets the same port, even before a server listens
// on it.
func Port() (int, error) {
	for range 1000 {
		port := 20_000 + rand.IntN(10_000)
		claim, err := net.Listen("unix", fmt.Sprintf("@berth-test-port-%d", port)) // abstract: no file stays behind
		if err != nil {
			continue
		}
		if l, err := net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil {
			held.mu.Lock()
			defer held.mu.Unlock()
			held.claims = append(held.claims, claim)
			return port, l.Close()
		}
		_ = claim.Close()
	}
	return 0, errors.New("no port from 20000 to 29999 is free")
}

// Address returns 127.0.0.1 with such a port.
func Address() (string, error) {
	port, err := Port()
	return fmt.Sprintf("127.0.0.1:%d", port), err
}
