package docker_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"

	"berth/activities/node"
	"berth/internal/machine/docker"
)

// silence is an engine that answers all calls of a start but one.
type silence struct {
	mu    sync.Mutex
	call  string // method and the end of the path, such as "POST /containers/create"; "": answers all
	once  bool   // answers this call from the second time on
	asked int
}

// hangs reports whether the engine leaves a request without an answer.
func (s *silence) hangs(r *http.Request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	method, end, _ := strings.Cut(s.call, " ")
	if s.call == "" || r.Method != method || !strings.HasSuffix(r.URL.Path, end) {
		return false
	}
	s.asked++
	return !s.once || s.asked == 1
}

// set makes one call hang.
func (s *silence) set(call string, once bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.call, s.once, s.asked = call, once, 0
}

// open starts the engine. It has every image, with an id of its own, and the container c, which has not started.
func (s *silence) open(t *testing.T) *docker.Engine {
	t.Helper()
	h := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.41")
		w.Header().Set("Content-Type", "application/json")
		if s.hangs(r) {
			_, _ = io.Copy(io.Discard, r.Body) // else the server does not notice that the caller has gone
			<-r.Context().Done()
			return
		}
		at := r.URL.Path
		switch {
		case strings.HasSuffix(at, "/info"):
			fmt.Fprint(w, `{"NCPU":2}`)
		case strings.Contains(at, "/images/"):
			fmt.Fprintf(w, `{"Id":%q,"Config":{}}`, at)
		case strings.HasSuffix(at, "/containers/json"):
			fmt.Fprint(w, `[{"Id":"c1","Names":["/c"]},{"Id":"c2","Names":["/d"]},{"Id":"c3","Names":["/e"]}]`)
		case strings.HasSuffix(at, "/containers/create"):
			w.WriteHeader(http.StatusCreated)
			fmt.Fprint(w, `{"Id":"a1"}`)
		case strings.HasSuffix(at, "/archive") && r.Method == http.MethodPut:
		case strings.HasSuffix(at, "/archive") && strings.HasPrefix(r.URL.Query().Get("path"), "/etc/"):
			says(http.StatusNotFound, "Could not find the file")(0, w, r)
		case strings.HasSuffix(at, "/archive"):
			isFolder(w)
		case strings.HasSuffix(at, "/networks/bridge"):
			fmt.Fprint(w, `{"Name":"bridge","Id":"n"}`)
		case strings.HasSuffix(at, "/start"), r.Method == http.MethodDelete:
			w.WriteHeader(http.StatusNoContent)
		case strings.HasSuffix(at, "/new/json"):
			says(http.StatusNotFound, "No such container: new")(0, w, r)
		default: // a container
			name := strings.Split(strings.TrimSuffix(at, "/json"), "/")
			fmt.Fprintf(w, `{"Id":"c1","Name":"/%s","State":{"Status":"created"},"Config":{}}`, name[len(name)-1])
		}
	}))
	socket := filepath.Join(t.TempDir(), "docker.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	_ = h.Listener.Close()
	h.Listener = listener
	h.Start()
	t.Cleanup(h.Close)
	return open(t, "unix://"+socket, docker.Options{})
}

// The calls for which a member holds a turn end, whichever answer the engine owes, and the next one works once the
// engine answers again. The machine is at fault then.
func TestAStartEndsThoughTheEngineDoesNotAnswer(t *testing.T) {
	t.Parallel()
	const bound = 100 * time.Millisecond
	image := 0
	accounts := func(e *docker.Engine) error {
		image++ // not in the cache
		_, err := e.Accounts(t.Context(), fmt.Sprintf("img%d:1", image))
		return err
	}
	create := func(e *docker.Engine) error {
		image++
		_, err := e.Create(t.Context(), node.ContainerSpec{Name: "new", Image: fmt.Sprintf("img%d:1", image),
			CPUMilli: 100, MemoryMiB: 16})
		return err
	}
	start := func(e *docker.Engine) error { return e.Start(t.Context(), "c") }
	give := func(e *docker.Engine) error { return e.GiveFolders(t.Context(), "c", []string{"/out"}, tenantUser) }
	list := func(e *docker.Engine) error {
		_, err := e.List(t.Context(), nil)
		return err
	}
	// The containers belong to no owner, and are old.
	sweep := func(e *docker.Engine) error { return e.SweepAccounts(t.Context()) }
	for claim, c := range map[string]struct {
		call string
		do   func(*docker.Engine) error
	}{
		"accounts: the image":              {"GET :1/json", accounts},
		"accounts: the container":          {"POST /containers/create", accounts},
		"accounts: the look":               {"HEAD /archive", accounts},
		"accounts: the file":               {"GET /archive", accounts},
		"accounts: the removal":            {"DELETE /a1", accounts},
		"create: the facts":                {"GET /info", create},
		"create: the network":              {"GET /networks/bridge", create},
		"create: the container":            {"POST /containers/create", create},
		"start":                            {"POST /start", start},
		"start: the container":             {"GET /c/json", start},
		"gift: the container":              {"GET /c/json", give},
		"gift: the search":                 {"HEAD /archive", give},
		"gift: the change":                 {"PUT /archive", give},
		"list: all":                        {"GET /containers/json", list},
		"the sweep of accounts":            {"GET /containers/json", sweep},
		"the sweep of accounts: a removal": {"DELETE /c2", sweep},
	} {
		s := &silence{}
		e := s.open(t)
		e.SetBounds(bound)
		s.set(c.call, false)
		ended := make(chan error, 1)
		go func() { ended <- c.do(e) }()
		select {
		case err := <-ended:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", claim, err)
			}
			for _, kind := range []error{node.ErrBadCommand, node.ErrBadImage, node.ErrBadPath, node.ErrNoContainer, node.ErrImageUnavailable} {
				if errors.Is(err, kind) {
					t.Errorf("%s is not the machine's fault: %v", claim, err)
				}
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s: does not end", claim)
		}
		s.set("", false)
		e.SetBounds(time.Minute)
		if err := c.do(e); err != nil && !errors.Is(err, node.ErrExists) {
			t.Errorf("%s: once the engine answers again: %v", claim, err)
		}
	}
}

// An image whose accounts the engine does not give delays other images by no more than the bound.
func TestAnImageThatHangsReleasesItsTurn(t *testing.T) {
	t.Parallel()
	s := &silence{}
	e := s.open(t)
	e.SetBounds(200 * time.Millisecond)
	s.set("HEAD /archive", true)
	ended := make(chan error, 2)
	for i := range 2 {
		go func() {
			_, err := e.Accounts(t.Context(), fmt.Sprintf("img%d:1", i))
			ended <- err
		}()
	}
	first, second := <-ended, <-ended
	if !errors.Is(first, context.DeadlineExceeded) || second != nil {
		t.Errorf("the first image: %v, the second: %v", first, second)
	}
}

// A container of a killed process, or one whose creation the engine did not answer, is found and swept: that of this
// owner at once, unless it is in use, and that of another owner once no call can use it.
func TestContainersOfAccountsAreSwept(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{Owner: t.Name()})
	there := func(id string) bool {
		t.Helper()
		all, err := m.api.ContainerList(t.Context(), container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("id", id))})
		if err != nil {
			t.Fatal(err)
		}
		return len(all) == 1
	}
	made := func(owner, name string) string {
		t.Helper()
		c, err := m.api.ContainerCreate(t.Context(), &container.Config{Image: m.image,
			Labels: map[string]string{"berth.accounts": owner}}, nil, nil, nil, name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = m.api.ContainerRemove(context.Background(), c.ID, container.RemoveOptions{Force: true}) // swept already
		})
		return c.ID
	}
	strange, own := made("1", ""), made(m.AccountsOwner(), "")
	if err := m.SweepAccounts(t.Context()); err != nil || !there(strange) {
		t.Fatalf("a container that another agent may use is swept: %v", err)
	}
	if there(own) {
		t.Error("a leftover of this owner stays")
	}
	if err := m.SweepOlder(t.Context(), strange, 0); err != nil || there(strange) {
		t.Errorf("a leftover of another owner stays: %v", err)
	}
	name := "berth-accounts-test-" + strings.ToLower(rand.Text())
	used := made(m.AccountsOwner(), name)
	m.UseAccounts(name)
	if err := m.SweepAccounts(t.Context()); err != nil || !there(used) {
		t.Errorf("a container in use is swept: %v", err)
	}
	m.UseAccounts("")
	if err := m.SweepAccounts(t.Context()); err != nil || there(used) {
		t.Errorf("it stays after its use: %v", err)
	}
}

// The next process of an owner reads an image although an earlier process has left its container, and leaves none.
func TestALeftoverOfAccountsDoesNotHoldUpItsImage(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{Owner: t.Name()})
	info, err := m.api.ImageInspect(t.Context(), m.image)
	if err != nil {
		t.Fatal(err)
	}
	name := m.AccountsName(info.ID)
	if name != open(t, "", docker.Options{Owner: t.Name()}).AccountsName(info.ID) {
		t.Error("another process of this owner uses another name")
	}
	if name == open(t, "", docker.Options{Owner: "other"}).AccountsName(info.ID) {
		t.Error("another owner uses the same name")
	}
	if _, err := m.api.ContainerCreate(t.Context(), &container.Config{Image: m.image,
		Labels: map[string]string{"berth.accounts": m.AccountsOwner()}}, nil, nil, nil, name); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Accounts(t.Context(), m.image); err != nil {
		t.Error(err)
	}
	left, err := m.api.ContainerList(t.Context(), container.ListOptions{All: true,
		Filters: filters.NewArgs(filters.Arg("label", "berth.accounts="+m.AccountsOwner()))})
	if err != nil || len(left) > 0 {
		t.Errorf("containers are left: %+v, %v", left, err)
	}
}
