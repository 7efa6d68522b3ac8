package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
)

// hashed reads a file from its beginning and hashes the bytes read so far. A redirect makes the
// client seek back and read again.
type hashed struct {
	f    *os.File
	size int64
	read int64
	hash interface {
		io.Writer
		Sum([]byte) []byte
		Reset()
	}
	err    error                 // of Read and Seek
	failed atomic.Pointer[error] // of sections
}

// Read fails if the file is now shorter than at the start, and ignores bytes that were appended
// since: the object's size is announced before its content.
func (h *hashed) Read(p []byte) (int, error) {
	if h.read >= h.size {
		return 0, io.EOF
	}
	n, err := h.f.Read(p[:min(int64(len(p)), h.size-h.read)])
	h.read += int64(n)
	_, _ = h.hash.Write(p[:n])
	if errors.Is(err, io.EOF) && h.read < h.size {
		err = fmt.Errorf("%s became shorter while it was stored: %w", h.f.Name(), io.ErrUnexpectedEOF)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		h.err = err
	}
	return n, err
}

// sum reads the whole file and returns its SHA-256 in hexadecimal digits, for a transfer that announces the hash.
func (h *hashed) sum() (string, error) {
	if _, err := h.Seek(0, io.SeekStart); err != nil {
		h.err = err
		return "", err
	}
	// Without the struct, io.Discard would read with a small buffer of its own.
	if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, h, make([]byte, 256<<10)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.hash.Sum(nil)), nil
}

// sums reads the whole file as sum does, and returns the SHA-256 of each part of a length as well.
func (h *hashed) sums(part int64) (parts [][sha256.Size]byte, err error) {
	if _, err := h.Seek(0, io.SeekStart); err != nil {
		h.err = err
		return nil, err
	}
	buffer := make([]byte, 256<<10)
	for left := h.size; left > 0; left -= part {
		one := sha256.New()
		_, err := io.CopyBuffer(struct{ io.Writer }{one}, io.LimitReader(h, min(part, left)), buffer)
		if err != nil {
			return nil, err
		}
		parts = append(parts, [sha256.Size]byte(one.Sum(nil)))
	}
	return parts, nil
}

// section returns some bytes of the file. It leaves an error of the file in h, also if the file became shorter.
func (h *hashed) section(at, size int64) io.Reader {
	return &fileSection{of: h, left: size, r: io.NewSectionReader(h.f, at, size)}
}

// fileSection is a part of a hashed file. Several sections may be read at once.
type fileSection struct {
	of   *hashed
	left int64
	r    io.Reader
}

// Read reads and notes an error of the file.
func (s *fileSection) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.left -= int64(n)
	if errors.Is(err, io.EOF) && s.left > 0 {
		err = fmt.Errorf("%s became shorter while it was stored: %w", s.of.f.Name(), io.ErrUnexpectedEOF)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		s.of.failed.Store(&err)
	}
	return n, err
}

// fault returns the error of the file that any read has met, or nil.
func (h *hashed) fault() error {
	if err := h.failed.Load(); err != nil {
		return *err
	}
	return h.err
}

// Seek restarts the hash, therefore offset must be the beginning of the file.
func (h *hashed) Seek(offset int64, whence int) (int64, error) {
	h.hash.Reset()
	h.read = 0
	return h.f.Seek(offset, whence)
}
