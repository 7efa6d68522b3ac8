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

// ports are the free ports chosen by earlier starts on a folder, kept in ports.json:
// addresses that people have written down, and clients that wait for a restart, stay right.
// Ports named by a flag are not kept.
type ports struct {
	Dir      string `json:"dir"` // of this file: a copy of the folder chooses its own
	Postgres int    `json:"postgres,omitempty"`
	Temporal int    `json:"temporal,omitempty"`
	UI       int    `json:"temporal_ui,omitempty"`
	API      int    `json:"api,omitempty"`

	file string
	says io.Writer // for a warning about a taken port
}

// openPorts reads the ports of a folder. It returns no ports on the first start, and if the
// file is damaged or was copied from another folder.
func openPorts(l layout, says io.Writer) *ports {
	p := &ports{}
	if b, err := os.ReadFile(l.ports()); err != nil || json.Unmarshal(b, p) != nil || p.Dir != l.dir {
		*p = ports{Dir: l.dir}
	}
	p.file, p.says = l.ports(), says
	return p
}

// choose returns the port to listen on: the flag's, else the one of the last start, else 0
// for a free one. A port of the last start that another process has taken is reported and
// given up.
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

// isFree reports whether the port can be listened on now. Another process may still take it
// before the caller does; the caller's listen then fails.
func isFree(port int) bool {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	_ = l.Close()
	return true
}

// keep stores the port that was chosen in *last and in the file, unless a flag named the
// port.
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

// choosePostgres is choose for PostgreSQL. An earlier server on the same data may still be
// stopping and hold the port; postgres.Start waits for its end, so the port is kept.
func (p *ports) choosePostgres(l layout, flag int) int {
	if _, err := os.Stat(filepath.Join(l.postgres(), "data", "postmaster.pid")); err == nil && flag == 0 &&
		p.Postgres != 0 {
		return p.Postgres
	}
	return p.choose("PostgreSQL", flag, p.Postgres)
}

// portOf returns the port of an address such as 127.0.0.1:7070, 0 if the address has none.
func portOf(address string) int {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return 0
	}
	port, _ := strconv.Atoi(text)
	return port
}
