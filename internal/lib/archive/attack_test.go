package archive_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"

	"berth/internal/lib/archive"
)

// evil is an entry of an archive that no honest packer makes.
type evil struct {
	name, target string
	kind         byte
	mode         int64
	size         int64 // announced; the content is as many zeros, at most a few
}

func compressed(t testing.TB, parts ...[]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	for _, p := range parts { // each a frame of its own, as the format allows
		z, err := zstd.NewWriter(&b)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := z.Write(p); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func tarOf(t testing.TB, entries ...evil) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if e.kind == 0 {
			e.kind = tar.TypeReg
		}
		if e.mode == 0 {
			e.mode = 0o644
		}
		h := &tar.Header{Name: e.name, Linkname: e.target, Typeflag: e.kind, Mode: e.mode, Size: e.size}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if e.size > 1<<20 {
			return b.Bytes() // its content follows, or not
		}
		if _, err := w.Write(make([]byte, e.size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestArchivesThatAttackAreRefused(t *testing.T) {
	t.Parallel()
	link := func(name, target string) evil { return evil{name: name, target: target, kind: tar.TypeSymlink} }
	deep := strings.Repeat("d/", 70) + "x"
	for _, c := range []struct {
		name    string
		entries []evil
		says    string
	}{
		{"two dots", []evil{{name: "../canary"}}, "leads out of the folder"},
		{"two dots within", []evil{{name: "a/../../canary"}}, "leads out of the folder"},
		{"absolute", []evil{{name: "/tmp/canary"}}, "absolute"},
		{"through a link", []evil{link("a", "b"), {name: "a/canary"}}, "below the link"},
		{"through a link made later", []evil{{name: "a/x"}, link("a", "..")}, "twice"},
		{"a link out", []evil{link("a", "../..")}, "leads out"},
		{"an absolute link", []evil{link("a", "/etc")}, "relative targets"},
		{"two chained links", []evil{link("d/e/top", "../.."), link("out", "d/e/top/../..")}, "leads out"},
		{"links to nothing but themselves", []evil{link("a", "a/x")}, "circle"},
		{"a hard link out", []evil{{name: "a", target: "/etc/passwd", kind: tar.TypeLink}}, "hard link"},
		{"a hard link", []evil{{name: "a"}, {name: "b", target: "a", kind: tar.TypeLink}}, "hard link"},
		{"a character device", []evil{{name: "null", kind: tar.TypeChar}}, "device"},
		{"a block device", []evil{{name: "sda", kind: tar.TypeBlock}}, "device"},
		{"a pipe", []evil{{name: "p", kind: tar.TypeFifo}}, "pipe"},
		{"setuid", []evil{{name: "su", mode: 0o4755}}, "setuid"},
		{"setgid", []evil{{name: "d", kind: tar.TypeDir, mode: 0o2755}}, "setgid"},
		{"the same name twice", []evil{{name: "a"}, {name: "a"}}, "twice"},
		{"a folder over a file", []evil{{name: "a"}, {name: "a", kind: tar.TypeDir}}, "twice"},
		{"below a file", []evil{{name: "a"}, {name: "a/b"}}, "below the file"},
		{"a link that differs in case", []evil{{name: "Lib/x"}, link("lib", "etc")}, "only in case"},
		{"a file below a link of another case", []evil{link("Lib", "etc"), {name: "lib/canary"}}, "only in case"},
		{"a long name", []evil{{name: strings.Repeat("x", 300)}}, "300 bytes"},
		{"a long path", []evil{{name: strings.Repeat("abcdefgh/", 150) + "x"}}, "names have"},
		{"deep folders", []evil{{name: deep}}, "folders deep"},
		{"not simple", []evil{{name: "a//b"}}, "simplest form"},
		{"Berth's own", []evil{link(".berth", "x")}, "Berth's own"},
		{"Berth's own in capitals", []evil{{name: ".BERTH/progress"}}, "Berth's own"},
		{"a size that is not there", []evil{{name: "a", size: 2 << 20}}, "cut off or damaged"},
		{"more than the limit", []evil{{name: "a", size: 10 << 30}}, "unpacks to more than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			parent := t.TempDir()
			dir := filepath.Join(parent, "in", "to")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			to, err := os.OpenRoot(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer to.Close()
			text := compressed(t, tarOf(t, c.entries...))
			if _, err := archive.Read(bytes.NewReader(text), archive.Default, nil); !archive.IsRefused(err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("read: %v", err)
			}
			if _, err := archive.Unpack(bytes.NewReader(text), to, archive.Default); !archive.IsRefused(err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("unpacked: %v", err)
			}
			if err := os.RemoveAll(filepath.Join(parent, "in")); err != nil {
				t.Fatal(err)
			}
			if left := tree(t, parent); len(left) > 0 {
				t.Errorf("it left %v outside", left)
			}
			if _, err := os.Lstat("/tmp/canary"); err == nil {
				t.Error("it wrote /tmp/canary")
			}
		})
	}
}

// counter counts the bytes read from a reader.
type counter struct {
	io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}

// Bombs are left alone at the limit, however they are put: 10 GiB of zeros
// take 160 frames of the same few kilobytes.
func TestBombsAreStoppedAtTheLimit(t *testing.T) {
	t.Parallel()
	zeros := compressed(t, make([]byte, 64<<20))
	many := func(head []byte) io.Reader {
		parts := []io.Reader{bytes.NewReader(compressed(t, head))}
		for range 160 {
			parts = append(parts, bytes.NewReader(zeros))
		}
		return io.MultiReader(parts...)
	}
	small := archive.Limits{Bytes: 8 << 20, Files: 100}
	for name, c := range map[string]struct {
		bomb io.Reader
		says string
	}{
		"one file":          {many(tarOf(t, evil{name: "zeros", size: 10 << 30})), "unpacks to more than 8.0 MiB"},
		"after the end":     {many(tarOf(t, evil{name: "a"})), "goes on after its end"},
		"nothing but zeros": {many(nil), "goes on after its end"},
		"many files":        {bytes.NewReader(compressed(t, tarOf(t, files(200)...))), "more than 100 entries"},
		"files that add up": {bytes.NewReader(compressed(t, tarOf(t, sized(9, 1<<20)...))), "unpacks to more than 8.0 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to, dir := root(t)
			in := &counter{Reader: c.bomb}
			_, err := archive.Unpack(in, to, small)
			if !archive.IsRefused(err) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
			if in.n > 256<<10 {
				t.Errorf("it read %d bytes of the bomb", in.n)
			}
			total := 0
			for _, content := range tree(t, dir) {
				total += len(content)
			}
			if total > 8<<20 {
				t.Errorf("it wrote %d bytes", total)
			}
		})
	}
}

func files(n int) []evil { return sized(n, 0) }

func sized(n int, size int64) []evil {
	var all []evil
	for i := range n {
		all = append(all, evil{name: fmt.Sprint("f", i), size: size})
	}
	return all
}

func TestWhatIsNoArchiveIsRefusedAndABrokenLineIsNot(t *testing.T) {
	t.Parallel()
	good := compressed(t, tarOf(t, evil{name: "a", size: 1000}, evil{name: "b", size: 1000}))
	for name, text := range map[string][]byte{
		"nothing": nil, "text": []byte("hello"), "a tar alone": tarOf(t, evil{name: "a"}), "half": good[:len(good)/2],
		"something after": append(bytes.Clone(good), "more"...), "no tar": compressed(t, []byte(strings.Repeat("x", 2000))),
		"an empty frame": compressed(t, nil), "a second tar": compressed(t, tarOf(t, evil{name: "a"}), tarOf(t, evil{name: "b"})),
	} {
		if _, err := archive.Read(bytes.NewReader(text), archive.Default, nil); !archive.IsRefused(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	cut := errors.New("the line is cut")
	broken := io.MultiReader(bytes.NewReader(good[:len(good)/2]), iotest.ErrReader(cut))
	if _, err := archive.Read(broken, archive.Default, nil); archive.IsRefused(err) || !errors.Is(err, cut) {
		t.Errorf("a broken line: %v", err)
	}
	full := errors.New("disk is full")
	_, err := archive.Read(bytes.NewReader(good), archive.Default, func(archive.Entry, io.Reader) error { return full })
	if archive.IsRefused(err) || !errors.Is(err, full) {
		t.Errorf("a visitor that fails: %v", err)
	}
	if sum, err := archive.Read(iotest.OneByteReader(bytes.NewReader(good)), archive.Default, nil); err != nil || sum.Files != 2 || sum.Bytes != 2000 {
		t.Errorf("byte by byte: %+v, %v", sum, err)
	}
}

// Archives of GNU tar and git archive are accepted: a name may begin with ./, the
// folder itself may be listed, and a comment may come first.
func TestArchivesOfOtherProgramsAreTaken(t *testing.T) {
	t.Parallel()
	text := compressed(t, tarOf(t, evil{name: "./", kind: tar.TypeDir, mode: 0o755}, evil{name: "./a", size: 3}, evil{name: "./d/", kind: tar.TypeDir, mode: 0o755}, evil{name: "./d/b", mode: 0o755}))
	to, dir := root(t)
	if _, err := archive.Unpack(bytes.NewReader(text), to, archive.Default); err != nil {
		t.Fatal(err)
	}
	if got := tree(t, dir); len(got) != 3 || got["a"] != "\x00\x00\x00" {
		t.Errorf("unpacked %q", got)
	}
}
