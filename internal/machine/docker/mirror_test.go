package docker_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/docker/docker/client"

	"berth/activities/node"
	"berth/internal/machine/docker"
)

func TestMirrorsAreNamed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]docker.Mirror{
		"docker.io=https://mirror.example":        {Registry: "docker.io", Host: "mirror.example"},
		"docker.io=https://mirror.example/hub/":   {Registry: "docker.io", Host: "mirror.example/hub"},
		"ghcr.io=https://mirror:5000":             {Registry: "ghcr.io", Host: "mirror:5000"},
		"127.0.0.1:5000=http://127.0.0.1:5001":    {Registry: "127.0.0.1:5000", Host: "127.0.0.1:5001"},
		"registry.example:443=https://10.0.0.5:1": {Registry: "registry.example:443", Host: "10.0.0.5:1"},
	} {
		if got, err := docker.ParseMirror(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", "docker.io", "docker.io=", "docker.io=mirror.example", "docker.io=http://mirror.example", "=https://mirror.example",
		"docker.io=https://user:word@mirror.example", "docker.io=https://mirror.example?x=1", "docker.io/library=https://mirror.example",
		"library=https://mirror.example", "docker.io=https://mirror", "docker.io=https://mirror.example/Hub", "docker.io=ftp://mirror.example",
	} {
		if got, err := docker.ParseMirror(text); err == nil {
			t.Errorf("%q is %+v", text, got)
		}
	}
}

// mirrored returns an engine client with a mirror for a hub, and the log.
func mirrored(t *testing.T, of *hub, mirror string) (*docker.Engine, *bytes.Buffer) {
	t.Helper()
	m, err := docker.ParseMirror(of.address + "=http://" + mirror)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	return open(t, "", docker.Options{Mirrors: []docker.Mirror{m}, Logger: slog.New(slog.NewTextHandler(&log,
		nil))}), &log
}

// namesOf returns all names that the engine has for an image.
func namesOf(t *testing.T, ref string) string {
	t.Helper()
	api, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	defer api.Close()
	found, err := api.ImageInspect(t.Context(), ref)
	if err != nil {
		return ""
	}
	return strings.Join(append(found.RepoTags, found.RepoDigests...), " ")
}

// The content comes from the mirror, the name and the digest from the registry.
func TestMirrorsSupplyTheContent(t *testing.T) {
	t.Parallel()
	origin, mirror := newHub(t), newHub(t)
	img := unique(t, origin)
	ref, digest := origin.push("team/tool:1", img)
	mirror.push("team/tool:other-tag", img)
	var logins atomic.Int64
	mirror.answer(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") != "" {
			logins.Add(1)
		}
		return false
	})
	e, log := mirrored(t, origin, mirror.address)
	got, err := e.EnsureImage(t.Context(), ref, &node.RegistryAuth{Username: "me", Password: "word"}, false)
	if err != nil || got.Digest != digest || !got.Pulled {
		t.Fatalf("pulled %+v, %v; want %s", got, err, digest)
	}
	// The engine reads the small configuration of the image again.
	if origin.blobs.Load() > 1 || mirror.blobs.Load() < 3 {
		t.Errorf("%d fetches of content from the registry and %d from the mirror; log: %s", origin.blobs.Load(),
			mirror.blobs.Load(), log)
	}
	if logins.Load() > 0 {
		t.Error("the mirror has seen a login")
	}
	if names := namesOf(t, ref); strings.Contains(names, mirror.address) || !strings.Contains(names, ref) {
		t.Errorf("the image has the names %s", names)
	}
}

// A mirror that is down, lacks the image, has another image under the name or lies about the digest costs time alone.
func TestFailedMirrorsFallBackToTheRegistry(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(t *testing.T, mirror *hub){
		"fails": func(_ *testing.T, m *hub) {
			m.answer(func(w http.ResponseWriter, _ *http.Request) bool {
				w.WriteHeader(http.StatusServiceUnavailable)
				return true
			})
		},
		"lacks":   func(*testing.T, *hub) {},
		"another": func(t *testing.T, m *hub) { m.push("team/tool:1", unique(t, m)) },
		"lies": func(t *testing.T, m *hub) {
			_, wrong := m.push("team/tool:1", unique(t, m))
			m.answer(func(_ http.ResponseWriter, r *http.Request) bool {
				if before, _, ok := strings.Cut(r.URL.Path, "/manifests/"); ok {
					r.URL.Path = before + "/manifests/" + wrong
				}
				return false
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			origin, mirror := newHub(t), newHub(t)
			ref, digest := origin.push("team/tool:1", unique(t, origin))
			prepare(t, mirror)
			e, log := mirrored(t, origin, mirror.address)
			got, err := e.EnsureImage(t.Context(), ref, nil, false)
			if err != nil || got.Digest != digest || origin.blobs.Load() == 0 {
				t.Errorf("pulled %+v, %v; want %s from the registry", got, err, digest)
			}
			if !strings.Contains(log.String(), "registry mirror failed") || !strings.Contains(log.String(),
				mirror.address) {
				t.Errorf("the log is %s", log)
			}
			if names := namesOf(t, ref); strings.Contains(names, mirror.address) {
				t.Errorf("the image has the names %s", names)
			}
		})
	}
}

// The registry decides who may have an image, also one that the mirror gives to everyone.
func TestMirrorsGiveNoAccess(t *testing.T) {
	t.Parallel()
	origin, mirror := newHub(t), newHub(t)
	img := unique(t, origin)
	ref, digest := origin.push("team/private:1", img)
	mirror.push("team/private:1", img)
	origin.answer(func(w http.ResponseWriter,
		_ *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	e, _ := mirrored(t, origin, mirror.address)
	for _, image := range []string{ref, origin.address + "/team/private@" + digest} {
		if got, err := e.EnsureImage(t.Context(), image, nil, false); err == nil {
			t.Errorf("%s is here: %+v", image, got)
		}
	}
	if names := namesOf(t, mirror.address+"/team/private@"+digest); names != "" {
		t.Errorf("the content stays under %s", names)
	}
}
