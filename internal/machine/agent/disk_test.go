package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"berth/wire"
)

// A disk that does not take a restored file is the machine's fault, and must not
// count against the checkpoint. A pipe whose reader leaves stands for the disk.
func TestDiskThatTakesNothingIsNoFaultOfTheCheckpoint(t *testing.T) {
	t.Parallel()
	s := &scratch{state: t.TempDir()}
	if err := s.open("rank", true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	pipe := filepath.Join(s.dir, "checkpoint", partial, "weights")
	if err := errors.Join(os.Mkdir(filepath.Dir(pipe), 0o700), syscall.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	body := make([]byte, 1<<20)
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
	}))
	t.Cleanup(store.Close)
	left := make(chan struct{})
	t.Cleanup(func() { <-left }) // the test's context is over by then
	go func() {
		defer close(left)
		for n := 0; n == 0 && t.Context().Err() == nil; n, _ = reader.Read(make([]byte, 1)) { // until somebody writes
		}
		_ = reader.Close()
	}()
	log, timing := slog.New(slog.DiscardHandler), Timing{RestorePatience: time.Minute}.withDefaults()
	r := &restorePhase{
		core:    &core{log: log, timing: timing},
		control: newControl(newClient(store.URL, ""), "", openWatermark(t.TempDir(), log)),
		retry:   &retrier{ctx: t.Context(), log: log, timing: timing},
		scratch: s,
	}
	sum := sha256.Sum256(body)
	err = r.fetch(t.Context(), savedPart{}, wire.CheckpointFile{Path: path.Base(pipe), Object: "x", SHA256: hex.EncodeToString(sum[:]), Bytes: int64(len(body))})
	_, damaged := errors.AsType[damage](err)
	_, unfetched := errors.AsType[cannotFetch](err)
	if !errors.Is(err, syscall.EPIPE) || damaged || unfetched {
		t.Errorf("fetch: %v (damage %v, not fetched %v)", err, damaged, unfetched)
	}
}
