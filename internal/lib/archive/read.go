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

const (
	maxWindow   = 32 << 20 // memory that one archive may ask for; zstd -19 needs 8 MiB
	perEntry    = 4 << 10  // of the tar, in addition to the content
	maxTrailing = 1 << 20  // zeros after the end, as tar writes them
)

// Read judges an archive to its last byte and hands each entry to visit, which
// may be nil: the content of a file comes as the reader. Reading stops at the
// first thing that is not allowed, or beyond a limit.
func Read(in io.Reader, l Limits, visit func(Entry, io.Reader) error) (Summary, error) {
	source := &source{r: in}
	z, err := zstd.NewReader(source, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow),
		zstd.WithDecoderLowmem(true))
	if err != nil {
		return Summary{}, fmt.Errorf("open archive: %w", err)
	}
	defer z.Close()
	hash := sha256.New()
	// However it is put, so much is more than the limits allow.
	plain := &bounded{r: io.TeeReader(z, hash), left: l.Bytes + int64(l.Files)*perEntry + maxTrailing}
	rules := newRules(l)
	err = readTar(plain, rules, visit)
	if err == nil {
		err = rules.end()
	}
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

// visitError is an error of the visitor's, which is none of the archive's.
type visitError struct{ err error }

func (v visitError) Error() string { return v.err.Error() }
func (v visitError) Unwrap() error { return v.err }

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
		if e.Kind == File && content.n != e.Size {
			return refused("%q has %d bytes instead of %d", e.Name, content.n, e.Size)
		}
	}
}

// trailing reads the bytes after the end: a bounded number of zeros.
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

// source remembers that the bytes did not come.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// bounded ends with an error after so many bytes.
type bounded struct {
	r    io.Reader
	left int64
	read int64
	over bool
}

var errOver = errors.New("longer than allowed")

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

// content is a file's, and remembers whether it could be read.
type content struct {
	r   io.Reader
	n   int64
	err error
}

func (c *content) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}
