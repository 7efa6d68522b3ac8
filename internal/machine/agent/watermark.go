package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"berth/wire"
)

// watermark is the highest sign of the database's age that this machine has
// seen; see wire.Watermark. It outlives the agent. All methods may be called
// concurrently.
type watermark struct {
	path string
	log  *slog.Logger

	mu     sync.Mutex
	stored wire.StoredWatermark
}

// openWatermark reads the watermark of an earlier process. An unreadable file counts as
// none: the machine then obeys any database that answers, as a new machine does.
func openWatermark(dir string, log *slog.Logger) *watermark {
	w := &watermark{path: filepath.Join(dir, "watermark.json"), log: log}
	b, err := os.ReadFile(w.path)
	if err == nil {
		err = json.Unmarshal(b, &w.stored)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Warn("cannot read the watermark; only other machines can detect a restored database",
			"path", w.path, "err", err)
		w.stored = wire.StoredWatermark{}
	}
	return w
}

// of returns the highest watermark of a cluster, zero if none was seen.
func (w *watermark) of(cluster string) wire.Watermark {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stored.Cluster != cluster {
		return wire.Watermark{}
	}
	return w.stored.Watermark
}

// accepts takes the watermark of an answer, and reports whether the answer may be obeyed: the
// answer's database is at least as new as the newest one that this machine knew when it asked.
// now is nil where the server is older than watermarks, and has number 0 where its database has
// granted none.
func (w *watermark) accepts(cluster string, asked wire.Watermark, now *wire.Watermark) bool {
	if now == nil {
		return true
	}
	if now.Number < asked.Number {
		w.log.Error("answer of a restored database refused", "watermark", now.Number, "seen", asked.Number)
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if now.Number == 0 || w.stored.Cluster == cluster && w.stored.Number >= now.Number {
		return true
	}
	w.stored = wire.StoredWatermark{Cluster: cluster, Watermark: *now}
	if err := w.store(); err != nil {
		w.log.Error("cannot store the watermark", "path", w.path, "err", err)
	}
	return true
}

// recordBytes is the length of the stored record, padded with blanks. It is one
// sector: a process or a host that dies while writing leaves the old record or the
// new one.
const recordBytes = 512

// store writes the watermark in place. A machine does so every few seconds, and a
// new file that is renamed costs more than the call that brought the watermark.
// w.mu is held.
func (w *watermark) store() error {
	b, err := json.Marshal(w.stored)
	if err != nil {
		return err
	}
	if len(b) > recordBytes {
		return fmt.Errorf("record of %d bytes: at most %d are allowed", len(b), recordBytes)
	}
	b = append(b, bytes.Repeat([]byte(" "), recordBytes-len(b))...)
	f, err := os.OpenFile(w.path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, 0)
	return errors.Join(err, f.Close())
}
