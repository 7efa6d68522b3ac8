package docker_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"net/http"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"berth/activities/node"
	"berth/activities/node/runtimetest"
	"berth/internal/machine/docker"
)

// imageOf returns the name of the test image with one more layer, which w writes, and with another configuration.
func imageOf(t *testing.T, layer *bytes.Buffer, w *tar.Writer, edit func(*v1.ConfigFile)) string {
	t.Helper()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	added, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(layer.Bytes())), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(runtimetest.Build(t), added)
	if err != nil {
		t.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	edit(file)
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	ref := "berth-test:" + digest.Hex[:16]
	runtimetest.Load(t, "", ref, img)
	return ref
}

// The engine opens the accounts of an image at each start. A pipe or a device there would block it without end, so no
// container of such an image is created.
func TestAnImageWhoseAccountsCannotBeReadIsRefused(t *testing.T) {
	t.Parallel()
	pipe := tar.Header{Typeflag: tar.TypeFifo, Name: "etc/passwd", Mode: 0o644}
	for claim, c := range map[string]struct {
		entries []tar.Header
		want    error
	}{
		"a pipe": {[]tar.Header{pipe}, node.ErrBadCommand},
		"a device": {[]tar.Header{{Typeflag: tar.TypeChar, Name: "etc/group", Mode: 0o644, Devmajor: 1, Devminor: 5}},
			node.ErrBadCommand},
		"a link to a link to a pipe": {[]tar.Header{{Typeflag: tar.TypeFifo, Name: "pipe", Mode: 0o644},
			{Typeflag: tar.TypeSymlink, Name: "link", Linkname: "pipe"},
			{Typeflag: tar.TypeSymlink, Name: "etc/group", Linkname: "../link"}}, node.ErrBadCommand},
		"a pipe in a linked folder, in whose place the engine creates a folder": {[]tar.Header{{Typeflag: tar.TypeFifo, Name: "other/passwd", Mode: 0o644},
			{Typeflag: tar.TypeSymlink, Name: "etc", Linkname: "/other"}}, nil},
		"a link to a file": {[]tar.Header{{Typeflag: tar.TypeReg, Name: "usr/group", Mode: 0o644},
			{Typeflag: tar.TypeSymlink, Name: "etc/group", Linkname: "/usr/group"}}, nil},
		"a link in a circle":    {[]tar.Header{{Typeflag: tar.TypeSymlink, Name: "etc/group", Linkname: "group"}}, nil},
		"a folder":              {[]tar.Header{{Typeflag: tar.TypeDir, Name: "etc/group", Mode: 0o755}}, nil},
		"an image without them": {nil, nil},
	} {
		t.Run(claim, func(t *testing.T) {
			t.Parallel()
			var layer bytes.Buffer
			w := tar.NewWriter(&layer)
			for _, h := range c.entries {
				if err := w.WriteHeader(&h); err != nil {
					t.Fatal(err)
				}
			}
			m := newMachine(t, "", docker.Options{})
			m.image = imageOf(t, &layer, w, func(*v1.ConfigFile) {})
			_, err := m.Create(t.Context(), m.spec())
			if !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

// The engine answers for a container that was removed meanwhile as for an absent file. An image without accounts and an
// unknown image are not the same.
func TestAccountsOfARemovedContainerAreNotEmpty(t *testing.T) {
	t.Parallel()
	absent := says(http.StatusNotFound, "No such container: c1")
	e, _ := archive{root: absent, below: absent}.open(t)
	if got, err := e.Accounts(t.Context(), "img:1"); err == nil {
		t.Errorf("the accounts are %+v, want an error", got)
	}
	e, _ = archive{below: says(http.StatusNotFound, "Could not find the file")}.open(t)
	if got, err := e.Accounts(t.Context(), "img:1"); err != nil || len(got.Passwd)+len(got.Group) > 0 {
		t.Errorf("an image without accounts: %+v, %v", got, err)
	}
}
