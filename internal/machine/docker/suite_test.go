package docker_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"berth/activities/node"
	"berth/activities/node/runtimetest"
	"berth/internal/machine/docker"
)

func open(t *testing.T, host string, o docker.Options) *docker.Engine {
	t.Helper()
	e, err := docker.Open(host, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// answering returns an engine whose API is the handler.
func answering(t *testing.T, api http.HandlerFunc) *docker.Engine {
	t.Helper()
	return answeringWith(t, api, docker.Options{})
}

// answeringWith is answering with options.
func answeringWith(t *testing.T, api http.HandlerFunc, o docker.Options) *docker.Engine {
	t.Helper()
	h := httptest.NewUnstartedServer(api)
	socket := filepath.Join(t.TempDir(), "docker.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	_ = h.Listener.Close()
	h.Listener = listener
	h.Start()
	t.Cleanup(h.Close)
	return open(t, "unix://"+socket, o)
}

func TestDockerKeepsTheRuntimesClaims(t *testing.T) {
	t.Parallel()
	image := runtimetest.Image(t, runtimetest.DefaultHost)
	hub := newHub(t)
	dead := closedPort(t)
	runtimetest.Suite(t, func(t *testing.T) runtimetest.Harness {
		return runtimetest.Harness{
			Runtime:     open(t, runtimetest.DefaultHost, docker.Options{}),
			Again:       func(t *testing.T) node.Runtime { return open(t, runtimetest.DefaultHost, docker.Options{}) },
			Image:       image,
			Missing:     hub.address + "/no/such:1",
			Unreachable: dead + "/any:1",
		}
	})
}
