package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
)

// ports are the free ports that earlier starts on a folder took, kept in ports.json:
// addresses that people have written down, and clients that wait for a restart, stay
// right. A port that a flag names is not kept.
type ports struct {
	Dir      string `json:"dir"` // that they were taken for: a copied folder takes its own
	Postgres int    `json:"postgres,omitempty"`
	Temporal int    `json:"temporal,omitempty"`
	UI       int    `json:"temporal_ui,omitempty"`
	API      int    `json:"api,omitempty"`

	file string
	says io.Writer // where a port that is taken is reported
}

// openPorts reads the ports of a folder; none if there are none yet, or if the file is
// of another folder or damaged.
func openPorts(l layout, says io.Writer) *ports {
	p := &ports{}
	if b, err := os.ReadFile(l.ports()); err != nil || json.Unmarshal(b, p) != nil || p.Dir != l.dir {
		*p = ports{Dir: l.dir}
	}
	p.file, p.says = l.ports(), says
	return p
}

// choose is the port to ask for: what the flag names; where it says 0, the one of the
// last start; or 0, for a free one, if that is taken by another process.
func (p *ports) choose(what string, flag, last int) int {
	switch {
	case flag != 0 || last == 0:
		return flag
	case isFree(last):
		return last
	}
	fmt.Fprintf(p.says, "port %d of %s's last start is taken by another process: it listens on another one now\n",
		last, what)
	return 0
}

func isFree(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	_ = l.Close()
	return true
}

// keep stores the port that was taken, unless a flag names one.
func (p *ports) keep(last *int, flag, taken int) error {
	if flag != 0 || taken == *last {
		return nil
	}
	*last = taken
	b, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.file+".new", append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("keep ports: %w", err)
	}
	return os.Rename(p.file+".new", p.file)
}

// choosePostgres is choose for PostgreSQL, of which an earlier server on the same data
// may not have ended yet: its start waits for that.
func (p *ports) choosePostgres(l layout, flag int) int {
	if _, err := os.Stat(filepath.Join(l.postgres(), "data", "postmaster.pid")); err == nil && flag == 0 &&
		p.Postgres != 0 {
		return p.Postgres
	}
	return p.choose("PostgreSQL", flag, p.Postgres)
}

// portOf is the port of an address such as 127.0.0.1:7070; 0 if it has none.
func portOf(address string) int {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return 0
	}
	port, _ := strconv.Atoi(text)
	return port
}
