package connlimit

import (
	"strings"
	"syscall"
	"testing"
)

func TestConnectionsFitIntoTheLimitOfOpenFiles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		connections int
		files       uint64
		want        int
	}{
		{8192, 1 << 20, 8192},
		{8192, 8192 + spareFiles, 8192},
		{8192, 4096, 4096 - spareFiles},
		{64, 64 + spareFiles, 64},
		{8192, 256, 0},
	} {
		got, err := within(c.connections, c.files)
		if got != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%d connections in %d files: %d, %v, want %d", c.connections, c.files, got, err, c.want)
		}
		if err != nil && !strings.Contains(err.Error(), "8704") {
			t.Errorf("the error does not name the limit that is needed: %v", err)
		}
	}
}

// The limit is the whole process's, so no other test runs meanwhile.
func TestTheLimitOfOpenFilesIsRaised(t *testing.T) {
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was) }()
	low := syscall.Rlimit{Cur: 600, Max: was.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	if n, err := OpenFiles(100); err != nil || n != 100 {
		t.Fatalf("room for %d of 100 connections, %v", n, err)
	}
	var now syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &now); err != nil || now.Cur != 100+spareFiles || now.Max != was.Max {
		t.Errorf("the limit is %+v, was %+v, %v", now, was, err)
	}
}
