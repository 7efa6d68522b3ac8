package archive

import (
	"archive/tar"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"

	"berth"
)

// Summary describes the content of an archive.
type Summary struct {
	Address berth.Address
	Files   int // entries, folders and links included
	Bytes   int64
}

// Bounds on the work that a hostile archive can cause.
const (
	maxWindow   = 32 << 20 // memory that one archive may ask for; zstd -19 needs 8 MiB
	perEntry    = 4 << 10  // of the tar, in addition to the content
	maxTrailing = 1 << 20  // zeros after the end, as tar writes them
)

// Read validates an archive to its last byte and calls visit for each entry, with the content of
// a file as the reader. visit may be nil. Reading stops at the first entry that breaks a rule or
// exceeds a limit. The archive may be anything: until Read returns without an error, no visited
// entry is known to belong to a complete archive.
func Read(in io.Reader, l Limits, visit func(Entry, io.Reader) error) (Summary, error) {
	// One goroutine and little memory: a server reads many uploads at once, and the sender chooses
	// how much memory the decoder may ask for.
	source := &source{r: in}
	z, err := zstd.NewReader(source, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow),
		zstd.WithDecoderLowmem(true))
	if err != nil {
		return Summary{}, fmt.Errorf("open archive: %w", err)
	}
	defer z.Close()
	hash := sha256.New()
	// The largest tar within the limits, with all headers: anything longer is refused unread.
	plain := &bounded{r: io.TeeReader(z, hash), left: l.Bytes + int64(l.Files)*perEntry + maxTrailing}
	rules := newRules(l)
	err = readTar(plain, rules, visit)
	if err == nil {
		err = rules.end()
	}
	// The order matters: a failed transfer and an exceeded bound both look like damage to the tar
	// reader, whose error would hide them.
	switch {
	case err == nil && plain.read == 0:
		err = refused("it is empty")
	case err == nil:
		return Summary{Address: berth.AddressOf(hash.Sum(nil)), Files: len(rules.kinds), Bytes: rules.bytes}, nil
	case source.err != nil: // an error of the transfer, not of the content
		return Summary{}, source.err
	case plain.over:
		err = refused("unpacks to more than %s", berth.BytesText(l.Bytes))
	}
	return Summary{}, err
}

// visitError is an error returned by the visitor. Its type keeps it apart from errors of the
// archive, which carry the slug invalid_archive.
type visitError struct{ err error }

// Error returns the text of the visitor's error.
func (v visitError) Error() string { return v.err.Error() }

// Unwrap returns the visitor's error.
func (v visitError) Unwrap() error { return v.err }

// readTar validates and visits the entries of an uncompressed tar. An error of visit that follows
// from damaged content counts as damage.
func readTar(in io.Reader, rules *rules, visit func(Entry, io.Reader) error) error {
	t := tar.NewReader(in)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return trailing(in)
		}
		if err != nil {
			return refused("is no tar compressed by zstd, or damaged: %v", err)
		}
		e, ok, err := rules.header(h)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		content := &content{r: t}
		if visit != nil {
			if err := visit(e, content); err != nil && content.err == nil {
				return visitError{err}
			}
		}
		// The part that the visitor did not read is read for the hash.
		_, err = io.Copy(io.Discard, content)
		if err != nil {
			return refused("%q is cut off or damaged: %v", e.Name, err)
		}
		// The limits count the declared size, so the content must have that size.
		if e.Kind == File && content.n != e.Size {
			return refused("%q has %d bytes instead of %d", e.Name, content.n, e.Size)
		}
	}
}

// trailing reads the padding after the end of the tar, which must be a bounded number of zeros:
// other bytes would be content that no rule has seen.
func trailing(in io.Reader) error {
	buf := make([]byte, 32<<10)
	for total := 0; ; {
		n, err := in.Read(buf)
		for _, b := range buf[:n] {
			if b != 0 {
				return refused("goes on after its end")
			}
		}
		if total += n; total > maxTrailing {
			return refused("goes on after its end, with zeros")
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return refused("is damaged after its end: %v", err)
		}
	}
}

// source keeps the error of the underlying reader. A failed transfer must not look like a damaged
// archive: the transfer is retried, the archive is not.
type source struct {
	r   io.Reader
	err error
}

// Read keeps the first error other than the end.
func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// bounded fails with errOver after the given number of bytes.
type bounded struct {
	r    io.Reader
	left int64
	read int64
	over bool
}

// errOver is the error of a tar beyond its bound. The tar reader may wrap or replace it, so
// bounded also sets over.
var errOver = errors.New("longer than allowed")

// Read returns errOver only if a further byte exists: a tar of exactly the bound is allowed.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		// Its end may be just here.
		var one [1]byte
		if n, err := b.r.Read(one[:]); n == 0 {
			return 0, err
		}
		b.over = true
		return 0, errOver
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	b.read += int64(n)
	return n, err
}

// content reads one file's content, counts its bytes and keeps the error of a failed read.
type content struct {
	r   io.Reader
	n   int64
	err error
}

// Read counts and keeps the first error other than the end.
func (c *content) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}
