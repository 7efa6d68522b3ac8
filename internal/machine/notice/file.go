package notice

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"berth/wire"
)

// File is a source that reads the path of a file. The file has the form of an EC2 notice:
//
//	{"action": "terminate", "time": "2026-11-26T12:31:04Z"}
//
// Without the file there is no notice. A writer should rename a complete file into place: a part of the
// document is malformed.
type File string

// Look implements Reader.
func (f File) Look(context.Context) (State, error) {
	b, err := f.read()
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, nil
	}
	if err != nil {
		return State{}, err
	}
	end, err := parseEnd(wire.NoticeFile, b, time.Now())
	return State{End: end}, err
}

// read returns the content of a regular file. Opening a pipe must not block.
func (f File) read() ([]byte, error) {
	file, err := os.OpenFile(string(f), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is not a regular file", ErrMalformed, f)
	}
	return bounded(file, string(f))
}

// bounded reads an answer of at most maxAnswer bytes.
func bounded(r io.Reader, from string) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxAnswer+1))
	if err == nil && len(b) > maxAnswer {
		err = fmt.Errorf("%w: %s is longer than %d bytes", ErrMalformed, from, maxAnswer)
	}
	return b, err
}
