package docker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/google/go-cmp/cmp"

	"berth/activities/node"
	"berth/activities/node/runtimetest"
	"berth/internal/machine/docker"
)

// partly is an engine that lists all its containers and gives the state of some: of the others it answers with a
// status, or not at all.
type partly map[string]int

const noAnswer = 1 // in place of a status

func (p partly) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Api-Version", "1.41")
	w.Header().Set("Content-Type", "application/json")
	name, inspects := strings.CutSuffix(r.URL.Path[strings.LastIndex(r.URL.Path, "/containers/")+1:], "/json")
	name = strings.TrimPrefix(name, "containers/")
	switch status := p[name]; {
	case name == "containers":
		var list []container.Summary
		for name := range p {
			list = append(list, container.Summary{ID: "id-" + name, Names: []string{"/" + name},
				Labels: map[string]string{"name": name}})
		}
		_ = json.NewEncoder(w).Encode(list) // an error is the caller's
	case !inspects:
	case status == noAnswer:
		_, _ = io.Copy(io.Discard, r.Body) // else the server does not notice that the caller has gone
		<-r.Context().Done()
	case status != http.StatusOK:
		http.Error(w, `{"message":"a fault of the engine"}`, status)
	default:
		fmt.Fprintf(w, `{"Id":"id-%s","Name":"/%s","State":{"Status":"running"},"Config":{"Labels":{"name":%q}}}`,
			name, name, name)
	}
}

// states returns the states of listed containers by name, and checks that each has its id and its labels.
func states(t *testing.T, list []node.Container) map[string]node.ContainerState {
	t.Helper()
	all := map[string]node.ContainerState{}
	for _, c := range list {
		all[c.Name] = c.State
		if c.ID != "id-"+c.Name || c.Labels["name"] != c.Name {
			t.Errorf("container %s is listed as %+v", c.Name, c)
		}
	}
	return all
}

// A list has every container that exists: a caller takes one that is missing for one that is gone. It gives the state
// of all that the engine answers for.
func TestAListHasContainersWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	const look = 2 * time.Second
	engine := partly{"a": http.StatusOK, "b": noAnswer, "c": http.StatusInternalServerError, "d": http.StatusNotFound,
		"e": http.StatusOK}
	e := answering(t, engine.ServeHTTP)
	e.SetLookTime(look)
	list, err := e.List(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]node.ContainerState{"a": node.ContainerRunning, "b": node.ContainerUnknown,
		"c": node.ContainerUnknown, "e": node.ContainerRunning}, states(t, list)); diff != "" {
		t.Errorf("the list (-want +got):\n%s", diff)
	}
	if unstarted, err := e.Unstarted(t.Context(), nil); err != nil || len(unstarted) > 0 {
		t.Errorf("never started are %+v, %v", unstarted, err)
	}

	// The caller's own time says nothing about a container.
	ended, cancel := context.WithTimeout(t.Context(), look/4)
	defer cancel()
	if list, err := e.List(ended, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a list without time is %+v, %v", list, err)
	}
}

// logLines decodes the lines of a JSON log.
func logLines(t *testing.T, log *bytes.Buffer) (lines []map[string]any) {
	t.Helper()
	for line := range bytes.Lines(log.Bytes()) {
		var fields map[string]any
		if err := json.Unmarshal(line, &fields); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fields)
	}
	return lines
}

// All looks of a list end within twice the bound of one, however many containers there are. One look after the other,
// eight at a time, would take 25 times the bound here. The log names the containers that were asked for, and not the
// ones for which no time was left.
func TestAListEndsInTimeHoweverManyContainersHang(t *testing.T) {
	t.Parallel()
	const look = 500 * time.Millisecond
	all := partly{}
	for i := range 200 {
		all[fmt.Sprintf("c%d", i)] = noAnswer
	}
	var log bytes.Buffer
	e := answeringWith(t, all.ServeHTTP, docker.Options{Logger: slog.New(slog.NewJSONHandler(&log, nil))})
	e.SetLookTime(look)
	begun := time.Now()
	list, err := e.List(t.Context(), nil)
	if took := time.Since(begun); err != nil || len(list) != len(all) || took > 10*look {
		t.Errorf("%d containers are listed after %s, %v; want %d after %s", len(list), took, err, len(all), 2*look)
	}
	for name, state := range states(t, list) {
		if state != node.ContainerUnknown {
			t.Errorf("container %s is %s", name, state)
		}
	}
	lines := logLines(t, &log)
	if len(lines) != 1 {
		t.Fatalf("%d lines are logged: %s", len(lines), log.Bytes())
	}
	named, _ := lines[0]["containers"].([]any)
	if count, _ := lines[0]["count"].(float64); count < 8 || count > 24 || len(named) != 5 {
		t.Errorf("the log names %d of %g containers: %s", len(named), count, log.Bytes())
	}
}

// A container without a state is logged once, and again after it has answered meanwhile.
func TestAContainerWithoutAnAnswerIsLoggedOnce(t *testing.T) {
	t.Parallel()
	var status atomic.Int32
	var log bytes.Buffer
	e := answeringWith(t, func(w http.ResponseWriter, r *http.Request) {
		partly{"a": http.StatusOK, "b": int(status.Load())}.ServeHTTP(w, r)
	}, docker.Options{Logger: slog.New(slog.NewJSONHandler(&log, nil))})
	lists := func(answer int, want node.ContainerState, lines int) {
		t.Helper()
		status.Store(int32(answer))
		list, err := e.List(t.Context(), nil)
		if found := states(t, list); err != nil || found["b"] != want {
			t.Errorf("the states are %v, %v; want %s", found, err, want)
		}
		if got := logLines(t, &log); len(got) != lines {
			t.Errorf("%d lines are logged, want %d: %s", len(got), lines, log.Bytes())
		}
	}
	lists(http.StatusInternalServerError, node.ContainerUnknown, 1)
	lists(http.StatusInternalServerError, node.ContainerUnknown, 1)
	lists(http.StatusOK, node.ContainerRunning, 1)
	lists(http.StatusInternalServerError, node.ContainerUnknown, 2)
	lists(http.StatusNotFound, "", 2) // it is gone
	lists(http.StatusServiceUnavailable, node.ContainerUnknown, 3)
	if last := logLines(t, &log)[2]; fmt.Sprint(last["containers"], last["count"]) != "[b] 1" {
		t.Errorf("the last line is %v", last)
	}
}

// shim returns the process of the engine that holds a container.
func shim(t *testing.T, d *runtimetest.Dockerd, id string) int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && strings.Contains(string(line), "containerd-shim") && strings.Contains(string(line), id) &&
			strings.Contains(string(line), d.Dir()) {
			pid, err := strconv.Atoi(e.Name())
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatalf("container %s has no shim", id)
	return 0
}

// The process that holds a container can hang, as one that waits for a dead disk does. The engine then gives no answer
// about this container from the first order to it on.
func TestAContainerThatHangsInItsEngineIsListed(t *testing.T) {
	t.Parallel()
	d := runtimetest.StartDockerd(t)
	m := newMachine(t, d.Host(), docker.Options{})
	hangs, runs := m.spec("sleep", "1h"), m.spec("sleep", "1h")
	hangs.Labels = map[string]string{"berth.test": hangs.Name}
	runs.Labels = hangs.Labels
	c := m.run(hangs)
	m.run(runs)
	pid := shim(t, d, c.ID)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	thaw := func() { _ = syscall.Kill(pid, syscall.SIGCONT) } // the removal of the container needs it
	t.Cleanup(thaw)
	ordered := make(chan error, 1)
	go func() { ordered <- m.api.ContainerKill(context.WithoutCancel(t.Context()), c.ID, "SIGWINCH") }()
	deaf := func() bool {
		asking, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := m.Inspect(asking, hangs.Name)
		return errors.Is(err, context.DeadlineExceeded)
	}
	for end := time.Now().Add(time.Minute); !deaf(); {
		if time.Now().After(end) {
			t.Fatal("the engine answers for a container whose shim has stopped")
		}
	}
	list, err := m.List(t.Context(), hangs.Labels)
	found := map[string]node.ContainerState{}
	for _, l := range list {
		found[l.Name] = l.State
		if l.Name == hangs.Name && (l.ID != c.ID || l.Labels["berth.test"] != hangs.Name) {
			t.Errorf("it is listed as %+v", l)
		}
	}
	if diff := cmp.Diff(map[string]node.ContainerState{hangs.Name: node.ContainerUnknown,
		runs.Name: node.ContainerRunning}, found); diff != "" || err != nil {
		t.Errorf("the list (-want +got), %v:\n%s", err, diff)
	}
	thaw()
	if err := <-ordered; err != nil {
		t.Error(err)
	}
	if c, err := m.Inspect(t.Context(), hangs.Name); err != nil || c.State != node.ContainerRunning {
		t.Errorf("once the engine answers it is %+v, %v", c, err)
	}
}
