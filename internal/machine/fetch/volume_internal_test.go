package fetch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth"
	"berth/spec"
)

func newVolume(t *testing.T) *volume {
	t.Helper()
	return &volume{site: site{dir: t.TempDir()}, name: "datasets", most: 10, calls: make(chan struct{}, 2)}
}

// The last bytes come only when it is sure that the first are of the same
// content.
func TestAFileThatChangesUnderItsReaderIsNoInput(t *testing.T) {
	t.Parallel()
	for what, change := range map[string]func(f *os.File) error{
		"nothing": func(*os.File) error { return nil },
		"rewritten": func(f *os.File) error {
			_, err := f.WriteAt([]byte("y"), 0)
			return err
		},
		"cut":         func(f *os.File) error { return f.Truncate(chunk) },
		"longer":      func(f *os.File) error { return f.Truncate(3 * chunk) },
		"other times": func(f *os.File) error { return os.Chtimes(f.Name(), time.Time{}, time.Unix(1, 0)) },
	} {
		v := newVolume(t)
		name := filepath.Join(v.dir, "a")
		if err := os.WriteFile(name, bytes.Repeat([]byte("x"), 2*chunk), 0o644); err != nil {
			t.Fatal(err)
		}
		o, err := v.one(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		body, err := v.open(t.Context(), o, 10)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(body, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(change(f), f.Close()); err != nil {
			t.Fatal(err)
		}
		rest, err := io.ReadAll(body)
		_, changed := errors.AsType[Changed](err)
		if whole := err == nil && len(rest) == 2*chunk-20; whole != (what == "nothing") || changed == whole {
			t.Errorf("%s: %d bytes, %v", what, len(rest), err)
		}
		_ = body.Close()
	}
}

// Within one tick of the file system's clock two contents may have one version:
// the first byte is read when it is over.
func TestAFileIsReadWhenItsVersionIsItsOwn(t *testing.T) {
	t.Parallel()
	v := newVolume(t)
	if err := os.WriteFile(filepath.Join(v.dir, "a"), []byte("a"), 0o644); err != nil {
		t.Fatal(err)
	}
	o, err := v.one(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	o.settled = time.Now().Add(300 * time.Millisecond)
	body, err := v.open(t.Context(), o, 0)
	if err != nil || time.Now().Before(o.settled) {
		t.Fatalf("opened at %s, before %s: %v", time.Now(), o.settled, err)
	}
	_ = body.Close()
	o.settled = time.Now().Add(time.Hour) // a wrong clock
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := v.open(ctx, o, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("a job that is canceled waits: %v", err)
	}
	for at, want := range map[time.Time]time.Duration{time.Unix(5, 0): coarseTick, time.Unix(5, 1): tick} {
		if got := (state{ctime: at}).settled().Sub(at); got != want {
			t.Errorf("changed at %s it settles after %s, want %s", at, got, want)
		}
	}
}

// A dead file server blocks calls without end, and they cannot be canceled.
func TestNobodyWaitsForADeadFileServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := newVolume(t)
		v.calls = make(chan struct{}, 2)
		dead := make(chan struct{})
		var dropped atomic.Int64
		ask := func(ctx context.Context) error {
			_, err := call(ctx, v, func(func()) (int, error) { <-dead; return 1, nil }, func(int) { dropped.Add(1) })
			return err
		}
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := ask(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		for what, want := range map[string]int{"asked": 2, "not even asked": 2} {
			began = time.Now()
			err := ask(t.Context())
			if Final(err) || berth.CodeOf(err) != berth.CodeUnavailable || !strings.Contains(err.Error(), "the folder /datasets does not answer on this machine") || time.Since(began) != silence {
				t.Errorf("%s: after %s: %v", what, time.Since(began), err)
			}
			if len(v.calls) != want {
				t.Errorf("%s: %d calls are under way, want %d", what, len(v.calls), want)
			}
		}
		close(dead)
		synctest.Wait()
		if dropped.Load() != 2 || len(v.calls) != 0 {
			t.Errorf("%d answers are dropped, %d calls are under way", dropped.Load(), len(v.calls))
		}
		// Who is slow and answers is waited for.
		_, err := call(t.Context(), v, func(alive func()) (int, error) {
			for range 10 {
				time.Sleep(silence - time.Second)
				alive()
			}
			return 1, nil
		}, nil)
		if err != nil {
			t.Errorf("a slow one: %v", err)
		}
	})
}

// A machine that opens a session does not wait for a dead file server.
func TestALabelIsKeptWhileNothingAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := newVolume(t)
		v.calls <- struct{}{}
		v.calls <- struct{}{}
		s := &Sources{volumes: map[spec.Volume]*volume{v.name: v}}
		began := time.Now()
		labels, away := s.Labels(t.Context())
		if len(labels) != 1 || len(away) != 0 || time.Since(began) != labelPatience {
			t.Errorf("after %s: labels %v, away %v", time.Since(began), labels, away)
		}
	})
}

// stuck is a file whose server is gone when it is to be closed.
type stuck struct {
	opened
	dead chan struct{}
}

func (s stuck) Close() error {
	<-s.dead
	return s.opened.Close()
}

// stuckVolume opens such files.
type stuckVolume struct {
	*volume
	dead chan struct{}
}

func (s stuckVolume) open(ctx context.Context, o object, from int64) (io.ReadCloser, error) {
	body, err := s.volume.open(ctx, o, from)
	if r, ok := body.(*reading); ok {
		r.file = stuck{r.file, s.dead}
	}
	return body, err
}

// NFS and FUSE ask their server when a file is closed.
func TestNobodyWaitsForAFileToClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := stuckVolume{newVolume(t), make(chan struct{})}
		if err := os.WriteFile(filepath.Join(v.dir, "a"), []byte("whole"), 0o644); err != nil {
			t.Fatal(err)
		}
		o, err := v.one(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		for i, bound := range []time.Duration{silence, time.Second} {
			ctx, cancel := context.WithCancel(t.Context())
			body, err := v.open(ctx, o, 0) // it waits for the file's tick
			if err != nil {
				t.Fatal(err)
			}
			if bound < silence {
				time.AfterFunc(bound, cancel)
			}
			began := time.Now()
			if err := body.Close(); err != nil || time.Since(began) != bound {
				t.Errorf("closed after %s, want %s: %v", time.Since(began), bound, err)
			}
			cancel()
			if len(v.calls) != i+1 {
				t.Errorf("%d calls are under way, want %d", len(v.calls), i+1)
			}
		}
		close(v.dead)
		synctest.Wait()
		if len(v.calls) != 0 {
			t.Errorf("%d calls are under way", len(v.calls))
		}
		v.dead = make(chan struct{})
		var got bytes.Buffer
		if _, err := (&bucket{store: v}).read(t.Context(), o, 0, &got); err != nil || got.String() != "whole" {
			t.Errorf("of a file that does not close it reads %q, %v", &got, err)
		}
		close(v.dead)
	})
}
