package bench_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cost is the use of resources since a starting point. On a shared machine it says more than the
// elapsed time.
type cost struct {
	at       time.Time
	process  time.Duration            // CPU of this process: Temporal, control plane, agents, clients
	postgres map[string]time.Duration // CPU of its processes, by database; "" is the server's own
	commits  map[string]int64         // by database, including commits of single reads
}

// cost reads the meters. PostgreSQL counts with a delay of a
// second, and reading is a transaction too.
func (s *stack) cost() cost {
	c := cost{at: time.Now(), postgres: s.postgresCPU(), commits: map[string]int64{}}
	var u syscall.Rusage
	s.must(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	c.process = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	rows, err := s.db.Pool().Query(s.b.Context(), `SELECT datname, xact_commit FROM pg_stat_database WHERE datname IS NOT NULL`)
	s.must(err)
	defer rows.Close()
	for rows.Next() {
		var name string
		var n int64
		s.must(rows.Scan(&name, &n))
		c.commits[name] = n
	}
	s.must(rows.Err())
	return c
}

func (c cost) since(earlier cost) cost {
	d := cost{process: c.process - earlier.process, postgres: map[string]time.Duration{}, commits: map[string]int64{}}
	for name, cpu := range c.postgres {
		d.postgres[name] = cpu - earlier.postgres[name]
	}
	for name, n := range c.commits {
		d.commits[name] = n - earlier.commits[name]
	}
	return d
}

func (c cost) cpu() time.Duration {
	sum := c.process
	for _, cpu := range c.postgres {
		sum += cpu
	}
	return sum
}

// clockTick is USER_HZ, which is 100 on every Linux that Go runs on.
const clockTick = time.Second / 100

// postgresCPU adds up the server's processes. Processes that have ended count as the
// postmaster's, which waited for their end.
func (s *stack) postgresCPU() map[string]time.Duration {
	pidFile, err := os.ReadFile(filepath.Join(s.dir, "postgres", "data", "postmaster.pid"))
	s.must(err)
	master, _, _ := strings.Cut(string(pidFile), "\n")
	folders, err := filepath.Glob("/proc/[0-9]*")
	s.must(err)
	used := map[string]time.Duration{}
	for _, folder := range folders {
		text, err := os.ReadFile(filepath.Join(folder, "stat"))
		if err != nil {
			continue // it has ended
		}
		// The fields after the command, which may itself hold blanks: state, ppid, …
		field := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if len(field) < 15 || filepath.Base(folder) != master && field[1] != master {
			continue
		}
		database := ""
		title, _ := os.ReadFile(filepath.Join(folder, "cmdline"))
		if word := strings.Fields(string(title)); len(word) > 3 && word[0] == "postgres:" && strings.HasPrefix(word[3], "127.0.0.1") {
			database = word[2]
		}
		for _, i := range []int{11, 12, 13, 14} { // utime, stime, cutime, cstime
			n, err := strconv.Atoi(field[i])
			s.must(err)
			used[database] += time.Duration(n) * clockTick
		}
	}
	return used
}
