// Command image makes a container image from static programs, without a container engine and without a base
// image: a file that "docker load" reads. scripts/release.sh calls it.
//
// The one rule to know: the same programs, certificates and time give the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// user is the number of user and group of the programs: nonroot in images of several projects. No image has
// a file of users.
const user = 65532

// The places of certificates, which Go's crypto/x509 looks at on Linux, of the state and of the licences.
const (
	certificates = "etc/ssl/certs/ca-certificates.crt"
	state        = "var/lib/berth"
	documents    = "usr/share/doc/berth"
)

// options describe one image.
type options struct {
	tag      string // such as berth/berthd:1.2.3
	arch     string // as Go writes it
	version  string
	revision string // of the source
	made     time.Time
	certs    string   // file of trusted authorities; "": none
	texts    []string // licences and notices
	out      string
	programs []string // the first one is the entry point
}

func main() {
	var o options
	flag.StringVar(&o.tag, "tag", "", "name and tag of the image")
	flag.StringVar(&o.arch, "arch", "", "architecture: amd64 or arm64")
	flag.StringVar(&o.version, "version", "", "version")
	flag.StringVar(&o.revision, "revision", "", "commit of the source")
	flag.StringVar(&o.certs, "certs", "", "file with the authorities that the programs trust (PEM)")
	flag.StringVar(&o.out, "out", "", "file of the image")
	flag.Func("text", "file with licences; may be repeated", func(name string) error {
		o.texts = append(o.texts, name)
		return nil
	})
	epoch := flag.String("time", "", "time of all files, seconds since 1970")
	flag.Parse()
	o.programs = flag.Args()
	if err := run(o, *epoch); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// run writes the image. A failed call leaves no file.
func run(o options, epoch string) error {
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return fmt.Errorf("-time %q: write seconds since 1970", epoch)
	}
	o.made = time.Unix(seconds, 0).UTC()
	if o.tag == "" || o.arch == "" || o.out == "" || len(o.programs) == 0 {
		return errors.New("-tag, -arch, -out and at least one program are required")
	}
	tag, err := name.NewTag(o.tag)
	if err != nil {
		return err
	}
	img, err := o.image()
	if err != nil {
		return err
	}
	if err := tarball.WriteToFile(o.out, tag, img); err != nil {
		return errors.Join(err, os.Remove(o.out))
	}
	return nil
}

// image returns the image: a layer with certificates and folders, and one with the programs and their licences.
func (o options) image() (v1.Image, error) {
	base, err := o.base()
	if err != nil {
		return nil, err
	}
	programs, err := o.layer(func(w *tar.Writer) error {
		for _, p := range o.programs {
			if err := o.copyFile(w, p, path.Join("usr/bin", filepath.Base(p)), 0o755); err != nil {
				return err
			}
		}
		for _, t := range o.texts {
			if err := o.copyFile(w, t, path.Join(documents, filepath.Base(t)), 0o644); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(empty.Image, base, programs)
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(img, o.config(img))
}

// config returns the settings of the image for its layers.
func (o options) config(img v1.Image) *v1.ConfigFile {
	cfg, err := img.ConfigFile()
	if err != nil {
		panic(err) // the image is in memory, and its layers were just read
	}
	cfg = cfg.DeepCopy()
	cfg.Architecture, cfg.OS, cfg.Created = o.arch, "linux", v1.Time{Time: o.made}
	for i := range cfg.History {
		cfg.History[i] = v1.History{Created: v1.Time{Time: o.made}, CreatedBy: "berth release"}
	}
	cfg.Config = v1.Config{
		User:       fmt.Sprintf("%d:%d", user, user),
		Entrypoint: []string{"/usr/bin/" + filepath.Base(o.programs[0])},
		Env:        []string{"PATH=/usr/bin", "HOME=/" + state, "USER=berth"}, // static programs find no user elsewhere
		WorkingDir: "/" + state,
		Labels: map[string]string{
			"org.opencontainers.image.title":    filepath.Base(o.programs[0]),
			"org.opencontainers.image.version":  o.version,
			"org.opencontainers.image.revision": o.revision,
			"org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.created":  o.made.Format(time.RFC3339),
		},
	}
	return cfg
}

// base returns the layer that changes rarely: trusted authorities and the folders that programs expect.
func (o options) base() (v1.Layer, error) {
	return o.layer(func(w *tar.Writer) error {
		for _, d := range []struct {
			name  string
			mode  int64
			owner int
		}{
			{"etc/", 0o755, 0}, {"etc/berth/", 0o755, 0}, {"etc/ssl/", 0o755, 0}, {"etc/ssl/certs/", 0o755, 0},
			{"tmp/", 0o1777, 0}, {"usr/", 0o755, 0}, {"usr/bin/", 0o755, 0},
			{"usr/share/", 0o755, 0}, {"usr/share/doc/", 0o755, 0}, {documents + "/", 0o755, 0},
			{"var/", 0o755, 0}, {"var/lib/", 0o755, 0},
			{state + "/", 0o700, user},
		} {
			err := w.WriteHeader(&tar.Header{
				Typeflag: tar.TypeDir, Name: d.name, Mode: d.mode, Uid: d.owner, Gid: d.owner, ModTime: o.made,
			})
			if err != nil {
				return err
			}
		}
		if o.certs == "" {
			return nil
		}
		return o.copyFile(w, o.certs, certificates, 0o644)
	})
}

// layer returns a layer with the files that write writes.
func (o options) layer(write func(*tar.Writer) error) (v1.Layer, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := errors.Join(write(w), w.Close()); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.Bytes())), nil
	})
}

// copyFile writes a file of root to a layer.
func (o options) copyFile(w *tar.Writer, from, to string, mode int64) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Name: to, Mode: mode, Size: int64(len(b)), ModTime: o.made}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}
