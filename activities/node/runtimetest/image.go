package runtimetest

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/docker/docker/client"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// DefaultHost is the machine's own Docker engine.
const DefaultHost = client.DefaultDockerHost

// Image loads the test image into the Docker engine at host (a unix:// address, empty for
// the machine's own) and returns its reference. The tag is a hash of the program, so an
// image of that name is always the right one, and it stays loaded for the next run.
func Image(t testing.TB, host string) string {
	t.Helper()
	program := Program(t)
	ref := fmt.Sprintf("berth-testprog:%x", sha256.Sum256(program))[:len("berth-testprog:")+16]
	Load(t, host, ref, Build(t))
	return ref
}

// Load loads an image into the engine at host under the name ref, unless that name exists.
func Load(t testing.TB, host, ref string, img v1.Image) {
	t.Helper()
	if err := load(t.Context(), host, ref, img); err != nil {
		t.Fatalf("load image %s into docker engine %q: %v", ref, host, err)
	}
}

func load(ctx context.Context, host, ref string, img v1.Image) error {
	if host == "" {
		host = DefaultHost
	}
	api, err := client.NewClientWithOpts(client.WithHost(host), client.WithAPIVersionNegotiation())
	if err != nil {
		return err
	}
	defer api.Close()
	// Concurrent tests may both load the image; the second load changes nothing.
	if _, err := api.ImageInspect(ctx, ref); err == nil {
		return nil
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	if err := tarball.Write(tag, img, &archive); err != nil {
		return err
	}
	loaded, err := api.ImageLoad(ctx, &archive, client.ImageLoadWithQuiet(true))
	if err != nil {
		return err
	}
	defer loaded.Body.Close()
	// The engine answers 200 before the load ends; a failure is a message in the stream.
	for progress := json.NewDecoder(loaded.Body); ; {
		var m struct {
			Error string `json:"error"`
		}
		switch err := progress.Decode(&m); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case m.Error != "":
			return errors.New(m.Error)
		}
	}
}

// Build returns the test image: one layer with /testprog, which is its entry point. Like
// the CUDA images it asks for all GPUs, which an engine must not grant.
func Build(t testing.TB) v1.Image {
	t.Helper()
	img, err := imageOnce()
	if err != nil {
		t.Fatalf("build the test image: %v", err)
	}
	return img
}

// imageOnce builds the image once per test run, because its compression takes longer than
// most tests.
var imageOnce = sync.OnceValues(buildImage)

func buildImage() (v1.Image, error) {
	program, err := buildOnce()
	if err != nil {
		return nil, err
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "testprog", Mode: 0o755,
		Size: int64(len(program))}); err != nil {
		return nil, err
	}
	if _, err := w.Write(program); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	// The layer compresses its content once and serves the cached result.
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil }
	l, err := tarball.LayerFromOpener(opener, tarball.WithCompressedCaching)
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	// ConfigFile returns the image's own copy, which must not change.
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	file.Config.Entrypoint = []string{"/testprog"}
	file.Config.Cmd = []string{"echo", "no command"}
	file.Config.Env = []string{"PATH=/", "NVIDIA_VISIBLE_DEVICES=all"}
	return mutate.ConfigFile(img, file)
}

// Program returns testprog as a static binary, built once per test run.
func Program(t testing.TB) []byte {
	t.Helper()
	program, err := buildOnce()
	if err != nil {
		t.Fatalf("build testprog: %v", err)
	}
	return program
}

// buildOnce compiles once per test run: the Go command takes seconds.
var buildOnce = sync.OnceValues(build)

func build() ([]byte, error) {
	dir, err := os.MkdirTemp("", "testprog")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "testprog")
	// Trimmed and without build ids, the binary is the same in every folder and every run,
	// and so is the tag of the image.
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o", out,
		"berth/activities/node/runtimetest/testprog")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, text)
	}
	return os.ReadFile(out)
}

// must fails the test at once if err is not nil.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
