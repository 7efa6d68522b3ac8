package archive

import (
	"archive/tar"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"berth"
)

// Output bounds one output of a job.
var Output = Limits{Bytes: 128 << 30, Files: 200_000}

// Repack converts the tar that an engine creates from a path in a container into an archive. A
// folder becomes an archive of its entries, a file an archive of that file. Owners, times and
// Berth's own folder in /workspace are dropped; further hard links of a file become symbolic
// links to the first.
func Repack(in io.Reader, to io.Writer, l Limits) (Summary, error) {
	z, err := zstd.NewWriter(to, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		return Summary{}, err
	}
	hash := sha256.New()
	out := tar.NewWriter(io.MultiWriter(z, hash))
	rules := newRules(l)
	if err := repack(tar.NewReader(in), out, rules); err != nil {
		return Summary{}, err // without an end, which would make it look whole
	}
	if err := errors.Join(rules.end(), out.Close(), z.Close()); err != nil {
		return Summary{}, err
	}
	return Summary{Address: berth.AddressOf(hash.Sum(nil)), Files: len(rules.kinds), Bytes: rules.bytes}, nil
}

// repack copies the entries from in to out, validated by rules. Names lose the folder's own name,
// which the engine puts before each of them.
func repack(in *tar.Reader, out *tar.Writer, rules *rules) error {
	top := "" // the folder's own name, which every other begins with
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read what the engine sends: %w", err)
		}
		name := path.Clean(h.Name)
		if top == "" && h.Typeflag == tar.TypeDir {
			top = name
			continue
		}
		clean := &tar.Header{Name: name, Linkname: h.Linkname, Typeflag: h.Typeflag, Size: h.Size,
			Mode: h.Mode & 0o777, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
		// A container controls the names in its own file system: a name outside the copied
		// folder, or a hard link to one, is refused like any other forbidden content.
		if top != "" {
			var below bool
			if clean.Name, below = strings.CutPrefix(name, top+"/"); !below {
				return refused("%q does not lie in %q", name, top)
			}
			if first, _, _ := strings.Cut(clean.Name, "/"); first == own {
				continue
			}
		}
		// Archives have no hard links. The engine sends the first name of a file as the file and
		// each further one as a link to it, by names that both begin with the folder's own.
		if h.Typeflag == tar.TypeLink {
			target, below := strings.CutPrefix(path.Clean(h.Linkname), top+"/")
			if top == "" || !below {
				return refused("%q is another name of %q, which lies elsewhere", name, h.Linkname)
			}
			clean.Typeflag, clean.Size = tar.TypeSymlink, 0
			clean.Linkname = strings.Repeat("../", strings.Count(clean.Name, "/")) + target
		}
		e, ok, err := rules.header(clean)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		if e.Kind == Folder {
			clean.Name += "/"
		}
		if err := out.WriteHeader(clean); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
}
