package archive_test

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"

	"berth/internal/lib/archive"
)

// plainTar returns a tar of entries without content, apart from files, which have three bytes.
func plainTar(f *testing.F, headers ...tar.Header) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		h.Mode = 0o644
		if h.Typeflag == tar.TypeReg {
			h.Size = 3
		}
		if err := w.WriteHeader(&h); err != nil {
			f.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write([]byte("abc")); err != nil {
				f.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	return b.Bytes()
}

// FuzzArchive: a hostile archive is refused as such, or it keeps its limits, unpacks to the
// entries that Read has described.
func FuzzArchive(f *testing.F) {
	f.Add(true, plainTar(f, tar.Header{Name: "d/", Typeflag: tar.TypeDir}, tar.Header{Name: "d/a", Typeflag: tar.TypeReg}))
	f.Add(true, plainTar(f, tar.Header{Name: "a", Typeflag: tar.TypeReg}, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "a"}))
	f.Add(true, plainTar(f, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../../etc"}))
	f.Add(true, plainTar(f, tar.Header{Name: "../a", Typeflag: tar.TypeReg}))
	f.Add(true, plainTar(f, tar.Header{Name: "A", Typeflag: tar.TypeReg}, tar.Header{Name: "a", Typeflag: tar.TypeReg}))
	f.Add(true, []byte{})
	f.Add(false, []byte{0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x00, 0x01, 0x00, 0x00})
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(false, z.EncodeAll(make([]byte, 4<<20), nil)) // much from little
	limits := archive.Limits{Bytes: 64 << 10, Files: 50}
	f.Fuzz(func(t *testing.T, plain bool, data []byte) {
		if plain {
			data = z.EncodeAll(data, nil)
		}
		type seen struct {
			kind archive.Kind
			size int64
		}
		entries, bytesSeen := map[string]seen{}, int64(0)
		s, err := archive.Read(bytes.NewReader(data), limits, func(e archive.Entry, in io.Reader) error {
			if _, twice := entries[e.Name]; twice && e.Kind != archive.Folder {
				t.Errorf("%q is visited twice", e.Name)
			}
			if !filepath.IsLocal(e.Name) || filepath.Clean(e.Name) != e.Name {
				t.Errorf("an entry is at %q", e.Name)
			}
			entries[e.Name] = seen{e.Kind, e.Size}
			bytesSeen += e.Size
			return nil
		})
		if bytesSeen > limits.Bytes || len(entries) > limits.Files {
			t.Errorf("visited %d entries with %d bytes, beyond the limits", len(entries), bytesSeen)
		}
		root, openErr := os.OpenRoot(t.TempDir())
		if openErr != nil {
			t.Fatal(openErr)
		}
		defer root.Close()
		unpacked, unpackErr := archive.Unpack(bytes.NewReader(data), root, limits)
		if err != nil {
			if !archive.IsRefused(err) || unpackErr == nil {
				t.Errorf("not refused as an archive: %v; unpacked: %v", err, unpackErr)
			}
			return
		}
		if unpackErr != nil || unpacked != s || s.Bytes != bytesSeen {
			t.Fatalf("read as %+v with %d bytes seen, unpacked as %+v, %v", s, bytesSeen, unpacked, unpackErr)
		}
		for name, e := range entries {
			info, err := root.Lstat(name)
			if err != nil || info.IsDir() != (e.kind == archive.Folder) || e.kind == archive.File && info.Size() != e.size {
				t.Errorf("%q unpacks to %v, %v", name, info, err)
			}
		}
	})
}

// FuzzRepack: of the tar that an engine sends of a container's files, Repack refuses each part that is
// forbidden, or writes an archive that Read describes by the same summary.
func FuzzRepack(f *testing.F) {
	f.Add(plainTar(f, tar.Header{Name: "out/", Typeflag: tar.TypeDir}, tar.Header{Name: "out/a", Typeflag: tar.TypeReg},
		tar.Header{Name: "out/b", Typeflag: tar.TypeLink, Linkname: "out/a"}))
	f.Add(plainTar(f, tar.Header{Name: "a", Typeflag: tar.TypeReg}, tar.Header{Name: "d/", Typeflag: tar.TypeDir}))
	f.Add(plainTar(f, tar.Header{Name: "out/", Typeflag: tar.TypeDir}, tar.Header{Name: "out/.berth/x", Typeflag: tar.TypeReg},
		tar.Header{Name: "out/l", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}))
	f.Add(plainTar(f, tar.Header{Name: "out", Typeflag: tar.TypeDir}, tar.Header{Name: "../a", Typeflag: tar.TypeReg}))
	limits := archive.Limits{Bytes: 64 << 10, Files: 50}
	f.Fuzz(func(t *testing.T, data []byte) {
		var out bytes.Buffer
		s, err := archive.Repack(bytes.NewReader(data), &out, limits)
		if err != nil {
			return
		}
		if s.Bytes > limits.Bytes || s.Files > limits.Files {
			t.Errorf("%+v is beyond the limits", s)
		}
		again, err := archive.Read(bytes.NewReader(out.Bytes()), limits, nil)
		if err != nil || again != s {
			t.Errorf("written as %+v, read as %+v, %v", s, again, err)
		}
	})
}
