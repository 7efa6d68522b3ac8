package postgres

import (
	"fmt"
	"log/slog"
	"strconv"
)

// Options configure a cluster. Only Dir is required.
type Options struct {
	// Dir is the cluster's own folder: data, password, log and socket are kept
	// below it. Its whole path must be open to the server's user.
	Dir string

	// BinDir is searched first for initdb and postgres (commands fill it from
	// PG_BINDIR). Empty means PATH, then the newest below /usr/lib/postgresql.
	BinDir string

	// Port on 127.0.0.1; 0 takes a free one, another one at each Start.
	Port int

	// MaxConnections is 200 where 0.
	MaxConnections int

	// SharedBuffers in PostgreSQL's notation is 128MB where empty.
	SharedBuffers string

	// Volatile gives up durability for speed: committed data survives a crash of the server, but
	// not one of the machine. For tests only.
	Volatile bool

	// Logger receives the manager's own lines; the server's lines go to postgres.log in Dir. Nil
	// discards.
	Logger *slog.Logger
}

// withDefaults returns the options with the defaults in place of zero fields.
func (o Options) withDefaults() Options {
	if o.MaxConnections == 0 {
		o.MaxConnections = 200
	}
	if o.SharedBuffers == "" {
		o.SharedBuffers = "128MB"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// validate returns the first fault of the options.
func (o Options) validate() error {
	if o.Dir == "" {
		return fmt.Errorf("postgres: Dir is empty: name the folder that holds the cluster")
	}
	if o.Port < 0 || o.Port > 65535 {
		return fmt.Errorf("postgres: port %d: allowed are 0 (a free one) to 65535", o.Port)
	}
	return nil
}

// settings returns the server's settings as command line arguments, so that the data folder
// stays as created by initdb and a changed default applies at once.
func (o Options) settings(port int, socketDir string) []string {
	pairs := [][2]string{
		{"listen_addresses", "127.0.0.1"},
		{"port", strconv.Itoa(port)},
		{"unix_socket_directories", socketDir},
		{"max_connections", strconv.Itoa(o.MaxConnections)},
		{"shared_buffers", o.SharedBuffers},
		{"timezone", "UTC"},
		{"log_timezone", "UTC"},
		{"log_line_prefix", "%m [%p] "},
		// Short statements by the thousand are the load here; compiling a plan
		// never pays for itself.
		{"jit", "off"},
		// A holder of row locks that went away must not block the others.
		{"tcp_keepalives_idle", "30"},
	}
	if o.Volatile {
		pairs = append(pairs,
			[2]string{"fsync", "off"},
			[2]string{"full_page_writes", "off"},
			[2]string{"max_wal_size", "1GB"},
			[2]string{"checkpoint_timeout", "1h"},
		)
	}
	args := make([]string, 0, 2*len(pairs))
	for _, p := range pairs {
		args = append(args, "-c", p[0]+"="+p[1])
	}
	return args
}
