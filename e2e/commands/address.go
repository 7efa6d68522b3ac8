package commands

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// Port returns a port that nobody listens on, for what is killed and started
// again, or starts later: it is below those that the kernel gives to connections
// and listeners that ask for any.
func Port() (int, error) {
	for range 1000 {
		port := 20_000 + rand.IntN(10_000)
		if l, err := net.Listen("tcp", fmt.Sprintf(":%d", port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, errors.New("no port from 20000 to 29999 is free")
}

// Address returns 127.0.0.1 with such a port.
func Address() (string, error) {
	port, err := Port()
	return fmt.Sprintf("127.0.0.1:%d", port), err
}
