package docker_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// dead is a container that SIGKILL ended, and all that the engine's events and the kernel's log say of it.
type dead struct {
	before string // the event that the engine has already when it is asked
	after  string // the event that comes once the engine is asked for events to come
	kernel string // the id of the container of which the kernel's log tells

	waits atomic.Int32 // questions about events to come
}

// OutOfMemory makes it a kernel's log.
func (d *dead) OutOfMemory(group string) (bool, error) {
	if d.kernel == "" {
		return false, fmt.Errorf("open kernel log: operation not permitted")
	}
	return group == d.kernel, nil
}

// ServeHTTP makes it an engine.
func (d *dead) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Api-Version", "1.41")
	w.Header().Set("Content-Type", "application/json")
	if !strings.HasSuffix(r.URL.Path, "/events") {
		_, _ = fmt.Fprintf(w, `{"Id":"c1","Name":"/c","State":{"Status":"exited","ExitCode":137,"StartedAt":%q},"Config":{}}`,
			time.Now().Add(-time.Minute).Format(time.RFC3339Nano))
		return
	}
	until, err := strconv.ParseFloat(r.URL.Query().Get("until"), 64)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	event := d.before
	if coming := until > float64(time.Now().UnixNano())/1e9; coming {
		d.waits.Add(1)
		event = d.after
	}
	if event == "" {
		return
	}
	_, _ = fmt.Fprintln(w, event)
	if event == d.after { // the engine would go on until the end of the span
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

// The engine may report a kill for memory after the exit, or never.
func TestMemoryKillsAreKnownWhoeverTellsOfThem(t *testing.T) {
	t.Parallel()
	const oom, kill = `{"Type":"container","Action":"oom"}`, `{"Type":"container","Action":"kill","Actor":{"Attributes":{"signal":"9"}}}`
	const term = `{"Type":"container","Action":"kill","Actor":{"Attributes":{"signal":"SIGTERM"}}}`
	for name, c := range map[string]struct {
		engine        *dead
		oom, signaled bool
		waits         int32
	}{
		"told before the question":   {engine: &dead{before: oom}, oom: true},
		"told late":                  {engine: &dead{after: oom}, oom: true, waits: 1},
		"told by the kernel alone":   {engine: &dead{kernel: "c1"}, oom: true},
		"kernel and signal":          {engine: &dead{kernel: "c1", before: term}, oom: true, signaled: true},
		"the kernel tells of others": {engine: &dead{kernel: "c2"}, waits: 1},
		"killed":                     {engine: &dead{before: kill}, signaled: true},
		"killed, told late":          {engine: &dead{after: kill}, signaled: true, waits: 1},
		"asked to end, then memory":  {engine: &dead{before: term, after: oom}, oom: true, signaled: true, waits: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := answering(t, c.engine.ServeHTTP)
			e.SetKernelLog(c.engine)
			got, err := e.Wait(t.Context(), "c")
			if err != nil || got.OOMKilled != c.oom || got.Signaled != c.signaled || c.engine.waits.Load() != c.waits {
				t.Errorf("ended as %+v, %v, with %d waits; want memory %v, signal %v, %d waits", got, err,
					c.engine.waits.Load(), c.oom, c.signaled, c.waits)
			}
		})
	}
}
