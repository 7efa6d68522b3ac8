package archive

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"berth"
)

// Measure computes the summary of a folder's archive and discards the archive.
func Measure(ctx context.Context, folder string, l Limits) (Summary, error) {
	return pack(ctx, io.Discard, folder, l)
}

// Pack writes a folder as an archive. It excludes .git and all entries matched by
// .gitignore and .berthignore. The same content gives the same archive: entries are in
// order, and have neither owner nor time.
func Pack(ctx context.Context, to io.Writer, folder string, l Limits) (Summary, error) {
	z, err := zstd.NewWriter(to, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return Summary{}, fmt.Errorf("pack %s: %w", folder, err)
	}
	sum, err := pack(ctx, z, folder, l)
	if err != nil {
		return sum, err // without an end mark, so that the archive does not look whole
	}
	if err := z.Close(); err != nil {
		return sum, fmt.Errorf("pack %s: %w", folder, err)
	}
	return sum, nil
}

// pack writes and hashes the uncompressed tar. The address is the hash of the tar, not of
// its compressed form, so that another version of the compressor gives the same address.
func pack(ctx context.Context, to io.Writer, folder string, l Limits) (Summary, error) {
	root, err := os.OpenRoot(folder)
	if err != nil {
		return Summary{}, err
	}
	defer root.Close()
	list, err := list(ctx, root, folder, l)
	if err != nil {
		return Summary{}, fmt.Errorf("pack %s: %w", folder, err)
	}
	hash := sha256.New()
	t := tar.NewWriter(io.MultiWriter(to, hash))
	// The receiver's rules apply here too, so that a forbidden entry fails before the upload.
	rules := newRules(l)
	for _, e := range list {
		if err := ctx.Err(); err != nil {
			return Summary{}, err
		}
		if err := rules.entry(e); err != nil {
			return Summary{}, fmt.Errorf("pack %s: %w", folder, err)
		}
		if err := writeEntry(t, root, e); err != nil {
			return Summary{}, fmt.Errorf("pack %s: %w", path.Join(folder, e.Name), err)
		}
	}
	if err := rules.end(); err != nil {
		return Summary{}, fmt.Errorf("pack %s: %w", folder, err)
	}
	if err := t.Close(); err != nil {
		return Summary{}, fmt.Errorf("pack %s: %w", folder, err)
	}
	return Summary{Address: berth.AddressOf(hash.Sum(nil)), Files: len(list), Bytes: rules.bytes}, nil
}

// list returns the entries of a folder to pack, in the order of a walk by name. Sizes are those
// of the walk; writeEntry fails if a file has changed since.
func list(ctx context.Context, root *os.Root, folder string, l Limits) ([]Entry, error) {
	ignore, err := openIgnore(root, folder)
	if err != nil {
		return nil, err
	}
	var all []Entry
	bytes := int64(0)
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || ctx.Err() != nil {
			return cmp.Or(err, ctx.Err())
		}
		if name == "." {
			return ignore.enter(name)
		}
		if ignore.match(name, d.IsDir()) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		e := Entry{Name: name}
		switch {
		case d.IsDir():
			err = ignore.enter(name)
		case d.Type()&fs.ModeSymlink != 0:
			e.Kind = Link
			e.Target, err = root.Readlink(name)
			e.Target = filepath.ToSlash(e.Target)
		case d.Type().IsRegular():
			e.Kind = File
			var info fs.FileInfo
			if info, err = d.Info(); err == nil {
				e.Size, e.Exec = info.Size(), info.Mode()&0o111 != 0
			}
		default:
			return refused("%q is a %s: name it in .berthignore", name, kindOf(d.Type()))
		}
		bytes += e.Size
		all = append(all, e)
		return err
	})
	// The limits apply before any content is read, and the error can name the largest entries.
	if err == nil && (bytes > l.Bytes || len(all) > l.Files) {
		err = tooMuch(all, bytes, l)
	}
	return all, err
}

// kindOf names a file type that archives cannot hold.
func kindOf(m fs.FileMode) string {
	switch {
	case m&fs.ModeNamedPipe != 0:
		return "pipe"
	case m&fs.ModeSocket != 0:
		return "socket"
	default:
		return "device"
	}
}

// tooMuch returns the error for a folder beyond the limits. It names the three top-level entries
// with the most bytes, or with the most files if their number is the problem.
func tooMuch(all []Entry, bytes int64, l Limits) error {
	type top struct {
		name  string
		bytes int64
		files int
	}
	var tops []top
	for _, e := range all { // entries below one folder are adjacent
		name, _, below := strings.Cut(e.Name, "/")
		if len(tops) == 0 || tops[len(tops)-1].name != name {
			tops = append(tops, top{name: name})
		}
		t := &tops[len(tops)-1]
		t.bytes += e.Size
		if below || e.Kind != Folder {
			t.files++
		}
	}
	// The part that counts most is the one that breaks the limit.
	slices.SortStableFunc(tops, func(a, b top) int {
		if bytes > l.Bytes {
			return cmp.Compare(b.bytes, a.bytes)
		}
		return cmp.Compare(b.files, a.files)
	})
	most := make([]string, 0, 3)
	for _, t := range tops[:min(3, len(tops))] {
		most = append(most, fmt.Sprintf("%s (%d files, %s)", t.name, t.files, berth.BytesText(t.bytes)))
	}
	return refused("%d files of %s are more than the %d of %s that are allowed; the most are in %s: name what is "+
		"no code in .berthignore",
		len(all), berth.BytesText(bytes), l.Files, berth.BytesText(l.Bytes), strings.Join(most, ", "))
}

// writeEntry writes one entry without owner, time and exact mode: equal content must give equal
// bytes on every machine, under every umask.
func writeEntry(t *tar.Writer, root *os.Root, e Entry) error {
	h := &tar.Header{Name: e.Name, Mode: 0o644, ModTime: time.Unix(0, 0), Format: tar.FormatPAX,
		Typeflag: tar.TypeReg, Size: e.Size}
	switch e.Kind {
	case Folder:
		h.Typeflag, h.Name, h.Mode = tar.TypeDir, e.Name+"/", 0o755
	case Link:
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.Target, 0o777
	case File:
		if e.Exec {
			h.Mode = 0o755
		}
	}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	if e.Kind != File {
		return nil
	}
	// The header has already promised the size. A file that changed since would break the archive,
	// or mix two versions of its content.
	f, err := root.Open(e.Name)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.Copy(t, f)
	if errors.Is(err, tar.ErrWriteTooLong) || err == nil && n != e.Size {
		return errors.New("it changed while it was packed: try again when nothing writes there")
	}
	return err
}
