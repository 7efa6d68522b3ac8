package main

import (
	"bytes"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
)

// freePort returns a port that is free now.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return portOf(l.Addr().String())
}

func TestPortsAreKeptFromStartToStart(t *testing.T) {
	t.Parallel()
	l := layout{t.TempDir()}
	var said bytes.Buffer
	first := openPorts(l, &said)
	if got := first.choose("PostgreSQL", 0, first.Postgres); got != 0 {
		t.Errorf("the first start asks for port %d", got)
	}
	port := freePort(t)
	if err := first.keep(&first.Postgres, 0, port); err != nil {
		t.Fatal(err)
	}
	if err := first.keep(&first.API, 7070, 7070); err != nil {
		t.Fatal(err)
	}
	second := openPorts(l, &said)
	if got := second.choosePostgres(l, 0); got != port {
		t.Errorf("the second start asks for port %d, want %d", got, port)
	}
	if got := second.choosePostgres(l, 4321); got != 4321 || second.API != 0 {
		t.Errorf("a port that a flag names: asked for %d, kept %d", got, second.API)
	}
	if said.Len() > 0 {
		t.Errorf("it says %q", said.String())
	}
}

func TestAPortThatIsTakenIsNamedAndReplaced(t *testing.T) {
	t.Parallel()
	l := layout{t.TempDir()}
	var said bytes.Buffer
	p := openPorts(l, &said)
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	port := portOf(other.Addr().String())
	if err := p.keep(&p.Temporal, 0, port); err != nil {
		t.Fatal(err)
	}
	if got := openPorts(l, &said).choose("Temporal", 0, p.Temporal); got != 0 {
		t.Errorf("a taken port %d is asked for", got)
	}
	if !strings.Contains(said.String(), "port "+strconv.Itoa(port)) || !strings.Contains(said.String(), "Temporal") {
		t.Errorf("it says %q", said.String())
	}
}

// Tests and backups copy folders: two stacks must not want one port.
func TestACopiedFolderTakesItsOwnPorts(t *testing.T) {
	t.Parallel()
	from, to := layout{t.TempDir()}, layout{t.TempDir()}
	p := openPorts(from, os.Stderr)
	if err := p.keep(&p.Postgres, 0, freePort(t)); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(from.ports())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to.ports(), b, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := openPorts(to, os.Stderr); got.Postgres != 0 {
		t.Errorf("the copy wants port %d", got.Postgres)
	}
}
